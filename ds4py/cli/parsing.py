"""From a command line to checked values: a typer command generated from the option table.

The idea: typer splits the words and reads the environment; what a value means (type, range, choices, the sentence when it is
wrong) is decided here from the same row that made the typer option, so every error names the flag and its range. The generated
command holds only the rows that this command line or the environment mentions: typer builds a pydantic adapter per option, a
quarter of a second for the whole table, and an option that nobody names only needs its default. Rejected: typer's own
types and min/max, whose messages differ by kind of option and which would start the same adapters.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from ds4py.cli.argv import RefusedOption, Scan, scan
from ds4py.cli.option import Option, Value
from ds4py.cli.options import EXCLUSIVE, WORDS, for_command, nearest, normalise, spellings
from ds4py.errors import UsageError

Checked = Value | tuple[Value, ...] | None


@dataclass(frozen=True)
class Values:
    """Checked values by row key (`--top-p` is "top_p"). `given` lists the names set on the command line, in order, then those set
    by the environment; getters return the default of a row that is not among them."""

    command: str
    table: Mapping[str, Checked]
    given: tuple[str, ...]
    words: tuple[str, ...] = ()  # arguments that belong to no option

    def was_given(self, name: str) -> bool:
        return name in self.given

    def last_given(self, *names: str) -> str | None:
        """Of several options that override each other, the one that stands last."""
        return next((name for name in reversed(self.given) if name in names), None)

    def flag(self, key: str) -> bool:
        return bool(self.table[key])

    def integer(self, key: str) -> int:
        value = self.table[key]
        if isinstance(value, int):
            return value
        raise TypeError(f"{key} has no whole number")

    def number(self, key: str) -> float:
        value = self.table[key]
        if isinstance(value, int | float):
            return float(value)
        raise TypeError(f"{key} has no number")

    def text(self, key: str) -> str:
        value = self.table[key]
        if isinstance(value, str):
            return value
        raise TypeError(f"{key} has no text")

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.table[key]
        return tuple(str(item) for item in value) if isinstance(value, tuple) else ()

    def has(self, key: str) -> bool:
        """Whether it has a value; a row that this command does not take has none."""
        return self.table.get(key) is not None


def parse(command: str, argv: Sequence[str]) -> Values:
    """Check `argv` (without the program's name) against the table. UsageError with one sentence when it cannot be obeyed.
    `--help` must have been answered by then (see `argv.scan`)."""
    return finish(command, scan(command, argv))


def finish(command: str, found: Scan) -> Values:
    """The parse after the walk: typer's split, the checks of each value, and the options that exclude each other."""
    rows = tuple(option for option in for_command(command) if option.name != "--help")
    from_env = tuple(option.name for option in rows if option.name not in found.given and _environment(option) is not None)
    for option in rows:
        if option.name in from_env and option.status in ("later", "never"):
            raise RefusedOption(option.refusal(f"{_env_name(option)} (an environment name of {option.name})"))
    given = (*found.given, *from_env)
    raw = split([option for option in rows if option.name in given], found.args, command)
    table = {option.key: _checked(option, raw.get(option.key), option.name in from_env) for option in rows}
    for group in EXCLUSIVE.get(command, ()):
        both = [name for name in group if name in given]
        if len(set(both)) > 1:
            raise UsageError(f"{both[0]} and {both[1]} cannot be used together; give one of them")
    return Values(command, table, given, tuple(raw.get("words", ())))


def typer_command(options: Sequence[Option], body: Callable[..., Any]) -> Any:
    """A typer app of one command whose parameters are `options`; it calls `body` with a value or None per
    row key, and the arguments that belong to no option under "words"."""
    import typer

    def parameter(option: Option) -> inspect.Parameter:
        annotation: Any = bool if option.kind == "flag" else list[str] if option.repeat else str | None
        declared = typer.Option(*option.names, metavar=option.metavar or None, help=option.help, envvar=list(option.env) or None)
        default: Any = False if option.kind == "flag" else [] if option.repeat else None
        return inspect.Parameter(
            option.key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, declared]
        )

    def command(**values: Any) -> Any:
        return body(values)

    words = inspect.Parameter(
        "words", inspect.Parameter.KEYWORD_ONLY, default=[], annotation=Annotated[list[str], typer.Argument()]
    )
    command.__signature__ = inspect.Signature([words, *map(parameter, options)])  # type: ignore[attr-defined]
    command.__annotations__ = {}
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(context_settings={"help_option_names": [], "token_normalize_func": normalise_name})(command)
    return app


def normalise_name(name: str) -> str:
    """typer hands option names without their dashes."""
    return name.replace("_", "-")


def split(options: Sequence[Option], args: Sequence[str], command: str) -> dict[str, Any]:
    """typer's reading of `args`: row key -> text, list of texts, bool or None. UsageError for spelling errors."""
    if not options and not args:
        return {}  # spares plain `ds4` the import
    result: dict[str, Any] = {}
    try:
        typer_command(options, result.update)(list(args), standalone_mode=False)
    except Exception as error:
        if not hasattr(error, "format_message"):  # how typer's complaints are known: its versions call their class differently
            raise
        raise UsageError(_spelling_error(error, args, command)) from None
    extra = result.get("words", [])[WORDS.get(command, 0) :]
    if extra:
        raise UsageError(f"unexpected argument {extra[0]!r}" + ("; a prompt is given with -p" if command == "ds4" else ""))
    return result


def _spelling_error(error: Exception, args: Sequence[str], command: str) -> str:
    """typer's complaint as our sentence."""
    name = str(getattr(error, "option_name", ""))
    if not name:
        return str(getattr(error, "message", error))
    known = spellings(for_command(command))
    option = known.get(normalise(name))
    if option is not None:
        if option.takes_value:
            return f"{name} needs a value: {name} {option.metavar or 'VALUE'}"
        return f"{name} takes no value"
    word = next((word for word in args if word.startswith(name)), name).partition("=")[0]
    meant = nearest(normalise(word), known)
    return f"unknown option {word}" + (f"; did you mean {meant}?" if meant else "")


def _env_name(option: Option) -> str:
    return next((name for name in option.env if os.environ.get(name)), "")


def _environment(option: Option) -> str | None:
    """The text of the first environment name of the row that is set and not empty; "0" and "false" leave a flag alone."""
    text = os.environ.get(_env_name(option)) if option.env else None
    if option.kind == "flag" and text is not None and text.lower() in ("0", "false", "no", "off"):
        return None
    return text or None


def _checked(option: Option, raw: Any, from_env: bool) -> Checked:
    if option.repeat:
        return tuple(_value(option, text, option.name) for text in raw or ())
    if option.kind == "flag":
        return bool(raw)
    if raw is None:
        return option.default
    spelling = f"{_env_name(option)} (environment, for {option.name})" if from_env else option.name
    return _value(option, str(raw), spelling)


def _value(option: Option, text: str, spelling: str) -> Value:
    """`text` as the row's kind. UsageError naming the flag and what it takes."""
    for value, why in option.barred:
        if text == value:
            raise UsageError(f"{spelling} {text} is not available: {why}")
    if option.choices and text not in option.choices:
        raise UsageError(f"{spelling} must be {_one_of(option.choices)}, not {text!r}")
    if option.kind == "file" and not text:
        raise UsageError(f"{spelling} needs a file name, not an empty text")
    if option.kind not in ("int", "float"):
        return text
    number = _number(option.kind, text)
    allowed = option.range
    if number is None or (allowed is not None and not allowed.holds(number)):
        noun = "a whole number" if option.kind == "int" else "a number"
        words = allowed.words() if allowed is not None else ""
        raise UsageError(f"{spelling} must be {noun}{' ' + words if words else ''}, not {text!r}")
    return number


def _number(kind: str, text: str) -> int | float | None:
    """The number in `text`, all of it (`3abc`, `1_000` and `nan` are none)."""
    if "_" in text:
        return None
    try:
        return int(text) if kind == "int" else _finite(float(text))
    except ValueError:
        return None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _one_of(choices: Sequence[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"
