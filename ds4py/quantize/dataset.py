"""Calibration text, cut into prompts.

The idea: how prompts are separated is told by the file itself. ds4's rendered prompts have marker lines; a `.jsonl` file has one
prompt per line, a string or an object with `text` or `prompt`; any other file is one running text. Prompts of the first kind are
rendered chats, so control tokens spelled in them are meant; elsewhere text stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ds4py.errors import FormatError

_MARKER = re.compile(r"^===== DS4_IMATRIX_PROMPT.*$\n?", re.MULTILINE)
_FIELDS = ("text", "prompt")


@dataclass(frozen=True)
class Prompt:
    """`rendered`: control tokens spelled in the text are control tokens."""

    text: str
    rendered: bool = False


def cut(text: str, path: str) -> Sequence[Prompt]:
    """The prompts of a data set. FormatError if there is none, or for a line that is no JSON prompt."""
    if path.lower().endswith(".jsonl"):
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        prompts = [Prompt(_json_prompt(line, f"{path}, line {number}")) for number, line in lines]
    elif _MARKER.search(text):
        before, *parts = _MARKER.split(text)
        prompts = [Prompt(part.strip("\n"), rendered=True) for part in ([before] if before.strip() else []) + parts]
    else:
        prompts = [Prompt(text)]
    kept = [prompt for prompt in prompts if prompt.text.strip()]
    if not kept:
        raise FormatError(f"{path}: there is no text in it")
    return kept


def _json_prompt(line: str, where: str) -> str:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise FormatError(f"{where}: not JSON: {error}") from None
    if isinstance(found, dict):
        found = next((found[key] for key in _FIELDS if key in found), None)
    if not isinstance(found, str):
        raise FormatError(f"{where}: neither a text nor an object with 'text' or 'prompt'")
    return found
