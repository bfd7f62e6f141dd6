"""The prompts that drafting is measured on: four kinds of work, written by us and shipped as package data.

The kinds differ in how much of the answer is in the prompt already. Code is edited and half repeated; a summary takes words from
its text; a translation takes none; a chat is anybody's guess. Some have a second turn, for which the first answer is context.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from ds4py.errors import FormatError, ResourceError, UsageError

CATEGORIES = ("code", "chat", "summarise", "translate")


@dataclass(frozen=True)
class Prompt:
    """What a user says, turn by turn."""

    id: str
    category: str
    turns: tuple[str, ...]


def own_prompts() -> list[Prompt]:
    """The prompts that ship with ds4py."""
    text = files("ds4py.cli.eval").joinpath("prompts.jsonl").read_text(encoding="utf-8")
    return list(parsed(text, "prompts.jsonl"))


def read_prompts(path: Path) -> list[Prompt]:
    """Prompts of a JSON Lines file with id, category and turns. FormatError, ResourceError."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise FormatError(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise ResourceError(f"{path}: cannot be read: {error.strerror or error}") from error
    found = list(parsed(text, str(path)))
    if not found:
        raise FormatError(f"{path} holds no prompts")
    return found


def parsed(text: str, where: str) -> Iterator[Prompt]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise FormatError(f"{where}, line {number}: this is no JSON: {error}") from None
        turns = row.get("turns") if isinstance(row, dict) else None
        named = isinstance(row, dict) and all(isinstance(row.get(key), str) and row[key] for key in ("id", "category"))
        if not named or not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
            raise FormatError(f'{where}, line {number}: a prompt needs "id", "category" and "turns", a list of texts')
        yield Prompt(row["id"], row["category"], tuple(turns))


def chosen(prompts: Sequence[Prompt], categories: Sequence[str], limit: int | None) -> list[Prompt]:
    """Those of the categories (all, if none is named), at most `limit` of each. UsageError for a category that there is not."""
    known = list(dict.fromkeys(prompt.category for prompt in prompts))
    for name in categories:
        if name not in known:
            raise UsageError(f"there is no category {name!r}; there are {', '.join(known)}")
    kept: list[Prompt] = []
    for name in categories or known:
        kept += [prompt for prompt in prompts if prompt.category == name][:limit]
    return kept
