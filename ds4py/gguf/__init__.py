"""GGUF files: a hardened, lazy reader over mmap and an atomic, streaming writer. No torch, and nothing of ours but `errors`."""

from ds4py.gguf.reader import GgufFile, Tensor, open_gguf
from ds4py.gguf.strings import StringArray
from ds4py.gguf.types import GgmlType, GgufType
from ds4py.gguf.values import Metadata, NumberArray, Value
from ds4py.gguf.writer import NewTensor, gguf_size, write_gguf

__all__ = [
    "GgmlType",
    "GgufFile",
    "GgufType",
    "Metadata",
    "NewTensor",
    "NumberArray",
    "StringArray",
    "Tensor",
    "Value",
    "gguf_size",
    "open_gguf",
    "write_gguf",
]
