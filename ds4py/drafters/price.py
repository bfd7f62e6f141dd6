"""What a draft costs, told from files: for decisions that a text depends on, where no clock may be asked.

Where drafts may decide the text (opportunistic decoding), the depth of a draft does too, so it may rest only on what is the same
on every machine and in every run. Counts tell how often drafts are right; what they cost is told by the files: evaluating one row
reads every matrix once, so a draft model's token costs its matrices' bytes over the target's. Of a mixture only the experts that
a row uses are counted. A further row of a verify costs a fixed share of the first, `ROW`, as measured on CPU kernels (8 rows take
2.0 to 2.3 times as long as one), and half of what it reads of experts: rows share about every other one.

That is a prior: attention, small matrices and places to run are not in it. Of EAGLE-3, DFlash and DSpark drafts of 3 and 7 tokens
on two shapes (tests/scripts/draft_cost.py) it lies within a quarter of what was measured. It need not be exact. It tells a
draft that costs a tenth of the target from one that costs nine tenths, and that one never pays, however often it is right.
Rejected: measuring once at the start, which would make a text depend on what else the machine did in that second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ds4py.gguf import GgufFile

ROW: Final = 1 / 6  # of a plain pass that a further row of a dense model costs
_OWN: Final = 0.5  # of a row's experts that the rows before it did not use


@dataclass(frozen=True)
class Price:
    """In plain passes of the target."""

    row: float = ROW  # a further row of a verify
    start: float = 0.0  # a proposal, however short
    token: float = 0.0  # each token of it

    def of(self, k: int) -> float:
        """A pass that drafts k tokens costs so much more than one that drafts none."""
        return self.start + (self.row + self.token) * k if k else 0.0

    def can_pay(self, n_max: int) -> bool:
        """Whether drafts of up to n_max tokens would gain anything if every token were right."""
        return any(self.of(k) < k for k in range(1, n_max + 1))


def read_bytes(g: GgufFile, target: GgufFile | None = None) -> tuple[float, float]:
    """Of the matrices of a model or a draft: bytes that one row reads, and those of them that belong to its own experts. A draft
    that does not say how many experts a row uses is made of the blocks of `target`, which does."""
    every, own = 0.0, 0.0
    n_used = g.get("expert_used_count", 0) or (target.get("expert_used_count", 0) if target is not None else 0)
    tied = "output.weight" not in g.tensors
    for name, tensor in g.tensors.items():
        if len(tensor.shape) < 2 or (name == "token_embd.weight" and not tied) or "markov" in name:
            continue
        mixed = len(tensor.shape) > 2
        share = n_used / tensor.shape[-1] if mixed and n_used else 1.0
        every += tensor.nbytes * share
        own += tensor.nbytes * share * mixed
    return every, own


def row_price(target: GgufFile) -> float:
    """What a further row of a verify costs: the more, the more of a row's bytes are experts that other rows need not share."""
    every, own = read_bytes(target)
    shared = 1 - own / every if every else 1.0
    return ROW * shared + _OWN * (1 - shared)


def model_price(target: GgufFile, draft: GgufFile) -> Price:
    """Of a draft model, or of a draft that evaluates its network once for each token."""
    return Price(row_price(target), token=_share(target, draft))


def block_price(target: GgufFile, draft: GgufFile, block_size: int) -> Price:
    """Of a draft that evaluates `block_size` rows at once, and a Markov head, if it has one, for each token."""
    network = _share(target, draft) * (1 + ROW * (block_size - 1))
    chain = sum(tensor.nbytes for name, tensor in draft.tensors.items() if "markov_w2" in name)
    return Price(row_price(target), network, chain / max(read_bytes(target)[0], 1.0))


def _share(target: GgufFile, draft: GgufFile) -> float:
    """Bytes that a row of `draft` reads, over those of a row of `target`. A head that it lacks is borrowed and read too."""
    ours, theirs = read_bytes(target)[0], read_bytes(draft, target)[0]
    if "output.weight" not in draft.tensors and "token_embd.weight" not in draft.tensors:
        name = "output.weight" if "output.weight" in target.tensors else "token_embd.weight"
        theirs += target.tensors[name].nbytes if name in target.tensors else 0
    return theirs / ours if ours else 1.0
