"""What can be said about a command line before it is parsed: help, refusals, order, and options that may stand alone.

The idea: one walk over the arguments, which knows from the table which options take a value, so that the word after `-p` is
text even when it reads `--help`. It answers `--help [TOPIC]` and refuses what this build cannot do before typer (and pydantic
under it) is imported, and it hands on a plain argument list that typer understands: `-fa` becomes `--flash-attn=on`, `-1` stays
a value. Invariant: whatever this walk does not recognise is passed on untouched; finding errors of spelling is the parser's
work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ds4py.cli.option import Option
from ds4py.cli.options import for_command, normalise, spellings
from ds4py.errors import UsageError


class RefusedOption(UsageError):
    """An option that exists, and that this build does not obey: its sentence says all, a usage line would add nothing."""


@dataclass(frozen=True)
class Scan:
    """`args` for the parser; `given`: row names in the order met; `topic`: not None when help is asked ("" = default)."""

    args: tuple[str, ...]
    given: tuple[str, ...]
    topic: str | None = None


def scan(command: str, argv: Sequence[str]) -> Scan:
    """Walk `argv` (without the program's name). RefusedOption for one that this build does not obey."""
    known = spellings(for_command(command))
    args: list[str] = []
    given: list[str] = []
    words = list(argv)
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            args += [word, *words[at:]]
            break
        spelling, equals, value = word.partition("=")
        option = known.get(normalise(spelling)) if word.startswith("-") else None
        if option is None:
            args.append(word)
            given += _short_with_value(word, known)
            continue
        following = words[at] if at < len(words) else None
        if option.name == "--help":
            return Scan((), (), value if equals else _topic(following))
        if option.status in ("later", "never"):
            raise RefusedOption(option.refusal(spelling))
        given.append(option.name)
        if equals or not option.takes_value:
            args.append(word)
        elif option.bare is not None and following not in option.choices:
            args.append(f"{option.name}={option.bare}")
        else:
            args += [word] if following is None else [word, following]
            at += following is not None
    return Scan(tuple(args), tuple(given))


def _topic(following: str | None) -> str:
    return following if following is not None and not following.startswith("-") else ""


def _short_with_value(word: str, known: dict[str, Option]) -> list[str]:
    """`-c4096` gives -c: the row's name if `word` is a one-letter option with its value attached."""
    option = known.get(word[:2]) if word[:1] == "-" and word[1:2] != "-" else None
    return [option.name] if option is not None and option.takes_value else []
