"""GGUF files: a hardened, lazy reader over mmap and an atomic, streaming writer. No torch, and nothing of ours but `errors`."""

from ds4py.gguf.reader import GgufFile, Mapped, Storage, Tensor, open_gguf
from ds4py.gguf.resume import is_written, partial_path, write_resumable
from ds4py.gguf.strings import StringArray
from ds4py.gguf.types import GgmlType, GgufType
from ds4py.gguf.values import Metadata, NumberArray, Value
from ds4py.gguf.writer import NewTensor, gguf_size, write_gguf

__all__ = [
    "GgmlType",
    "GgufFile",
    "GgufType",
    "Mapped",
    "Metadata",
    "NewTensor",
    "NumberArray",
    "Storage",
    "StringArray",
    "Tensor",
    "Value",
    "gguf_size",
    "is_written",
    "open_gguf",
    "partial_path",
    "write_gguf",
    "write_resumable",
]
