"""The scripts in gguf-tools/: `inspect.py`, `split.py`, `merge.py`, `splice.py`.

The idea: each is a parser of a few options and a function over `ds4py.editing`; the frame (`_framed`) turns failures into one
sentence and an exit code, as for the ds4 commands. They use argparse and not the option table, because they share no option with
those commands. The invariant: a file that exists is replaced only with --force, and --dry-run writes nothing.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from ds4py.cli.entry import BROKEN_PIPE, INTERRUPTED
from ds4py.cli.terminal import discard, open_terminal, safe_streams
from ds4py.errors import Ds4Error, UsageError

Body = Callable[[argparse.Namespace], None]


def inspect_main(argv: Sequence[str] | None = None) -> int:
    """Every key and every tensor of a GGUF file."""
    parser = _parser("inspect.py", "List everything a GGUF file holds: every key with its type, every tensor with its place.")
    parser.add_argument("file", help="the file, or any part of a split model")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--full", action="store_true", help="print arrays and texts whole")
    return _framed(parser, argv, _inspect)


def split_main(argv: Sequence[str] | None = None) -> int:
    """One file to several."""
    parser = _parser("split.py", "Split a GGUF file into NAME-00001-of-0000N.gguf and so on.")
    parser.add_argument("file", help="the file to split")
    parser.add_argument("out", help="name of the parts, without number")
    limits = parser.add_mutually_exclusive_group()
    limits.add_argument("--max-size", "--split-max-size", metavar="N(M|G)", help="most bytes of weights in a part, as in 2G")
    limits.add_argument("--max-tensors", "--split-max-tensors", metavar="N", help="most tensors in a part (default 128)")
    parser.add_argument("--no-tensor-first-split", action="store_true", help="the first part holds metadata only")
    _add_writing(parser)
    return _framed(parser, argv, _split)


def merge_main(argv: Sequence[str] | None = None) -> int:
    """Several files to one."""
    parser = _parser("merge.py", "Merge the parts of a split GGUF model into one file.")
    parser.add_argument("file", help="any part of the split model")
    parser.add_argument("out", help="the file to write")
    _add_writing(parser)
    return _framed(parser, argv, _merge)


def splice_main(argv: Sequence[str] | None = None) -> int:
    """Layers of one file into another."""
    parser = _parser("splice.py", "Take tensors of some layers from another file of the same model, as they are stored.")
    parser.add_argument("--base", required=True, metavar="FILE", help="what everything else comes from")
    parser.add_argument("--donor", required=True, metavar="FILE", help="what the layers' tensors come from")
    parser.add_argument("--layers", "--q4-layers", required=True, metavar="LIST", help="layers, as in 37-42 or 0,3,5-8")
    parser.add_argument("--match", metavar="REGEX", help="tensors of those layers, by name (default: the routed experts)")
    parser.add_argument("--out", required=True, metavar="FILE", help="the file to write")
    _add_writing(parser)
    return _framed(parser, argv, _splice)


def _parser(name: str, about: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=name, description=about, allow_abbrev=False)


def _add_writing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="say what would be written, and write nothing")
    parser.add_argument("--force", action="store_true", help="replace what is there under the name")


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _framed(parser: argparse.ArgumentParser, argv: Sequence[str] | None, body: Body) -> int:
    """Parse, run, and give the exit code: 0, 1 for a failure, 2 for a call that cannot be obeyed."""
    safe_streams()
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _stop)  # a terminated run cleans up like an interrupted one
    try:
        body(args)
        sys.stdout.flush()
        return 0
    except BrokenPipeError:
        discard(sys.stdout)
        return BROKEN_PIPE
    except Ds4Error as error:
        sys.stdout.flush()
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted; nothing was left behind", file=sys.stderr)
        return INTERRUPTED


def _inspect(args: argparse.Namespace) -> None:
    from ds4py.editing import describe, lines
    from ds4py.gguf import open_gguf

    found = describe(open_gguf(args.file), args.full)
    out = open_terminal(sys.stdout)
    if args.json:
        out.say(json.dumps(found, ensure_ascii=False, indent=1, allow_nan=False))
        return
    for line in lines(found, args.full):
        out.say(out.foreign(line))


def _split(args: argparse.Namespace) -> None:
    from ds4py.editing import Limit, parse_size, plan_split, sizes, split
    from ds4py.gguf import open_gguf

    n_bytes = parse_size(args.max_size) if args.max_size else 0
    n_tensors = 0 if n_bytes else _positive(args.max_tensors or "128", "--max-tensors")
    g, out, limit = open_gguf(args.file), Path(args.out), Limit(n_tensors, n_bytes, args.no_tensor_first_split)
    files = plan_split(g, out, limit)
    _refuse_existing([path for path, _, _ in files], g.shards, args)
    for path, count, size in sizes(files):
        print(f"{path}: {count:,} tensors, {size:,} bytes")
    if not args.dry_run:
        split(g, out, limit)


def _merge(args: argparse.Namespace) -> None:
    from ds4py.editing import merge
    from ds4py.gguf import open_gguf

    g, out = open_gguf(args.file), Path(args.out)
    _refuse_existing([out], g.shards, args)
    print(f"{out}: {len(g.tensors):,} tensors of {len(g.shards)} files")
    if args.dry_run and len(g.shards) > 1:
        return
    merge(g, out)


def _splice(args: argparse.Namespace) -> None:
    from ds4py.editing import parse_layers, plan_splice, splice
    from ds4py.gguf import open_gguf

    layers, out = parse_layers(args.layers), Path(args.out)
    base, donor = open_gguf(args.base), open_gguf(args.donor)
    _refuse_existing([out], [*base.shards, *donor.shards], args)
    exchanges = plan_splice(base, donor, layers, args.match) if args.match else plan_splice(base, donor, layers)
    for item in exchanges:
        change = f"{item.old.type.name} -> {item.new.type.name}"
        print(f"{item.old.name}: {change}, {item.old.nbytes:,} -> {item.new.nbytes:,} bytes")
    print(f"{out}: {len(exchanges)} of {len(base.tensors)} tensors from {donor.path}")
    if not args.dry_run:
        splice(base, donor, exchanges, out)


def _refuse_existing(outputs: Sequence[Path], sources: Sequence[Path], args: argparse.Namespace) -> None:
    for path in outputs:
        if any(path.exists() and path.samefile(source) for source in sources):
            raise UsageError(f"{path} is one of the files to read: give the output another name")
        if path.exists() and not args.force:
            raise UsageError(f"{path} is there already; --force replaces it")


def _positive(text: str, option: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{option} must be a whole number of at least 1, not {text!r}")
    return int(text)
