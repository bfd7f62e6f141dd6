"""`ds4-quantize IN OUT --type NAME`, or llama-quantize's `IN OUT NAME [THREADS]`: a model to a smaller GGUF file.

The idea: the command line becomes `quantize.Options`, the plan decides everything, and this module only tells: the plan with
`--dry-run` (standard output), else one line that is rewritten on a terminal and a summary (standard error). Every tensor that did
not get what was asked is named. IN is a GGUF file or a Hugging Face folder, which is converted while it is read; a folder that
also holds what drafts for its model gives a second file with --dspark-out, by the same recipe.
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
from ds4py.errors import ResourceError, UsageError

if TYPE_CHECKING:
    from ds4py.gguf import GgmlType, GgufFile
    from ds4py.quantize import Imatrix, Job, Options, Plan, Rule

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
    from ds4py.quantize import is_finished, output_paths, read_imatrix

    imatrix = read_imatrix(values.text("imatrix")) if values.has("imatrix") else None
    files = [_open(values, source, log), *([_open_support(source)] if values.has("dspark_out") else [])]
    ours, *drafts = _rules(values, files)
    work = [(_job(values, files[0], ours, imatrix), target)]
    if drafts:  # no importance matrix was collected on it
        work.append((_job(values, files[1], drafts[0], None), Path(values.text("dspark_out"))))
    paths = [path for job, path in work for path in output_paths(job, path)]
    _check_outputs(paths, [shard for job, _ in work for shard in job.g.shards])
    resume = values.flag("resume")
    finished = {path for job, path in work if resume and is_finished(job, path)}
    for job, path in work:
        _check_imatrix(job, values.flag("imatrix_strict"))
        if resume and path.exists() and path not in finished:
            raise ResourceError(f"{path} is there already and is another file; --resume goes on, it does not replace: delete it")
    for job, path in work:
        if values.flag("dry_run"):
            _show(job, path, out)
        elif path in finished:
            log.say(f"{COMMAND}: {path} was finished before")
        else:
            _quantize(job, path, log, resume)
    return 0


def _job(values: Values, g: GgufFile, rules: Sequence[Rule], imatrix: Imatrix | None) -> Job:
    from ds4py.quantize import Job, make_plan, metadata, override

    overrides = dict(map(override, values.texts("override_kv")))
    plan = make_plan(g, _options(values, g, rules), imatrix is not None)
    return Job(g, plan, metadata(g, plan, imatrix, overrides), imatrix, _threads(values), values.flag("keep_split"))


def _is_checkpoint(source: Path) -> bool:
    return (source / "config.json").is_file()


def _open(values: Values, source: Path, log: Terminal) -> GgufFile:
    """A GGUF file, or a checkpoint folder as one."""
    if _is_checkpoint(source):
        from ds4py.convert import Options, open_folder

        if values.flag("keep_split"):
            raise UsageError("--keep-split is for split GGUF files; a Hugging Face folder becomes one file")
        g = open_folder(source, Options(outtype="exact"))
    else:
        from ds4py.gguf import open_gguf

        g = open_gguf(source)
    for note in g.notes:
        log.say(f"{COMMAND}: {note}")
    return g


def _open_support(source: Path) -> GgufFile:
    """What drafts for the model of a checkpoint folder."""
    if not _is_checkpoint(source):
        raise UsageError(f"--dspark-out needs a Hugging Face folder to read the draft from; {source} is none")
    from ds4py.convert import Options, open_folder

    return open_folder(source, Options(outtype="exact"), support=True)


def _show(job: Job, target: Path, out: Terminal) -> None:
    """The plan, instead of carrying it out."""
    from ds4py.quantize import output_size

    _print_plan(job.plan, out)
    _summary(job.plan, job.imatrix, out)
    size = output_size(job, target)
    out.say(f"{job.g.path.name}: {job.g.nbytes:,} bytes -> {target.name}: {size:,} bytes; nothing was written")


def _quantize(job: Job, target: Path, log: Terminal, resume: bool) -> None:
    from ds4py.gguf import partial_path
    from ds4py.quantize import run

    begun = time.monotonic()

    def progress(done: int, total: int, name: str) -> None:
        log.rewrite(f"{COMMAND}: {100 * done // max(total, 1)} %, {_megabytes(done)} of {_megabytes(total)}, {name}")

    try:
        written = run(job, target, progress, resume)
    except BaseException:
        log.rewrite("")
        if resume and partial_path(target).exists():
            log.say(f"{COMMAND}: what is done is kept in {partial_path(target)}; the same command goes on from there")
        raise
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


def _rules(values: Values, files: Sequence[GgufFile]) -> list[list[Rule]]:
    """The rules of each file: all of them for one file alone; of two, each gets those that fit a tensor of it."""
    from ds4py.quantize import Rule

    rules = list(map(Rule.parse, values.texts("tensor_type")))
    if len(files) == 1:
        return [rules]
    own = [[rule for rule in rules if any(map(rule.fits, g.tensors))] for g in files]
    idle = [rule for rule in rules if not any(rule in some for some in own)]
    if idle:
        raise UsageError(f"--tensor-type {idle[0]} matches no tensor of either file")
    return own


def _options(values: Values, g: GgufFile, rules: Sequence[Rule]) -> Options:
    """Weights that a checkpoint was released with are no copy of finer ones, so packing them again is no second loss."""
    from ds4py.quantize import Options, recipe, tensor_type

    def kind(option: str) -> GgmlType | None:
        key = option.lstrip("-").replace("-", "_")
        return tensor_type(values.text(key), option) if values.has(key) else None

    if not values.has("type") and len(values.words) < 3:
        raise UsageError("give the type to make with --type NAME; --list shows all")
    return Options(
        recipe(values.text("type") if values.has("type") else values.words[2]),
        tuple(rules),
        kind("--output-tensor-type"),
        kind("--token-embedding-type"),
        values.flag("leave_output_tensor"),
        values.flag("pure"),
        values.flag("allow_requantize") or _is_checkpoint(g.path),
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


def _check_imatrix(job: Job, strict: bool) -> None:
    """Find out now, and not after an hour, that the matrix is another model's, or (strict) that it lacks a tensor."""
    from ds4py.errors import FormatError

    for item in job.plan.tensors:
        if job.imatrix is None or not item.changes:
            continue
        found = job.imatrix.importance(item.tensor.name, item.n_mat, item.tensor.row_len)
        if strict and found is None and item.type.block_len > 1 and item.type.name != "Q8_0":
            raise FormatError(f"{job.imatrix.path}: there is no entry for {item.tensor.name}, and --imatrix-strict asks for one")


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
