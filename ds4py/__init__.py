"""ds4py: run GGUF language models from Python, with speculation as the normal way to decode. ARCHITECTURE.md tells the layers."""

__version__ = "0.1.0"
