"""`ds4-quantize IN OUT --type NAME`, or llama-quantize's `IN OUT NAME [THREADS]`: one GGUF file to a smaller one.

The idea: the command line becomes `quantize.Options`, the plan decides everything, and this module only tells: the plan with
`--dry-run` (standard output), else one line that is rewritten on a terminal and a summary (standard error). Every tensor that did
not get what was asked is named.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ds4py.cli.argv import Scan
from ds4py.cli.entry import run_command
from ds4py.cli.parsing import Values, finish
from ds4py.cli.terminal import Terminal, open_terminal
from ds4py.errors import UsageError

if TYPE_CHECKING:
    from ds4py.gguf import GgmlType
    from ds4py.quantize import Imatrix, Job, Options, Plan

COMMAND = "ds4-quantize"
_MOST_NAMED = 12  # tensors listed in a summary before "and N more"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ds4-quantize; returns the exit code."""
    signal.signal(signal.SIGTERM, _stop)  # a terminated run cleans up like an interrupted one
    return run_command(COMMAND, argv, _run)


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _run(found: Scan) -> int:
    values = finish(COMMAND, found)
    out, log = open_terminal(sys.stdout), open_terminal(sys.stderr)
    if values.flag("list"):
        out.write(_listing())
        return 0
    source, target = _files(values)
    from ds4py.gguf import open_gguf
    from ds4py.quantize import Job, make_plan, metadata, output_paths, output_size, override, read_imatrix

    options = _options(values)
    overrides = dict(map(override, values.texts("override_kv")))
    g = open_gguf(source)
    for note in g.notes:
        log.say(f"{COMMAND}: {note}")
    imatrix = read_imatrix(values.text("imatrix")) if values.has("imatrix") else None
    plan = make_plan(g, options, imatrix is not None)
    kv = metadata(g, plan, imatrix, overrides)
    job = Job(g, plan, kv, imatrix, _threads(values), values.flag("keep_split"))
    _check_outputs(output_paths(job, target), g.shards)
    _check_imatrix(job)
    if values.flag("dry_run"):
        _print_plan(plan, out)
        _summary(plan, imatrix, out)
        out.say(f"{g.path.name}: {g.nbytes:,} bytes -> {target.name}: {output_size(job, target):,} bytes; nothing was written")
        return 0
    _quantize(job, target, log)
    return 0


def _quantize(job: Job, target: Path, log: Terminal) -> None:
    from ds4py.quantize import run

    begun = time.monotonic()

    def progress(done: int, total: int, name: str) -> None:
        log.rewrite(f"{COMMAND}: {100 * done // max(total, 1)} %, {_megabytes(done)} of {_megabytes(total)}, {name}")

    try:
        written = run(job, target, progress)
    finally:
        log.rewrite("")
    _summary(job.plan, job.imatrix, log)
    _named("without an entry in the importance matrix", job.unweighted, log)
    n_bytes, seconds = sum(path.stat().st_size for path in written), time.monotonic() - begun
    speed = job.g.nbytes / 1e6 / max(seconds, 1e-3)
    files = f"{len(written)} files, the first is {written[0]}" if len(written) > 1 else str(written[0])
    log.say(f"{COMMAND}: {_megabytes(job.g.nbytes)} -> {_megabytes(n_bytes)} in {seconds:.1f} s ({speed:.0f} MB/s): {files}")


def _files(values: Values) -> tuple[Path, Path]:
    """IN and OUT. UsageError where one is missing."""
    if len(values.words) < 2:
        raise UsageError("give the file to read and the file to write")
    if values.has("type") and len(values.words) > 2:
        raise UsageError(f"unexpected argument {values.words[2]!r}: --type says the type already")
    return Path(values.words[0]), Path(values.words[1])


def _options(values: Values) -> Options:
    from ds4py.quantize import Options, Rule, recipe, tensor_type

    def kind(option: str) -> GgmlType | None:
        key = option.lstrip("-").replace("-", "_")
        return tensor_type(values.text(key), option) if values.has(key) else None

    if not values.has("type") and len(values.words) < 3:
        raise UsageError("give the type to make with --type NAME; --list shows all")
    return Options(
        recipe(values.text("type") if values.has("type") else values.words[2]),
        tuple(map(Rule.parse, values.texts("tensor_type"))),
        kind("--output-tensor-type"),
        kind("--token-embedding-type"),
        values.flag("leave_output_tensor"),
        values.flag("pure"),
        values.flag("allow_requantize"),
        values.flag("strict"),
    )


def _threads(values: Values) -> int:
    if values.has("threads"):
        return values.integer("threads")
    if len(values.words) > 3:
        text = values.words[3]
        if not text.isdecimal() or not 1 <= int(text) <= 1024:
            raise UsageError(f"the number of threads must be a whole number from 1 to 1024, not {text!r}")
        return int(text)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_outputs(outputs: Sequence[Path], sources: Sequence[Path]) -> None:
    for path in outputs:
        if path.is_dir():
            raise UsageError(f"{path} is a folder: give the output a name in it")
        if path.exists() and any(path.samefile(source) for source in sources):
            raise UsageError(f"{path} is a file to read: give the output another name")


def _check_imatrix(job: Job) -> None:
    """Find out now, and not after an hour, that the matrix was made for another model."""
    for item in job.plan.tensors:
        if job.imatrix is not None and item.changes:
            job.imatrix.importance(item.tensor.name, item.n_mat, item.tensor.row_len)


def _print_plan(plan: Plan, out: Terminal) -> None:
    width = max((len(item.tensor.name) for item in plan.tensors), default=0)
    for item in plan.tensors:
        shape = " x ".join(map(str, item.tensor.shape))
        change = f"{item.tensor.type.name} -> {item.type.name}" if item.changes else f"{item.type.name}, kept"
        note = f"  (wanted {item.wanted.name})" if item.fell_back else f"  ({item.rule})" if item.rule else ""
        name = out.foreign(item.tensor.name)
        out.say(f"{name:<{width}}  {shape:>20}  {change:<16}  {item.tensor.nbytes:>15,} -> {item.nbytes:>15,}{note}")


def _summary(plan: Plan, imatrix: Imatrix | None, out: Terminal) -> None:
    counts: dict[str, int] = {}
    for item in plan.tensors:
        counts[item.type.name] = counts.get(item.type.name, 0) + 1
    out.say(f"{COMMAND}: {plan.options.recipe.name}: " + ", ".join(f"{n} x {name}" for name, n in counts.items()))
    if imatrix is not None:
        out.say(f"{COMMAND}: importance from {imatrix.path}: {len(imatrix.entries)} entries")
    for item in plan.fallbacks:
        why = f"rows of {item.tensor.row_len:,} are not whole blocks of {item.wanted.name}"
        out.say(f"{COMMAND}: {out.foreign(item.tensor.name)}: {why}: {item.type.name} instead")
    if plan.fallbacks:
        out.say(f"{COMMAND}: {len(plan.fallbacks)} of {len(plan.tensors)} tensors could not have the type asked")


def _named(what: str, names: Sequence[str], out: Terminal) -> None:
    if names:
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        listed = out.foreign(", ".join(names[:_MOST_NAMED]))
        out.say(f"{COMMAND}: {len(names)} tensor(s) {what}: {listed}{more}")


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:,.1f} MB"


def _listing() -> str:
    from ds4py.quantize import RECIPES

    width = max(map(len, RECIPES))
    return "".join(f"{name:<{width}}  {row.about}\n" for name, row in RECIPES.items())


if __name__ == "__main__":
    sys.exit(main())
