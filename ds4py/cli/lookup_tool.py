"""gguf-tools/lookup.py: files for `-lcs` and `-lcd`, made of texts or of each other.

`create` counts which token follows which two in a corpus, as llama.cpp's static caches do: what holds for a language or a code
base, at a fifth of the size that all n-grams take. `merge` adds counts. An output that is there is replaced only with --force,
and an input may not be the output, so nothing is lost by a slip. A cache that is larger than what is read loses its rarest
n-grams.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ds4py.drafters.lookup_file import MAX_FILE_BYTES, MAX_N, LookupCache, pack, push, read_lookup_cache, write_lookup_cache
from ds4py.drafters.ngram_cache import STATIC_N
from ds4py.errors import Ds4Error, UsageError

_ANY_VOCABULARY = (1 << 31) - 1  # merging knows no model; whoever reads the result checks it


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 for a failure, 2 for a call that cannot be obeyed."""
    parser = argparse.ArgumentParser(prog="lookup.py", description="Make lookup caches for ngram-cache (-lcs, -lcd).")
    commands = parser.add_subparsers(required=True, metavar="create|merge")
    create = commands.add_parser("create", help="count the n-grams of texts", allow_abbrev=False)
    create.add_argument("-m", "--model", type=Path, required=True, metavar="FILE", help="the GGUF whose tokenizer is used")
    create.add_argument("-f", "--file", type=Path, required=True, nargs="+", metavar="TEXT", help="texts in UTF-8")
    create.add_argument("--sizes", default=str(STATIC_N), help=f"lengths of the n-grams, as in 1-{MAX_N} (default {STATIC_N})")
    _add_output(create, "-lcs", "--lookup-cache-static")
    create.set_defaults(run=_create)
    merge = commands.add_parser("merge", help="add the counts of several caches", allow_abbrev=False)
    merge.add_argument("caches", type=Path, nargs="+", metavar="CACHE", help="the caches to add up")
    _add_output(merge)
    merge.set_defaults(run=_merge)
    args = parser.parse_args(argv)
    try:
        cache = args.run(args)
        cache.forget_rarest(MAX_FILE_BYTES)
        write_lookup_cache(args.out, cache)
    except Ds4Error as error:
        print(f"lookup.py: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("lookup.py: interrupted; nothing was left behind", file=sys.stderr)
        return 130
    print(f"{args.out}: {len(cache):,} n-grams, {args.out.stat().st_size:,} bytes")
    return 0


def count(cache: LookupCache, tokens: Sequence[int], sizes: Sequence[int]) -> None:
    """Add what followed every n-gram of the given lengths in `tokens`."""
    packed = pack(())
    for pos, token in enumerate(tokens):
        for n in sizes:
            if n <= pos:
                cache.add(packed, n, token)
        packed = push(packed, token)


def _add_output(parser: argparse.ArgumentParser, *more: str) -> None:
    parser.add_argument("-o", "--out", *more, dest="out", type=Path, required=True, metavar="FILE", help="the cache to write")
    parser.add_argument("--force", action="store_true", help="replace what is there under the name")


def _create(args: argparse.Namespace) -> LookupCache:
    from ds4py.cli.files import read_text
    from ds4py.gguf import open_gguf
    from ds4py.tokenizer import load_tokenizer

    sizes = _sizes(args.sizes)
    _check_output(args.out, [args.model, *args.file], args.force)
    tokenizer = load_tokenizer(open_gguf(args.model))
    cache = LookupCache()
    for path in args.file:
        count(cache, tokenizer.encode(read_text(str(path))), sizes)
    return cache


def _merge(args: argparse.Namespace) -> LookupCache:
    _check_output(args.out, args.caches, args.force)
    cache = LookupCache()
    for path in args.caches:
        cache.merge(read_lookup_cache(path, _ANY_VOCABULARY))
    return cache


def _sizes(text: str) -> list[int]:
    low, _, high = text.partition("-")
    if not (low.isdecimal() and (high or low).isdecimal() and 1 <= int(low) <= int(high or low) <= MAX_N):
        raise UsageError(f"--sizes takes one length or a range within 1-{MAX_N}, not {text!r}")
    return list(range(int(low), int(high or low) + 1))


def _check_output(out: Path, inputs: Sequence[Path], force: bool) -> None:
    for path in inputs:
        if out.exists() and path.exists() and out.samefile(path):
            raise UsageError(f"{out} is one of the files to read: give the output another name")
    if out.exists() and not force:
        raise UsageError(f"{out} is there already; --force replaces it")
