"""Weights of a model file, taken by name with their shape checked against the metadata.

Every tensor an architecture reads passes here, so a file whose matrices contradict its metadata is refused with both shapes
before any kernel sees it. The embedding of a model with a tied head is one object used twice: it is in memory once.

Extra tensors: one inside a block that the architecture did not ask for is an error, since ignoring a bias or a norm would give
fluent but wrong text. Elsewhere (factors, other heads, blocks past `block_count` that hold a draft module) they are ignored.
"""

from __future__ import annotations

import numpy as np

from ds4py.errors import FormatError, UnsupportedError
from ds4py.gguf import GgmlType, GgufFile, Tensor
from ds4py.protocols import F32, I32, Experts, Kernels, Weight

HARMLESS = ("attn_rot_embd", "attn.rot_embd", "rotary_emb.inv_freq")  # old converters stored what follows from the metadata


class Tensors:
    """The tensors of one file in the form that one backend computes on."""

    def __init__(self, g: GgufFile, kernels: Kernels) -> None:
        self._g = g
        self._kernels = kernels
        self._used: set[str] = set()

    def has(self, name: str) -> bool:
        return name in self._g.tensors

    def matrix(self, name: str, n_out: int, n_in: int) -> Weight:
        """`name` as a weight [n_out, n_in] (GGUF shape [n_in, n_out])."""
        return self._kernels.weight(self.shaped(name, (n_in, n_out)))

    def vector(self, name: str, n: int) -> F32:
        """`name` as float32 [n]."""
        return self._kernels.vector(self.shaped(name, (n,)))

    def array(self, name: str, *shape: int) -> F32:
        """`name`, a small tensor, as float32 of numpy shape `shape` (the GGUF shape reversed)."""
        return self._kernels.vector(self.shaped(name, shape[::-1])).reshape(shape)

    def experts(self, name: str, n_experts: int, n_out: int, n_in: int) -> Experts:
        """`name` as matrices [n_experts, n_out, n_in]."""
        return self._kernels.experts(self.shaped(name, (n_in, n_out, n_experts)))

    def table(self, name: str, n_rows: int, n: int, limit: int) -> I32:
        """`name`, whole numbers 0..limit - 1, as int32 [n_rows, n]."""
        tensor = self.shaped(name, (n, n_rows))
        if tensor.type != GgmlType.I32:
            raise FormatError(f"{self._g.path}: {name} has type {tensor.type.name}; it must be a table of I32.")
        values: I32 = tensor.data.view("<i4").astype(np.int32).reshape(n_rows, n)
        if values.size and not 0 <= int(values.min()) <= int(values.max()) < limit:
            raise FormatError(f"{self._g.path}: {name} holds numbers outside 0..{limit - 1}; the file is damaged.")
        return values

    def optional_vector(self, name: str, n: int) -> F32 | None:
        return self.vector(name, n) if self.has(name) else None

    def embedding(self, n_embd: int) -> Weight:
        """`token_embd.weight` [V, n_embd]; V is the tensor's own, and must cover the tokenizer's list."""
        n_vocab = self.n_rows("token_embd.weight")
        n_tokens = len(self._g.kv.get("tokenizer.ggml.tokens", ()))
        if n_vocab < n_tokens:
            raise FormatError(
                f"{self._g.path}: tokenizer.ggml.tokens lists {n_tokens} tokens but token_embd.weight has only {n_vocab} rows."
            )
        return self.matrix("token_embd.weight", n_vocab, n_embd)

    def head(self, token_embd: Weight) -> Weight:
        """`output.weight`, or the embedding itself where the file has none (a tied head)."""
        n_vocab, n_embd = token_embd.shape
        return self.matrix("output.weight", n_vocab, n_embd) if self.has("output.weight") else token_embd

    def refuse_unused_blocks(self, n_layers: int) -> None:
        """UnsupportedError if a tensor of blocks 0..n_layers was not taken: this architecture would compute without it."""
        for name in self._g.tensors:
            prefix, _, rest = name.partition(".")
            index, _, part = rest.partition(".")
            in_block = prefix == "blk" and index.isdigit() and int(index) < n_layers
            if in_block and name not in self._used and not part.startswith(HARMLESS):
                raise UnsupportedError(
                    f"{self._g.path}: the tensor {name} is not one that {self._g.architecture} uses here; "
                    "computing without it would give wrong text."
                )

    def refuse_unused(self) -> None:
        """UnsupportedError if any tensor of the file was not taken."""
        for name in self._g.tensors:
            if name not in self._used:
                raise UnsupportedError(
                    f"{self._g.path}: the tensor {name} is not one that {self._g.architecture} uses here; "
                    "drafting without it would guess wrong."
                )

    def n_rows(self, name: str) -> int:
        return int(self._find(name).shape[-1])

    def raw(self, name: str) -> Tensor:
        """`name` as it lies in the file."""
        self._used.add(name)
        return self._find(name)

    def shaped(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """`name` as it lies in the file, after making sure of its shape."""
        tensor = self._find(name)
        if tuple(tensor.shape) != shape:
            raise FormatError(f"{self._g.path}: {name} has shape {list(tensor.shape)}, the metadata asks for {list(shape)}.")
        self._used.add(name)
        return tensor

    def _find(self, name: str) -> Tensor:
        if name not in self._g.tensors:
            raise FormatError(f"{self._g.path}: the tensor {name} is missing.")
        return self._g.tensors[name]
