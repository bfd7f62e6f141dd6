"""What one command-line option is.

The idea: an option is data. Its names, its type and range, its default, its environment names, its help line, its help topics and
whether this build can obey it stand in one row; parsing, help, refusal and validation are functions over rows. The invariant: no
command has a flag that is not a row, so `--help`, the parser and the error sentences cannot disagree. Rejected: one annotated
function per command, where four commands sharing a hundred flags repeat each of them four times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["flag", "int", "float", "text", "file"]
Status = Literal["works", "accepted", "later", "never"]
Value = str | int | float | bool


@dataclass(frozen=True)
class Range:
    """The numbers an option takes: lo..hi inclusive (None = no bound), without lo itself if `above`, and the values of `also`."""

    lo: float | None = None
    hi: float | None = None
    above: bool = False
    also: tuple[int, ...] = ()

    def holds(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        if value in self.also:
            return True
        low = self.lo is None or (value > self.lo if self.above else value >= self.lo)
        return low and (self.hi is None or value <= self.hi)

    def words(self) -> str:
        """The range as a phrase that follows "a number": "from 0 to 1", "of at least 1"; empty if every finite number is good."""
        if self.lo is not None and self.hi is not None:
            text = f"above {self.lo} and at most {self.hi}" if self.above else f"from {self.lo} to {self.hi}"
        elif self.lo is not None:
            text = f"greater than {self.lo}" if self.above else f"of at least {self.lo}"
        else:
            text = f"of at most {self.hi}" if self.hi is not None else ""
        return text + "".join(f", or {value}" for value in self.also)


@dataclass(frozen=True)
class Option:
    """One row of the table.

    name     the spelling shown first, with its dashes; `key` is the same word as an identifier
    kind     "flag" takes no value; "file" is a non-empty path
    bare     the value used when an option that takes a value stands alone (`-fa`, `--color`); needs `choices`
    repeat   may be given several times; its value is then a tuple
    env      environment names read when the flag is absent, the first one that is set wins
    status   "works"; "accepted": llama.cpp's spelling of something that is always so here; "later" and "never" are refused
    why      for "later" and "never": the end of the sentence that refuses it
    barred   values that are known elsewhere but not here, each with the end of its sentence
    """

    name: str
    help: str
    kind: Kind = "flag"
    aliases: tuple[str, ...] = ()
    metavar: str = ""
    default: Value | None = None
    shown_default: str = ""
    range: Range | None = None
    choices: tuple[str, ...] = ()
    bare: str | None = None
    repeat: bool = False
    env: tuple[str, ...] = ()
    topics: tuple[str, ...] = ("runtime",)
    commands: tuple[str, ...] = ("ds4",)
    status: Status = "works"
    why: str = ""
    barred: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> str:
        return self.name.lstrip("-").replace("-", "_")

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    @property
    def takes_value(self) -> bool:
        return self.kind != "flag"

    def refusal(self, spelling: str) -> str:
        """The sentence for a row that this build cannot obey."""
        if self.status == "later":
            return f"{spelling} is not in this build yet: {self.why}"
        return f"{spelling} is not supported: {self.why}"
