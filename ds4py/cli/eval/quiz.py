"""`ds4-eval`: questions whose answers a program can check, asked one by one of a model or of a server.

The idea: a question, its reply and the verdict are one record; the table, the trace and a later regrading are made of records
and of nothing else. Graders need no model, so they can be tested, run on old traces and mistrusted.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ds4py.cli.eval.asking import Asker, Budget, ModelAsker, ServerAsker
from ds4py.cli.eval.client import RequestFailed, Server
from ds4py.cli.eval.questions import Choice, Question, chosen, own_questions, parsed
from ds4py.cli.eval.report import aligned
from ds4py.cli.eval.trace import Record, TraceFile, failed, read_trace, recorded, regraded
from ds4py.cli.files import read_text, result_file
from ds4py.cli.parsing import Values
from ds4py.cli.terminal import Terminal, open_terminal
from ds4py.errors import Ds4Error, ResourceError, UsageError

COMMAND: Final = "ds4-eval"
_TOKENS: Final = 16000  # of a reply, where neither -n nor the question says
_SHOWN: Final = 60  # characters of an answer


def quiz(values: Values) -> int:
    """Ask and report; 1 if a question came to nothing (a wrong answer is no failure of the program)."""
    questions = asked_of(values)
    kept = earlier(values, questions)
    left = [question for question in questions if question.id not in {record.id for record in kept}]
    log = open_terminal(sys.stderr)
    asker = asker_of(values, left, log) if left else None
    trace = TraceFile(Path(values.text("trace")), kept) if values.has("trace") else None
    records = list(kept)
    try:
        for number, question in enumerate(left, 1):
            assert asker is not None
            log.rewrite("" if values.flag("plain") else f"{COMMAND}: {number} of {len(left)}: {question.id}")
            record = one(asker, question, values)
            log.rewrite("")
            print(f"{number}/{len(left)} {sentence(record)}", flush=True)
            records.append(record)
            if trace is not None:
                trace.add(record)
            if log.live and not values.flag("plain"):
                time.sleep(values.integer("pause_ms") / 1000)
    finally:
        if trace is not None:
            trace.close()
    print("\n".join(report(records)))
    if values.has("json"):
        with result_file(values.text("json")) as out:
            json.dump({"summary": summary(records), "results": [json.loads(record.line()) for record in records]}, out, indent=2)
    return 1 if any(record.error for record in records) else 0


def regrade(path: str) -> int:
    """Grade a trace again, and say what has changed."""
    before = read_trace(path)
    after = [regraded(record) for record in before]
    for old, new in zip(before, after, strict=True):
        if (old.found, old.correct) != (new.found, new.correct):
            print(f"changed: {sentence(new)} (before: {old.found[:_SHOWN]!r})")
    print("\n".join(report(after)))
    return 0


def asked_of(values: Values) -> list[Question]:
    """The questions that the options choose."""
    everything = list(parsed(read_text(values.text("cases")), values.text("cases"))) if values.has("cases") else own_questions()

    def names(key: str) -> list[str]:
        return [name.strip() for text in values.texts(key) for name in text.split(",")]

    limit = values.integer("questions") if values.has("questions") else None
    choice = Choice(values.text("suite"), names("source"), names("domain"), names("case_id"), names("case_sequence"), limit)
    return chosen(everything, choice)


def listing(questions: Sequence[Question]) -> str:
    rows = [["id", "suite", "source", "domain", "kind", "question"]]
    for question in questions:
        first = question.text.splitlines()[0]
        shown = first if len(first) <= _SHOWN else first[: _SHOWN - 1] + "\u2026"
        rows.append([question.id, question.suite, question.source, question.domain, question.kind, shown])
    return "\n".join(aligned(rows))


def earlier(values: Values, questions: Sequence[Question]) -> list[Record]:
    """With --retry-incomplete, what the trace holds already and need not be asked again. ResourceError for a trace that is there
    and would be lost."""
    go_on, there = values.flag("retry_incomplete"), values.has("trace") and Path(values.text("trace")).exists()
    if go_on and not values.has("trace"):
        raise UsageError("--retry-incomplete goes on with a trace: name it with --trace")
    if there and not go_on:
        raise ResourceError(f"{values.text('trace')} is there already; --retry-incomplete goes on with it")
    if not there:
        return []
    wanted = {question.id for question in questions}
    return [record for record in read_trace(values.text("trace")) if record.complete and record.id in wanted]


def tokens_for(values: Values, question: Question) -> int:
    """-n, or the question's own limit, or the general one."""
    return values.integer("tokens") if values.has("tokens") else question.tokens or _TOKENS


def asker_of(values: Values, questions: Sequence[Question], log: Terminal) -> Asker:
    """The model of -m, opened, or the server of --url."""
    if values.has("url"):
        server = Server(values.text("url"), values.text("api_key") if values.has("api_key") else "", values.number("timeout"))
        name = values.text("server_model") if values.has("server_model") else server.model()
        return ServerAsker(server, {"model": name, "temperature": values.number("temp")})
    return _model(values, max(tokens_for(values, question) for question in questions), log)


def _model(values: Values, n_tokens: int, log: Terminal) -> ModelAsker:
    from ds4py.cli.eval.choices import contenders
    from ds4py.cli.opening import context_len, open_engine, open_file, open_tokenizer
    from ds4py.cli.prompting import chat_format, thinking
    from ds4py.cli.settings import sampling
    from ds4py.cli.speculating import draft_file, rows_needed
    from ds4py.cli.streaming import preloaded
    from ds4py.drafters import open_drafters
    from ds4py.engine import SessionOptions
    from ds4py.engine.speculation import target_of

    measured = contenders(values) if values.has("drafters") else []
    if len(measured) > 1:
        raise UsageError("questions are answered with one drafter or chain; give --drafters one of them, such as a+b")
    config = measured[0].config if measured else None
    g = open_file(values, log)
    tokenizer = open_tokenizer(g, log)
    chat = chat_format(values, g, tokenizer, log)
    size = (rows_needed(config), draft_file(config)) if config is not None else (0, None)
    engine = open_engine(values, g, context_len(values, g, log), log, *size)
    drafters = open_drafters(config, target_of(engine, g)) if config is not None else None
    preloaded(engine, log)
    margins = (values.integer("soft_limit_reply_budget"), values.integer("hard_limit_reply_budget"))
    budget = Budget(n_tokens, *margins, values.integer("soft_limit_think_close_rank"))
    options = SessionOptions(params=sampling(values, g.architecture))
    return ModelAsker(engine, tokenizer, chat, thinking(values, chat, engine.n_ctx, log), options, budget, drafters)


def one(asker: Asker, question: Question, values: Values) -> Record:
    """Ask one question. What goes wrong with it is its record."""
    try:
        return recorded(question, asker.ask(question.prompt, tokens_for(values, question), values.integer("seed")))
    except (RequestFailed, Ds4Error) as error:
        return failed(question, str(error))


def sentence(record: Record) -> str:
    head = f"{record.domain} {record.id}"
    if record.error:
        return f"{head}: failed: {record.error}"
    verdict = "right" if record.correct else f"wrong, it is {record.answers[0]}"
    found = repr(record.found[:_SHOWN]) if record.found else "no answer"
    how = f", thinking closed ({record.closed})" if record.closed else ""
    cut = "" if record.finish == "stop" else f", ended by {record.finish}"
    return f"{head}: {found}, {verdict} ({record.tokens} tokens, {record.seconds:.1f} s{how}{cut})"


def summary(records: Sequence[Record]) -> list[dict[str, object]]:
    """By domain, then all."""
    domains = list(dict.fromkeys(record.domain for record in records))
    groups = [(domain, [record for record in records if record.domain == domain]) for domain in domains]
    return [
        {
            "domain": name,
            "questions": len(own),
            "right": sum(record.correct for record in own),
            "no_answer": sum(not record.found for record in own),
            "cut": sum(record.finish != "stop" for record in own),
            "tokens": sum(record.tokens for record in own),
            "seconds": sum(record.seconds for record in own),
        }
        for name, own in [*groups, ("all", list(records))]
    ]


def report(records: Sequence[Record]) -> Iterator[str]:
    """The table."""
    rows = [["domain", "right", "of", "share", "no answer", "cut off", "tokens", "t/s"]]
    for row in summary(records):
        n, right, seconds = int(str(row["questions"])), int(str(row["right"])), float(str(row["seconds"]))
        share = f"{right / n:.0%}" if n else "-"
        speed = f"{int(str(row['tokens'])) / seconds:.1f}" if seconds else "-"
        counts = [str(row[key]) for key in ("no_answer", "cut", "tokens")]
        rows.append([str(row["domain"]), str(right), str(n), share, *counts, speed])
    yield ""
    yield from aligned(rows)
