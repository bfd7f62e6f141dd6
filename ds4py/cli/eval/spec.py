"""`ds4-eval --spec`: acceptance by position and net speed of drafters on four kinds of prompts, at temperature 0 and 1.

Plain decoding, n-grams, a draft and a chain of both answer the same prompts in the same rounds (cells.py); looping answers are
left out (loops.py); what passes cost is measured and turned into the acceptance that each drafter needs (costs.py,
breakeven.py). Where the accept rule promises plain decoding's text, the texts are compared, and a difference is an error: a
benchmark that runs through a bug would praise it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from ds4py.chat import open_format
from ds4py.cli.eval.breakeven import FAST, Need, sentences
from ds4py.cli.eval.cells import EVERY, Cell, Round, cells
from ds4py.cli.eval.choices import contenders, prompts_of, temperatures
from ds4py.cli.eval.costs import needs, row_counts, verify_costs
from ds4py.cli.eval.plot import draw
from ds4py.cli.eval.prompts import Prompt
from ds4py.cli.eval.report import CSV_HEADER, csv, table
from ds4py.cli.eval.runs import Bench, Contender, Run, context_needed
from ds4py.cli.files import result_file
from ds4py.cli.parsing import Values
from ds4py.cli.speculating import rows_needed
from ds4py.cli.streaming import streaming_of
from ds4py.cli.terminal import Terminal, open_terminal
from ds4py.engine import Engine, EngineOptions
from ds4py.engine.speculation import line
from ds4py.errors import Ds4Error
from ds4py.gguf import GgufFile
from ds4py.tokenizer import Tokenizer

COMMAND: Final = "ds4-eval"
PLAIN: Final = Contender("plain")


class TextDiffers(Ds4Error):
    """A drafter changed a text that it must not change."""


def spec_eval(g: GgufFile, tokenizer: Tokenizer, values: Values) -> int:
    """Measure; a table to standard output, --csv, --json and --plot as asked. TextDiffers after them if a text was changed."""
    from ds4py.cli.plot import require_matplotlib

    if values.has("plot"):
        require_matplotlib()
    measured, prompts, temps = contenders(values), prompts_of(values), temperatures(values)
    n_gen, n_rounds = values.integer("gen_tokens"), values.integer("rounds")
    chat, log = open_format(g, tokenizer), open_terminal(sys.stderr)
    threads = values.integer("threads") if values.has("threads") else None
    kernels = "cpu" if values.flag("cpu") else values.text("backend")
    rows = max(EngineOptions().max_rows, *(rows_needed(one.config) for one in measured if one.config is not None))
    n_ctx, streaming = context_needed(prompts, chat, tokenizer, n_gen), streaming_of(values, g, log)
    bench = Bench(g, tokenizer, chat, Engine.open(g, EngineOptions(n_ctx, threads, kernels, rows, streaming=streaming)), n_gen)
    names = ", ".join(one.name for one in measured)
    log.say(f"{COMMAND}: {names} against plain decoding: {len(prompts)} prompts, {n_rounds} rounds, up to {n_gen} tokens each")
    for one in measured:
        log.say(f"{COMMAND}: {line(bench.drafters(one))}")
    rounds = list(play(bench, measured, prompts, temps, n_rounds, values.integer("seed"), log))
    found, asked = list(cells(rounds)), costs(bench, measured, rounds, prompts)
    print("\n".join(report(found, asked, measured, rounds)))
    write(values, found, asked, rounds, g)
    differing = [(one.prompt, name) for one in rounds for name in one.drafted if one.differs(name)]
    if differing:
        prompt, name = differing[0]
        raise TextDiffers(f"{name} changed the text of {prompt} ({len(differing)} texts in all): this is a bug, please report it")
    return 0


def play(
    bench: Bench,
    measured: Sequence[Contender],
    prompts: Sequence[Prompt],
    temps: Sequence[float],
    n_rounds: int,
    seed: int,
    log: Terminal,
) -> Iterator[Round]:
    """All rounds; the first prompt is answered once before, unmeasured. Who goes first changes from round to round."""
    for one in (PLAIN, *measured):
        bench.run(prompts[0], temps[0], seed, one)
    n_all, n = len(prompts) * len(temps) * n_rounds, 0
    for number in range(n_rounds):
        for prompt in prompts:
            for temperature in temps:
                n += 1
                log.rewrite(f"{COMMAND}: {n} of {n_all}, {prompt.id} at temperature {temperature:g}")
                turn = n % len(measured)
                order = [*measured[turn:], *measured[:turn]]
                before = bench.run(prompt, temperature, seed + number, PLAIN)
                drafted = {one.name: bench.run(prompt, temperature, seed + number, one) for one in order}
                after = bench.run(prompt, temperature, seed + number, PLAIN)
                exact = temperature == 0 or all(one.config is not None and one.config.accept == "exact" for one in measured)
                runs = {one.name: drafted[one.name] for one in measured}
                yield Round(prompt.id, prompt.category, temperature, (before, after), runs, exact)
    log.rewrite("")


def costs(bench: Bench, measured: Sequence[Contender], rounds: Sequence[Round], prompts: Sequence[Prompt]) -> list[Need]:
    """What each drafter needs, from a verify curve of its own depth and its runs at temperature 0 (or the lowest there is)."""
    depths = {one.name: min(bench.drafters(one).n_max, bench.engine.kernels.max_rows - 1) for one in measured}
    ids = bench.tokenizer.encode(prompts[0].turns[0], add_bos=True)[: bench.engine.n_ctx // 2]
    verify = verify_costs(bench.engine, ids, row_counts(min(max(depths.values()), bench.engine.n_ctx - len(ids) - 1)))
    lowest = min(one.temperature for one in rounds)

    def runs(name: str) -> list[Run]:
        return [one.drafted[name] for one in rounds if one.temperature == lowest]

    return [one for name, depth in depths.items() for one in needs(name, verify, runs(name), depth)]


def report(found: Sequence[Cell], asked: Sequence[Need], measured: Sequence[Contender], rounds: Sequence[Round]) -> Iterator[str]:
    """The lines for people."""
    yield from table(found)
    exact = measured[0].config is not None and measured[0].config.accept == "exact"
    yield ""
    yield "Ratio: net speed over the faster of two plain runs in the same round, median and range."
    mode = "exact: the text of plain decoding" if exact else "opportunistic: drafts may decide the text"
    yield f"Above temperature 0 acceptance is {mode}."
    checked = [one.differs(name) for one in rounds for name in one.drafted if one.same_text]
    yield f"Text equal to plain decoding's where it must be: {len(checked) - sum(checked)} of {len(checked)} runs."
    looped = {(one.prompt, one.temperature): why for one in rounds for name in one.drafted if (why := one.loops(name))}
    for (prompt, temperature), why in looped.items():
        yield f"Left out: {prompt} at temperature {temperature:g}, {why}."
    if asked:
        yield f"Acceptance of each guess, given those before it, that pays here (break-even, and {FAST} x):"
    coldest = min(one.temperature for one in found)
    whole = [cell for cell in found if cell.temperature == coldest and cell.category in (EVERY, found[0].category)]
    for sentence in sentences(asked, {cell.drafter: cell.tokens_per_pass for cell in whole if cell.drafted}):
        yield f"  {sentence}"


def write(values: Values, found: Sequence[Cell], asked: Sequence[Need], rounds: Sequence[Round], g: GgufFile) -> None:
    """--csv, --json, --plot."""
    if values.has("csv"):
        with result_file(values.text("csv")) as out:
            out.write("\n".join([CSV_HEADER, *map(csv, found), ""]))
    if values.has("json"):
        with result_file(values.text("json")) as out:
            config = {"model": g.path.name, "gen_tokens": values.integer("gen_tokens"), "seed": values.integer("seed")}
            results = [record(one, name) for one in rounds for name in ("plain", *one.drafted)]
            summary, asks = [asdict(cell) for cell in found], [asdict(one) for one in asked]
            json.dump({"config": config, "summary": summary, "needs": asks, "results": results}, out, indent=2)
    if values.has("plot"):
        draw(found, Path(values.text("plot")), title=str(g.kv.get("general.name", g.path.name)))


def record(one: Round, name: str) -> Mapping[str, Any]:
    """A run with the field names that SPEED-Bench's client writes."""
    run = max(one.plain, key=lambda run: run.tps) if name == "plain" else one.drafted[name]
    return {
        "id": one.prompt,
        "category": one.category,
        "temperature": one.temperature,
        "drafter": name,
        "ok": True,
        "turns": len(run.answers),
        "latency_s": run.prompt_seconds + run.seconds,
        "prompt_tokens": run.prompt_tokens,
        "completion_tokens": run.tokens,
        "total_tokens": run.prompt_tokens + run.tokens,
        "finish_reason": run.finish,
        "draft_n": run.stats.drafted,
        "draft_n_accepted": run.stats.accepted,
        "prompt_ms": 1e3 * run.prompt_seconds,
        "predicted_ms": 1e3 * run.seconds,
        "prompt_per_second": run.prompt_tokens / run.prompt_seconds if run.prompt_seconds else 0.0,
        "predicted_per_second": run.tps,
        "looping": "" if name == "plain" else one.loops(name),
        "error": None,
    }
