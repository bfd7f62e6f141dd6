"""`ds4-eval --spec --url URL`: the same prompts and figures for any server that speaks OpenAI's chat completions, llama-server
for one.

A server that drafts is compared with one that does not: a second server (--baseline-url), the same server asked not to draft
(--baseline-inputs, extra fields of the request), or what an earlier run wrote with --json (--baseline FILE). The first two are
asked in turns, before and after, and the faster counts. Acceptance is what the server tells in `timings` and in /metrics.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from ds4py.cli.eval.breakeven import FAST
from ds4py.cli.eval.cells import EVERY, Cell
from ds4py.cli.eval.choices import prompts_of, temperatures
from ds4py.cli.eval.client import Server
from ds4py.cli.eval.plot import draw
from ds4py.cli.eval.prompts import Prompt
from ds4py.cli.eval.report import CSV_HEADER, csv, table
from ds4py.cli.eval.samples import Sample, from_record, sample, server_cells
from ds4py.cli.files import read_text, result_file
from ds4py.cli.parsing import Values
from ds4py.cli.terminal import open_terminal
from ds4py.errors import FormatError, UsageError

COMMAND: Final = "ds4-eval"


def server_eval(values: Values) -> int:
    """Measure; a table to standard output, --csv, --json and --plot as asked. 1 if a request failed."""
    if values.has("plot"):
        from ds4py.cli.plot import require_matplotlib

        require_matplotlib()
    key, timeout = values.text("api_key") if values.has("api_key") else "", values.number("timeout")
    server = Server(values.text("url"), key, timeout)
    plain = Server(values.text("baseline_url"), key, timeout) if values.has("baseline_url") else server
    bodies = {side: body_of(values, side, target) for side, target in (("speculative", server), ("baseline", plain))}
    live = values.has("baseline_url") or values.has("baseline_inputs")
    recorded = [] if live or not values.has("baseline") else read_baseline(values.text("baseline"))
    prompts, temps = prompts_of(values), temperatures(values)
    jobs = [
        (prompt, temperature, values.integer("seed") + number)
        for number in range(values.integer("rounds"))
        for prompt in prompts
        for temperature in temps
    ]
    samples, baseline = play(server, plain if live else None, jobs, bodies)
    baseline = baseline or recorded
    found = list(server_cells(samples, baseline))
    print("\n".join(report(found, samples, baseline)))
    write(values, found, [*samples, *(baseline if live else [])])
    return 0 if all(one.ok for one in [*samples, *baseline]) else 1


def body_of(values: Values, side: str, server: Server) -> Mapping[str, Any]:
    """Fields that every request of one side has. UsageError for extra inputs that are no JSON object."""
    body: dict[str, Any] = {"max_tokens": values.integer("gen_tokens")}
    body["model"] = values.text("server_model") if values.has("server_model") else server.model()
    for option in ("extra_inputs", "baseline_inputs"):
        if not values.has(option) or (option == "baseline_inputs" and side != "baseline"):
            continue
        try:
            extra = json.loads(values.text(option))
        except ValueError:
            extra = None
        if not isinstance(extra, dict):
            raise UsageError(f"--{option.replace('_', '-')} takes a JSON object such as '{{\"min_p\": 0.05}}'")
        body |= extra
    return body


def read_baseline(path: str) -> list[Sample]:
    """The samples of an earlier run's --json. FormatError if it holds none."""
    try:
        rows = json.loads(read_text(path))["results"]
        found = [from_record(row) for row in rows]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise FormatError(f"{path} is not what ds4-eval --url --json writes") from None
    return [one for one in found if one.side == "speculative"]


def play(
    server: Server,
    plain: Server | None,
    jobs: Sequence[tuple[Prompt, float, int]],
    bodies: Mapping[str, Mapping[str, Any]],
) -> tuple[list[Sample], list[Sample]]:
    """The samples of both sides; `plain` is asked before and after each of `server`'s. The first prompt is asked once before."""
    log = open_terminal(sys.stderr)
    samples: list[Sample] = []
    baseline: list[Sample] = []
    for side, target in (("speculative", server), ("baseline", plain)):
        if target is not None:
            sample(target, jobs[0][0], *jobs[0][1:], side, bodies[side])
    for n, (prompt, temperature, seed) in enumerate(jobs, 1):
        log.rewrite(f"{COMMAND}: {n} of {len(jobs)}, {prompt.id} at temperature {temperature:g}")
        if plain is not None:
            baseline.append(sample(plain, prompt, temperature, seed, "baseline", bodies["baseline"]))
        samples.append(sample(server, prompt, temperature, seed, "speculative", bodies["speculative"]))
        if plain is not None:
            baseline.append(sample(plain, prompt, temperature, seed, "baseline", bodies["baseline"]))
    log.rewrite("")
    return samples, baseline


def report(found: Sequence[Cell], samples: Sequence[Sample], baseline: Sequence[Sample]) -> Iterator[str]:
    """The lines for people."""
    yield from table(found)
    yield ""
    if baseline:
        yield "Ratio: speed over the faster baseline answer to the same prompt, median and range."
        plain = {one.key: one.text for one in baseline if one.ok}
        cold = [one for one in samples if one.ok and one.temperature == 0 and one.key in plain]
        same = sum(one.text == plain[one.key] for one in cold)
        if cold:
            yield f"Text equal to the baseline's at temperature 0: {same} of {len(cold)} answers."
    else:
        yield "No baseline: give --baseline-url, --baseline-inputs or --baseline FILE to see what drafting gains."
    if not any(one.draft_n for one in samples):
        yield "The server told of no drafted tokens."
    for one in samples:
        if one.looping:
            yield f"Left out: {one.id} at temperature {one.temperature:g}, {one.looping}."
    for one in [*samples, *baseline]:
        if not one.ok:
            yield f"Failed: {one.id} at temperature {one.temperature:g} ({one.side}): {one.error}"
    yield from break_even(found)


def break_even(found: Sequence[Cell]) -> Iterator[str]:
    """What a pass of the server costs follows from its speed: tokens a pass over the ratio."""
    single = len({cell.category for cell in found}) == 1
    for cell in found:
        if cell.ratio and cell.drafted and (single or cell.category == EVERY):
            cost = cell.tokens_per_pass / cell.ratio
            yield (
                f"At temperature {cell.temperature:g} a pass costs {cost:.2f} plain tokens: it must commit {cost:.2f} to break "
                f"even, {FAST * cost:.2f} to be {FAST} x as fast, and committed {cell.tokens_per_pass:.2f}."
            )


def write(values: Values, found: Sequence[Cell], samples: Sequence[Sample]) -> None:
    """--csv, --json, --plot."""
    if values.has("csv"):
        with result_file(values.text("csv")) as out:
            out.write("\n".join([CSV_HEADER, *map(csv, found), ""]))
    if values.has("json"):
        with result_file(values.text("json")) as out:
            config = {name: values.text(name) for name in ("url", "baseline_url", "temps") if values.has(name)}
            results = [one.record() for one in samples]
            failed = sum(not one.ok for one in samples)
            counts = {"completed_samples": len(samples) - failed, "failed_samples": failed}
            content = {"config": config, **counts, "summary": [asdict(cell) for cell in found], "results": results}
            json.dump(content, out, indent=2)
    if values.has("plot"):
        draw(found, Path(values.text("plot")), title=values.text("url"))
