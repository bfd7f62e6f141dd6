"""From runs to figures: a drafter on one kind of prompt at one temperature, against plain decoding of the same round.

A round is a prompt answered plainly, by every contender, and plainly again; the faster plain run of a round is what a
contender is compared with. The ratio is formed inside its round and the median is the figure. Rounds in which an answer went
in circles are counted and left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ds4py.cli.eval.loops import looping
from ds4py.cli.eval.runs import Run
from ds4py.engine.statistics import accepted_by_position

EVERY = "all"


@dataclass(frozen=True)
class Round:
    """One prompt at one temperature with one seed. `same_text`: the accept rule promises plain decoding's text."""

    prompt: str
    category: str
    temperature: float
    plain: Sequence[Run]
    drafted: Mapping[str, Run]
    same_text: bool

    @property
    def plain_tps(self) -> float:
        """Of the faster plain run."""
        return max(run.tps for run in self.plain)

    def loops(self, name: str) -> str:
        """Why the round says nothing about contender `name`; empty if it does."""
        for run in (self.plain[0], self.drafted[name]):
            for answer in run.answers:
                if why := looping(answer):
                    return why
        return ""

    def differs(self, name: str) -> bool:
        """Whether the text is not plain decoding's although it must be."""
        return self.same_text and list(map(list, self.drafted[name].answers)) != list(map(list, self.plain[0].answers))


@dataclass(frozen=True)
class Cell:
    """One line of the table. ratio: net speed over the fastest plain decoding of the round."""

    category: str
    temperature: float
    drafter: str
    rounds: int
    looping: int  # rounds left out
    tokens: int
    tokens_per_pass: float
    drafted: int
    accepted: int
    acceptance: float
    accepted_by_position: Sequence[float]
    plain_tps: float
    tps: float
    ratio: float
    ratio_min: float
    ratio_max: float


def cells(rounds: Sequence[Round]) -> Iterator[Cell]:
    """By temperature and drafter: each category, then all of them."""
    names = list(dict.fromkeys(name for one in rounds for name in one.drafted))
    categories = list(dict.fromkeys(one.category for one in rounds))
    for temperature in dict.fromkeys(one.temperature for one in rounds):
        for name in names:
            own = [one for one in rounds if one.temperature == temperature and name in one.drafted]
            for category in categories:
                yield cell(category, temperature, name, [one for one in own if one.category == category])
            if len(categories) > 1:
                yield cell(EVERY, temperature, name, own)


def cell(category: str, temperature: float, name: str, rounds: Sequence[Round]) -> Cell:
    """`rounds` all have a run of contender `name`."""
    kept = [one for one in rounds if not one.loops(name) and one.drafted[name].tokens]
    runs = [one.drafted[name] for one in kept]
    ratios = [one.drafted[name].tps / one.plain_tps for one in kept if one.plain_tps]
    passes = sum(run.stats.passes for run in runs)
    drafted, accepted = sum(run.stats.drafted for run in runs), sum(run.stats.accepted for run in runs)
    return Cell(
        category=category,
        temperature=temperature,
        drafter=name,
        rounds=len(kept),
        looping=sum(bool(one.loops(name)) for one in rounds),
        tokens=sum(run.tokens for run in runs),
        tokens_per_pass=1 + accepted / passes if passes else 0.0,
        drafted=drafted,
        accepted=accepted,
        acceptance=accepted / drafted if drafted else 0.0,
        accepted_by_position=by_position(runs),
        plain_tps=_median([one.plain_tps for one in kept]),
        tps=_median([run.tps for run in runs]),
        ratio=_median(ratios),
        ratio_min=min(ratios, default=0.0),
        ratio_max=max(ratios, default=0.0),
    )


def by_position(runs: Sequence[Run]) -> list[float]:
    """Share of all verified drafts of the runs whose token 1, 2, ... was accepted."""
    n_drafts = sum(run.stats.drafts for run in runs)
    each = [(accepted_by_position(run.stats), run.stats.drafts) for run in runs if run.stats.drafts]
    depth = max((len(shares) for shares, _ in each), default=0)
    return [sum(shares[i] * n for shares, n in each if i < len(shares)) / n_drafts for i in range(depth)]


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0
