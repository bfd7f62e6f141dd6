"""Reading the answer out of a reply, and judging it.

Models are asked to end with "Answer: X", and many do it their own way, so the ways that are common are read too: bold, boxed,
in brackets, a letter alone on the last line. The last answer in the text counts, since models correct themselves. What is not
clearly an answer is none: a letter somewhere in a sentence is no choice, and a fraction is no whole number. Only the answer is
read, never the reasoning in front of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from ds4py.cli.eval.questions import LETTERS, Question

_MARKED = re.compile(r"(?:^|[^\w])(?:final\s+)?answer(?:\s+is)?\s*(?:[:=]|(?<=is))\s*(.*)", re.I)
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_WRAPPED = re.compile(r"^(?:\\text|\\mathrm)\s*\{(.*)\}$")
_INTEGER = re.compile(r"(?<![\w.,])[-\u2212+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?![\w])(?!,\d)(?!\.\d)")
_ARTICLES = re.compile(r"\b(?:the|a|an)\b")
_LETTER = re.compile(rf"^\(?([{LETTERS}])(?:[).:](?:\s.*)?|)$")
_OPTION = re.compile(rf"\b(?:option|choice)\s+\(?([{LETTERS}])\b", re.I)


def graded(question: Question, reply: str) -> tuple[str, bool]:
    """(the answer that was found, "" if none; whether it is right)."""
    found = EXTRACTORS[question.kind](reply)
    if question.kind == "choice" and found not in LETTERS[: len(question.options)]:
        return found, False
    if question.kind == "short":
        return found, any(matches(found, answer) for answer in question.answers)
    return found, bool(found) and found in question.answers


def choice(reply: str) -> str:
    """The letter of the option that the reply settles on."""
    for text in (*_candidates(reply), *reversed(_lines(reply))):
        letter = _LETTER.match(_bare(text))
        if letter:
            return letter[1]
    told = _OPTION.findall(reply)
    return told[-1].upper() if told else ""


def integer(reply: str) -> str:
    """The whole number that the reply settles on, without separators and plus sign."""
    candidates = _candidates(reply)
    for text in candidates or _lines(reply)[-1:]:
        numbers = _INTEGER.findall(_bare(text).replace("$", ""))
        if numbers:
            number = numbers[0] if candidates else numbers[-1]
            return str(int(number.replace(",", "").replace("\u2212", "-")))
    return ""


def short(reply: str) -> str:
    """The words that the reply settles on."""
    for text in (*_candidates(reply), *reversed(_lines(reply))):
        words = _bare(text)
        if words:
            return words
    return ""


def matches(found: str, answer: str) -> bool:
    """Whether the words found are the answer: the same but for case, articles and punctuation, or a sentence of a few words that
    ends in it."""
    ours, theirs = _plain(found), _plain(answer)
    return ours == theirs or (len(ours) <= len(theirs) + 8 and len(theirs) > 0 and ours[-len(theirs) :] == theirs)


EXTRACTORS: Final[Mapping[str, Callable[[str], str]]] = MappingProxyType({"choice": choice, "integer": integer, "short": short})


def _candidates(reply: str) -> list[str]:
    """What stands in marked places, the last one first. A mark at the end of a line speaks of the next one."""
    lines = reply.splitlines()
    found: list[tuple[int, int, str]] = []
    for i, line in enumerate(lines):
        clean = line.replace("*", "").replace("`", "")
        for match in _MARKED.finditer(clean):
            below = next((later for later in lines[i + 1 :] if later.strip()), "")
            found.append((i, match.start(), match[1] if match[1].strip() else below))
        found += [(i, match.start(), match[1]) for match in _BOXED.finditer(line)]
    return [text for _, _, text in reversed(found)]


def _lines(reply: str) -> list[str]:
    return [line.strip() for line in reply.splitlines() if line.strip()]


def _bare(text: str) -> str:
    """Without markup around it and a full stop behind it."""
    boxed = _BOXED.search(text)
    text = boxed[1] if boxed else text
    text = text.replace("*", "").replace("`", "").strip().strip("$\"'\u201c\u201d").strip()
    wrapped = _WRAPPED.match(text)
    return (wrapped[1] if wrapped else text).removesuffix(".").strip().strip("\"'")


def _plain(text: str) -> list[str]:
    return re.findall(r"\w+", _ARTICLES.sub(" ", text.casefold()))


# (kind, reply, what must be found); --self-test-extractors runs them.
SELF_TEST: Final = (
    ("choice", "Answer: B", "B"),
    ("choice", "Let me see. A is wrong.\nAnswer: (C)", "C"),
    ("choice", "**Answer: D**", "D"),
    ("choice", "Answer: B) No flork is blue.", "B"),
    ("choice", "The answer is: C.", "C"),
    ("choice", "The final answer is $\\boxed{A}$.", "A"),
    ("choice", "So it is \\boxed{\\text{B}}", "B"),
    ("choice", "Answer: A\nNo, wait.\nAnswer: B", "B"),
    ("choice", "Answer:\n\nC", "C"),
    ("choice", "First thoughts ...\n\nD", "D"),
    ("choice", "B) 9.8 m/s^2 downwards", "B"),
    ("choice", "I would go with option c.", "C"),
    ("choice", "A long day, and I am not sure.", ""),
    ("choice", "", ""),
    ("integer", "17 times 23 is 391.\nAnswer: 350", "350"),
    ("integer", "Answer: 9,000 seconds", "9000"),
    ("integer", "Answer: **-7**", "-7"),
    ("integer", "Answer: \u22127", "-7"),
    ("integer", "Answer: $42$.", "42"),
    ("integer", "\\boxed{924}", "924"),
    ("integer", "The answer is: 12 marbles.", "12"),
    ("integer", "36 - 18 = 18, and 18 - 6 = 12.", "12"),
    ("integer", "Answer: 3.5", ""),
    ("integer", "Answer: 1\nAnswer: 2", "2"),
    ("integer", "I do not know.", ""),
    ("integer", "Answer: 007", "7"),
    ("short", "Answer: Canberra", "Canberra"),
    ("short", "Answer: The Danube.", "The Danube"),
    ("short", "Thinking.\n**Answer:** `dcba`", "dcba"),
    ("short", "Jane Austen", "Jane Austen"),
    ("short", "Answer: \"Fe\"", "Fe"),
    ("short", "", ""),
)


def self_test() -> list[str]:
    """The cases that fail, each as a sentence."""
    told = []
    for kind, reply, wanted in SELF_TEST:
        found = EXTRACTORS[kind](reply)
        if found != wanted:
            told.append(f"{kind}: {reply!r} gives {found!r}, not {wanted!r}")
    return told
