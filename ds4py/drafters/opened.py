"""What opening a drafter needs to know and what it gives: the values between opening.py and the openers of single types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ds4py.drafters.price import Price
from ds4py.gguf import GgufFile
from ds4py.models import LoadedModel
from ds4py.protocols import Drafter, Kernels

Notice = Callable[[str], None]
Maker = Callable[[bool, str], Drafter]  # (opportunistic, key of its user) -> a new drafter for one session


@dataclass(frozen=True)
class Target:
    """What drafters must know of the model they draft for."""

    gguf: GgufFile
    vocab_size: int
    n_ctx: int
    kernels: Kernels
    model: LoadedModel | None = None  # needed by drafts that borrow its weights and listen to its layers


@dataclass(frozen=True)
class Opened:
    """One type, opened: how sessions get theirs, the longest draft it makes, and what the start-up line says of it."""

    make: Maker
    n_max: int
    says: str
    n_min: int = 0
    counted: str = "adaptive"  # the depth policy that suits it where only counts may decide
    price: Price | None = None  # None: of n-grams, which cost the rows of a verify and nothing else
    unsure: str = ""  # what could not be checked, a sentence for the user
