"""Questions with answers that a program can check: written by us, shipped as package data.

They are a smoke test of a model and of everything between a file and an answer, not a ranking: 49 easy ones that a good model
of some billion weights answers nearly all of, and 14 hard ones. Published exams are not shipped (they are others' work, and
every model has read them); a file of one's own in the same form is read with --cases.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from ds4py.errors import FormatError, UsageError

LETTERS = "ABCDEFGHIJ"
KINDS = ("choice", "integer", "short")
SUITES = ("core", "hard", "hard-smoke", "all")
_SMOKE = 3  # questions of the hard suite in "hard-smoke"
_ENDING = {
    "choice": 'End with a line "Answer: X", where X is the letter of the right option.',
    "integer": 'End with a line "Answer: N", where N is a whole number.',
    "short": 'End with a line "Answer: ...", with nothing but the answer.',
}


@dataclass(frozen=True)
class Question:
    """`answers`: accepted ones; a letter for "choice", digits for "integer". tokens: limit of its own for the reply, 0 = none."""

    id: str
    suite: str
    source: str
    domain: str
    kind: str
    text: str
    answers: tuple[str, ...]
    options: tuple[str, ...] = ()
    tokens: int = 0

    @property
    def prompt(self) -> str:
        """What the model is asked."""
        lines = [f"{LETTERS[i]}) {option}" for i, option in enumerate(self.options)]
        return "\n\n".join(part for part in (self.text, "\n".join(lines), _ENDING[self.kind]) if part)


def own_questions() -> list[Question]:
    text = files("ds4py.cli.eval").joinpath("questions.jsonl").read_text(encoding="utf-8")
    return list(parsed(text, "questions.jsonl"))


def parsed(text: str, where: str) -> Iterator[Question]:
    """Questions of a JSON Lines text. FormatError, naming the line, for one that cannot be graded or that stands twice."""
    seen: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            question = _question(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else error
            raise FormatError(f"{where}, line {number}: {reason}") from None
        if question.id in seen:
            raise FormatError(f"{where}, line {number}: there are two questions {question.id!r}")
        seen.add(question.id)
        yield question


def _question(row: Any) -> Question:
    """ValueError, KeyError or TypeError for what is none."""
    if not isinstance(row, dict):
        raise ValueError("a question is a JSON object")
    answers = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
    names = ("id", "suite", "source", "domain", "kind", "question")
    if not answers or not all(isinstance(value, str) and value.strip() for value in (*answers, *(row[name] for name in names))):
        raise ValueError(f"{', '.join(names)} and answer are texts that are not empty")
    options = tuple(str(option) for option in row.get("options", ()))
    kind, tokens = row["kind"], row.get("tokens", 0)
    if kind not in KINDS or row["suite"] not in ("core", "hard"):
        raise ValueError(f"kind is one of {', '.join(KINDS)}, and suite is core or hard")
    if (kind == "choice") != bool(options) or len(options) == 1 or len(options) > len(LETTERS):
        raise ValueError("a choice has 2 to 10 options, and nothing else has any")
    if kind == "choice" and not (len(answers) == 1 and answers[0] in LETTERS[: len(options)]):
        raise ValueError(f"the answer {answers} is not one of the options' letters")
    if kind == "integer" and not (len(answers) == 1 and answers[0].removeprefix("-").isdecimal()):
        raise ValueError(f"the answer {answers} is no whole number")
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
        raise ValueError("tokens is a whole number")
    head = (row["id"], row["suite"], row["source"], row["domain"], kind, row["question"])
    return Question(*head, tuple(answers), options, tokens)


@dataclass(frozen=True)
class Choice:
    """Which questions are asked."""

    suite: str = "core"
    sources: Sequence[str] = ()
    domains: Sequence[str] = ()
    ids: Sequence[str] = ()  # only these, wherever they stand
    sequence: Sequence[str] = ()  # exactly these, in this order
    limit: int | None = None


def chosen(questions: Sequence[Question], choice: Choice) -> list[Question]:
    """UsageError for names that there are not, and if nothing is left."""
    by_id = {question.id: question for question in questions}
    for name in (*choice.ids, *choice.sequence):
        if name not in by_id:
            raise UsageError(f"there is no question {name!r}; --list-cases shows them")
    for what, names in (("source", choice.sources), ("domain", choice.domains)):
        known = {getattr(question, what) for question in questions}
        for name in names:
            if name not in known:
                raise UsageError(f"there is no {what} {name!r}; there are {', '.join(sorted(known))}")
    if choice.sequence:
        return [by_id[name] for name in choice.sequence][: choice.limit]
    kept = list(questions) if choice.ids else _suite(questions, choice.suite)
    kept = [question for question in kept if not choice.ids or question.id in choice.ids]
    kept = [question for question in kept if not choice.sources or question.source in choice.sources]
    kept = [question for question in kept if not choice.domains or question.domain in choice.domains]
    if not kept:
        raise UsageError("no question is left; --list-cases --suite all shows what there is")
    return kept[: choice.limit]


def _suite(questions: Sequence[Question], suite: str) -> list[Question]:
    if suite == "all":
        return list(questions)
    own = [question for question in questions if question.suite == suite.removesuffix("-smoke")]
    return own[:_SMOKE] if suite == "hard-smoke" else own
