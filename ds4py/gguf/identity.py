"""Is this the model that was meant? A short name for the content of a file, whatever it is called and however it is split.

It digests the names, shapes, types and sizes of all tensors, the settings, and the first bytes of every tensor, so that a
fine-tuned copy, another quantisation and an edited setting all differ. Digesting every byte was rejected: it would read a model
of 80 GB to save a chat.
"""

from __future__ import annotations

import hashlib
from typing import Final

from ds4py.gguf.reader import GgufFile

_SAMPLE_BYTES: Final = 64  # of each tensor


def identity(g: GgufFile) -> str:
    """32 hexadecimal digits that are equal for equal models."""
    digest = hashlib.blake2b(digest_size=16)
    for key in sorted(g.kv):
        value = g.kv[key]
        if not key.startswith("split."):
            told = value if isinstance(value, str | int | float | bool) else len(value)
            digest.update(f"{key}={told!r}\n".encode())
    for name in sorted(g.tensors):
        tensor = g.tensors[name]
        digest.update(f"{name} {tensor.shape} {tensor.type.name} {tensor.nbytes}\n".encode())
        digest.update(tensor.data[:_SAMPLE_BYTES].tobytes())
    return digest.hexdigest()
