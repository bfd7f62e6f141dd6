"""`ds4-convert FOLDER`: a Hugging Face checkpoint to one GGUF file.

The idea: a plan first, with everything that can be wrong with the folder found, then the writing. `--dry-run` prints the plan
and stops. The plan goes to standard output, progress and remarks to standard error.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ds4py.cli.argv import Scan
from ds4py.cli.entry import run_command
from ds4py.cli.parsing import Values, finish
from ds4py.cli.terminal import open_terminal
from ds4py.errors import ResourceError, UsageError

if TYPE_CHECKING:
    from ds4py.convert import Options, Plan

COMMAND = "ds4-convert"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ds4-convert; returns the exit code."""
    signal.signal(signal.SIGTERM, _stop)  # a terminated run cleans up like an interrupted one
    return run_command(COMMAND, argv, _run)


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _run(found: Scan) -> int:
    values = finish(COMMAND, found)
    if not values.words:
        raise UsageError("which folder? Give the one that holds config.json and the safetensors files")
    from ds4py.convert import is_finished, make_plan, make_support_plan

    folder, options = Path(values.words[0]), _options(values)
    target = Path(values.text("outfile")) if values.has("outfile") else folder / _file_name(folder, values)
    work = [(make_plan(folder, options), target)]
    if values.has("dspark_out"):
        work.append((make_support_plan(folder, options), Path(values.text("dspark_out"))))
    resume, finished = values.flag("resume"), set[Path]()
    for plan, path in work:
        for note in plan.notes:
            print(f"{COMMAND}: {note}", file=sys.stderr)
        if values.flag("dry_run"):
            print(listing(plan))
        if resume and is_finished(plan, path):
            finished.add(path)
        elif path.exists() and not values.flag("overwrite"):
            raise ResourceError(f"{path} is there already; --overwrite replaces it")
    for plan, path in work:
        if path in finished:
            print(f"{COMMAND}: {path} was finished before", file=sys.stderr)
        elif not values.flag("dry_run"):
            write(plan, path, resume)
        print(f"{path}: {plan.architecture}, {len(plan.items)} tensors, {plan.nbytes / 1e6:,.1f} MB of weights")
    return 0


def _options(values: Values) -> Options:
    from ds4py.convert import Options

    return Options(
        outtype=values.text("outtype"),
        name=values.text("model_name") if values.has("model_name") else "",
        pre_tokenizer=values.text("pre_tokenizer") if values.has("pre_tokenizer") else "",
        drop=values.texts("drop"),
        vocab_only=values.flag("vocab_only"),
        target=Path(values.text("target_model_dir")) if values.has("target_model_dir") else None,
    )


def _file_name(folder: Path, values: Values) -> str:
    kind = "vocab" if values.flag("vocab_only") else values.text("outtype")
    return f"{folder.resolve().name}-{kind}.gguf".replace("-auto.", ".")


def listing(plan: Plan) -> str:
    """Every tensor with its shape, type, size and source, for people."""
    width = max((len(item.name) for item in plan.items), default=0)
    lines = [
        f"{item.name:<{width}}  {' x '.join(map(str, item.shape)):>16}  {item.type.name:<5} {item.nbytes / 1e6:>10,.2f} MB  "
        f"{item.source}"
        for item in plan.items
    ]
    return "\n".join(lines)


def write(plan: Plan, target: Path, resume: bool = False) -> None:
    """Write the file with a line of progress on a terminal; nothing is left when it is stopped, or all of it if it may go on."""
    from ds4py.convert import write_plan
    from ds4py.gguf import partial_path

    terminal = open_terminal(sys.stderr)

    def progress(done: int, total: int, name: str) -> None:
        terminal.rewrite(f"{COMMAND}: {done / max(total, 1):4.0%} of {total / 1e6:,.0f} MB  {name}" if name else "")

    try:
        write_plan(plan, target, progress, resume)
    except KeyboardInterrupt:
        terminal.rewrite("")
        kept = f"what is done is kept in {partial_path(target)}; the same command goes on from there" if resume else ""
        print(f"{COMMAND}: interrupted; {kept or 'nothing was kept'}", file=sys.stderr)
        raise
    finally:
        terminal.rewrite("")


if __name__ == "__main__":
    sys.exit(main())
