"""How many bytes of weights a token makes a machine read, and how many of them stay in memory: from names and shapes alone.

Decoding is bound by memory, so bytes per token over bytes per second is the time that no kernel can beat. What a forward reads
of a tensor follows from what the tensor is: of a stack of experts those that the rows take, of a table of tokens their rows, of
anything else all, once, whatever the number of rows. Rows are taken to choose experts independently of each other, which counts
too many: neighbouring tokens often share them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ds4py.gguf import GgmlType

LOOKED_UP = ("token_embd.weight", "tid2eid.weight", "markov_w1.weight", "per_layer_token_embd.weight")
EXPERTS = "_exps."


class Shaped(Protocol):
    """What is asked of a tensor."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def type(self) -> GgmlType: ...
    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True)
class Traffic:
    """Bytes that one forward reads."""

    experts: float
    others: float

    @property
    def total(self) -> float:
        return self.experts + self.others

    def seconds(self, bytes_per_second: float) -> float:
        return self.total / bytes_per_second

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.experts + other.experts, self.others + other.others)


def traffic(tensors: Iterable[Shaped], n_used: int, n_rows: int = 1, tied: bool = False) -> Traffic:
    """Of a forward of n_rows rows that take n_used experts each; `tied`: the embedding is the output too."""
    experts = others = 0.0
    for tensor in tensors:
        if EXPERTS in tensor.name and len(tensor.shape) == 3:
            experts += held_bytes(tensor) * distinct(tensor.shape[2], n_used, n_rows) / tensor.shape[2]
        elif tensor.name.endswith(LOOKED_UP) and not tied:
            others += n_rows * tensor.nbytes / tensor.shape[1]
        else:
            others += held_bytes(tensor)
    return Traffic(experts, others)


def distinct(n_experts: int, n_used: int, n_rows: int) -> float:
    """Experts that rows take together, expected."""
    return n_experts * (1 - (1 - min(n_used, n_experts) / n_experts) ** n_rows)


def held_bytes(tensor: Shaped) -> int:
    """Bytes of a tensor as the compiled kernels hold it: packed, or as it lies in the file."""
    from ds4py.kernels.cpu.packed import FORM_OF

    form = FORM_OF.get(tensor.type)
    if form is None or len(tensor.shape) < 2 or tensor.name.endswith(LOOKED_UP):
        return tensor.nbytes
    n = tensor.shape[2] if len(tensor.shape) == 3 else 1
    return n * form.n_bytes(tensor.shape[1], tensor.shape[0])
