"""`ds4-bench --spec TYPE,TYPE`: what each drafter gains or loses, against plain decoding of the same run.

The idea: rounds, as in every comparison here. In a round each cell (text x temperature) is decoded plainly and with every
drafter, one right after the other, and who goes first changes from round to round; one round before them is thrown away. A ratio
is formed inside its round; its median is the figure, with the smallest and the largest beside it. Plain decoding is measured
twice in a round, at both ends, and the faster one counts: a drafter is never compared with a plain run that met a busy moment.

Two texts of our own bound what one will see: a code edit, most of which is in the prompt already, and a story nobody knows the
end of. Drafters are as new as their session, so that no round learns from the one before it; a draft model is loaded once.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from ds4py.cli.parsing import Values
from ds4py.cli.spec_plot import draw
from ds4py.cli.speculating import checked_types, rows_needed, spec_config
from ds4py.cli.streaming import streaming_of
from ds4py.cli.terminal import open_terminal
from ds4py.drafters import Drafters, SpecConfig, open_drafters
from ds4py.engine import Engine, EngineOptions, Session, SessionOptions
from ds4py.engine.speculation import line, speculating, target_of
from ds4py.engine.statistics import acceptance_rate, accepted_by_position, telemetry, tokens_per_pass
from ds4py.errors import UsageError
from ds4py.gguf import GgufFile
from ds4py.protocols import SamplingParams, SpecStats
from ds4py.tokenizer import Tokenizer

COMMAND: Final = "ds4-bench"
TEMPERATURES: Final = (0.0, 1.0)
CSV_HEADER: Final = (
    "text,temperature,drafter,tokens,tokens_per_pass,drafted,accepted,acceptance,plain_tps,tps,ratio,ratio_min,ratio_max"
)

_CODE = '''class Basket:
    """Items a customer wants, by name."""

    def __init__(self, owner):
        self.owner = owner
        self.items = {}

    def add(self, name, price, count=1):
        if count < 1:
            raise ValueError("count must be positive")
        old = self.items.get(name, (price, 0))
        self.items[name] = (price, old[1] + count)

    def remove(self, name):
        if name not in self.items:
            raise KeyError(name)
        del self.items[name]

    def total(self):
        return sum(price * count for price, count in self.items.values())

    def describe(self):
        lines = [f"{count} x {name} at {price}" for name, (price, count) in self.items.items()]
        return "\\n".join([f"basket of {self.owner}", *lines, f"total {self.total()}"])
'''
_ASKED = "Here is the same file with `owner` renamed to `customer`."
_EDIT = f"Here is a Python file.\n\n```python\n{_CODE}```\n\n{_ASKED}\n\n```python\n"
_STORY = (
    "The night the lighthouse went dark, seven people who had never met were sitting in the same waiting room, and each of them "
    "believed to be the only one who knew why. The first was a piano tuner with a broken wrist. Nobody could have guessed what "
    "she carried in the violin case."
)
TEXTS: Final[Mapping[str, str]] = {"code edit": _EDIT, "story": _STORY}


@dataclass(frozen=True)
class Run:
    """One generation."""

    tokens: int
    seconds: float
    stats: SpecStats

    @property
    def tps(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Cell:
    """A drafter on one text at one temperature, over all rounds; `ratio` is net speed over the fastest plain decoding."""

    text: str
    temperature: float
    drafter: str
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
    telemetry: Mapping[str, float]  # of the last round

    def csv(self) -> str:
        numbers = (self.acceptance, self.plain_tps, self.tps, self.ratio, self.ratio_min, self.ratio_max)
        words = [self.text, f"{self.temperature:g}", self.drafter, str(self.tokens), f"{self.tokens_per_pass:.3f}"]
        return ",".join([*words, str(self.drafted), str(self.accepted), *(f"{number:.3f}" for number in numbers)])


class Bench:
    """An engine, the prompts that were read on it, and drafters to be measured."""

    def __init__(self, g: GgufFile, tokenizer: Tokenizer, engine: Engine, n_gen: int) -> None:
        self._g, self._engine, self._n_gen = g, engine, n_gen
        self._read: dict[str, Session] = {}
        for name, text in TEXTS.items():
            ids = tokenizer.encode(text, add_bos=True)
            self._read[name] = engine.session()
            self._read[name].sync(ids)
        self._opened: dict[str, Drafters] = {}

    def drafters(self, config: SpecConfig) -> Drafters:
        """New ones, except for a draft model, whose sessions share nothing but weights."""
        name = "+".join(config.types)
        if name not in self._opened or config.draft_model is None:
            self._opened[name] = open_drafters(config, target_of(self._engine, self._g))
        return self._opened[name]

    def run(self, text: str, temperature: float, seed: int, config: SpecConfig | None) -> Run:
        """Decode after the prompt `text`. Stop tokens do not stop: a speed needs a fixed count."""
        options = SessionOptions(params=SamplingParams(temperature, min_p=0.05 if temperature else 0.0), seed=seed)
        if config is not None:
            options = speculating(options, self.drafters(config))
        session = self._standing(text, options)
        begun = time.perf_counter()
        n = sum(len(step.tokens) for step in session.generate(self._n_gen))
        return Run(n, time.perf_counter() - begun, session.stats)

    def _standing(self, text: str, options: SessionOptions) -> Session:
        """A session that has read `text`. One whose drafter listens to the target's layers has to read it itself."""
        read = self._read[text]
        if options.drafter is None or not options.drafter.needs.taps:
            return read.fork(options)
        session = self._engine.session(replace(options, epoch=read.sampler.noise.epoch + 1))
        session.sync(read.tokens)
        return session


def spec_bench(g: GgufFile, tokenizer: Tokenizer, values: Values) -> int:
    """Measure the drafters of --spec; a table to standard output, --csv, --json and --plot as asked."""
    from ds4py.cli.files import result_file
    from ds4py.cli.plot import require_matplotlib

    if values.has("plot"):
        require_matplotlib()
    configs = configs_of(values)
    n_gen, rounds = values.integer("gen_tokens"), values.integer("rounds")
    longest = max(len(tokenizer.encode(text, add_bos=True)) for text in TEXTS.values())
    threads = values.integer("threads") if values.has("threads") else None
    kernels = "cpu" if values.flag("cpu") else values.text("backend")
    rows = max(EngineOptions().max_rows, *(rows_needed(config) for config in configs))
    streaming = streaming_of(values, g, open_terminal(sys.stderr))
    engine = Engine.open(g, EngineOptions(longest + n_gen, threads, kernels, rows, streaming=streaming))
    bench = Bench(g, tokenizer, engine, n_gen)
    names = ["+".join(config.types) for config in configs]
    print(f"{COMMAND}: {', '.join(names)} against plain decoding, {rounds} rounds of {n_gen} tokens", file=sys.stderr)
    for config in configs:
        print(f"{COMMAND}: {line(bench.drafters(config))}", file=sys.stderr)
    cells = list(measure(bench, dict(zip(names, configs, strict=True)), rounds))
    print("\n".join(table(cells)))
    exact = configs[0].accept == "exact"
    mode = "exact: the same text as without drafts" if exact else "opportunistic: drafts may decide the text"
    print(f"\nRatio: net speed over plain decoding in the same round. At temperature 1 acceptance is {mode}.")
    if values.has("csv"):
        with result_file(values.text("csv")) as out:
            out.write("\n".join([CSV_HEADER, *(cell.csv() for cell in cells), ""]))
    if values.has("json"):
        with result_file(values.text("json")) as out:
            found = {"model": g.path.name, "accept": configs[0].accept, "cells": [asdict(cell) for cell in cells]}
            json.dump(found, out, indent=1)
    if values.has("plot"):
        draw(cells, Path(values.text("plot")), title=str(g.kv.get("general.name", g.path.name)))
    return 0


def configs_of(values: Values) -> list[SpecConfig]:
    """One for each type of --spec."""
    types = checked_types([name.strip() for name in values.text("spec").split(",")])
    if not types:
        raise UsageError("--spec needs drafters to measure, such as --spec ngram-simple,ngram-mod")
    draft = Path(values.text("spec_draft_model")) if values.has("spec_draft_model") else None
    accept = "exact" if values.flag("mtp_exact_sampling") else "opportunistic"
    depth = values.text("spec_depth")
    return [spec_config(values, (name,), draft if name.startswith("draft-") else None, accept, depth) for name in types]


def measure(bench: Bench, configs: Mapping[str, SpecConfig], rounds: int) -> Iterator[Cell]:
    """All cells; a line on a terminal tells how far it is."""
    log = open_terminal(sys.stderr)
    for text in TEXTS:
        for temperature in TEMPERATURES:
            plain: list[float] = []
            runs: dict[str, list[Run]] = {name: [] for name in configs}
            for number in range(rounds + 1):
                log.rewrite(f"{COMMAND}: {text}, temperature {temperature:g}, round {number} of {rounds}")
                order = list(configs) if number % 2 else list(configs)[::-1]
                before = bench.run(text, temperature, number, None)
                found = {name: bench.run(text, temperature, number, configs[name]) for name in order}
                after = bench.run(text, temperature, number, None)
                if number:  # round 0 compiles and warms up
                    plain.append(max(before.tps, after.tps))
                    for name, one in found.items():
                        runs[name].append(one)
            log.rewrite("")
            for name in configs:
                yield cell_of(text, temperature, name, plain, runs[name])


def cell_of(text: str, temperature: float, name: str, plain: Sequence[float], runs: Sequence[Run]) -> Cell:
    """`plain[i]`: tokens per second of plain decoding in the round of runs[i]. Counts are summed over the rounds."""
    ratios = [run.tps / base for run, base in zip(runs, plain, strict=True)]
    total = SpecStats()
    for run in runs:
        total.passes += run.stats.passes
        total.drafted += run.stats.drafted
        total.accepted += run.stats.accepted
    at = [accepted_by_position(run.stats) for run in runs if run.stats.drafts]
    depth = max(map(len, at), default=0)
    return Cell(
        text=text,
        temperature=temperature,
        drafter=name,
        tokens=sum(run.tokens for run in runs),
        tokens_per_pass=tokens_per_pass(total),
        drafted=total.drafted,
        accepted=total.accepted,
        acceptance=acceptance_rate(total),
        accepted_by_position=[statistics.mean(one[i] if i < len(one) else 0.0 for one in at) for i in range(depth)],
        plain_tps=statistics.median(plain),
        tps=statistics.median(run.tps for run in runs),
        ratio=statistics.median(ratios),
        ratio_min=min(ratios),
        ratio_max=max(ratios),
        telemetry=telemetry(runs[-1].stats),
    )


def table(cells: Sequence[Cell]) -> list[str]:
    """A Markdown table that also reads as plain text."""
    rows = [["text", "T", "drafter", "tokens/pass", "acceptance", "first, second, third", "plain t/s", "t/s", "ratio", "spread"]]
    for cell in cells:
        first = ", ".join(f"{share:.2f}" for share in cell.accepted_by_position[:3]) or "no drafts"
        figures = [f"{cell.tokens_per_pass:.2f}", f"{cell.acceptance:.2f}", first, f"{cell.plain_tps:.1f}", f"{cell.tps:.1f}"]
        spread = f"{cell.ratio_min:.2f}-{cell.ratio_max:.2f}"
        rows.append([cell.text, f"{cell.temperature:g}", cell.drafter, *figures, f"{cell.ratio:.2f}", spread])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    shown = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows]
    return [shown[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *shown[1:]]
