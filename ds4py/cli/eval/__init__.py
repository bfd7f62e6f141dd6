"""`ds4-eval`: does a model answer right, and does drafting pay? One file per step; `command.py` is the entry point."""
