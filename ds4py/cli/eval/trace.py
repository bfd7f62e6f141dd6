"""What was asked and answered, one JSON object a line, written as it comes: a long run that is stopped has lost one question.

A trace can be graded again without a model, when the graders have changed, and gone on with, asking only what has no answer yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from ds4py.cli.eval.asking import Told
from ds4py.cli.eval.grading import graded
from ds4py.cli.eval.questions import Question
from ds4py.cli.files import read_text, reason, result_file
from ds4py.errors import FormatError, ResourceError


@dataclass(frozen=True)
class Record:
    """A question with the reply to it. complete: the reply ended by itself and holds an answer."""

    id: str
    suite: str
    source: str
    domain: str
    kind: str
    options: int
    answers: Sequence[str]
    reply: str
    reasoning: str
    tokens: int
    seconds: float
    finish: str
    closed: str
    found: str
    correct: bool
    complete: bool
    error: str = ""

    def line(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


def recorded(question: Question, told: Told) -> Record:
    found, correct = graded(question, told.text)
    return Record(
        *_head(question),
        reply=told.text,
        reasoning=told.reasoning,
        tokens=told.tokens,
        seconds=told.seconds,
        finish=told.finish,
        closed=told.closed,
        found=found,
        correct=correct,
        complete=told.finish == "stop" and bool(found),
    )


def failed(question: Question, error: str) -> Record:
    """A question that came to nothing."""
    return Record(*_head(question), "", "", 0, 0.0, "error", "", "", False, False, error)


def _head(question: Question) -> tuple[str, str, str, str, str, int, tuple[str, ...]]:
    own = (question.id, question.suite, question.source, question.domain, question.kind)
    return *own, len(question.options), question.answers


def read_trace(path: str) -> list[Record]:
    """FormatError, naming the line, for what is no trace. A last line that was cut short is left out."""
    rows = [line for line in read_text(path).splitlines() if line.strip()]
    found: list[Record] = []
    for number, line in enumerate(rows, 1):
        try:
            found.append(Record(**json.loads(line)))
        except (ValueError, TypeError):
            if number < len(rows):
                raise FormatError(f"{path}, line {number}: this is no line of a ds4-eval trace") from None
    return found


def regraded(record: Record) -> Record:
    """The same reply, judged anew."""
    blanks = ("",) * record.options
    question = Question(
        record.id, record.suite, record.source, record.domain, record.kind, "", tuple(record.answers), blanks
    )
    found, correct = graded(question, record.reply)
    changes: Mapping[str, Any] = {"found": found, "correct": correct, "complete": record.finish == "stop" and bool(found)}
    return Record(**{**asdict(record), **changes})


class TraceFile:
    """A trace being written; every record is on the disk when `add` returns."""

    def __init__(self, path: Path, kept: Sequence[Record]) -> None:
        """`kept`: records of an earlier run that stand again; what else was in the file is gone. ResourceError."""
        with result_file(str(path)) as out:
            out.writelines(record.line() + "\n" for record in kept)
        self._out: TextIO = _opened(path)

    def add(self, record: Record) -> None:
        self._out.write(record.line() + "\n")
        self._out.flush()

    def close(self) -> None:
        self._out.close()


def _opened(path: Path) -> TextIO:
    try:
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise ResourceError(f"{path}: cannot be written: {reason(error)}") from error
