"""ds4-eval: the questions' answers are right, answers are read out of replies as people write them, thinking is closed in time, a
run can be traced, gone on with and judged again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import count, permutations
from math import comb, factorial, lcm
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_tools import PAIR
from loopback_llm import LoopbackServer
from tiny_models import make_tiny

from ds4py.chat import ReplyStream, ThinkTags
from ds4py.cli.eval import grading
from ds4py.cli.eval.asking import Budget, answered
from ds4py.cli.eval.command import main
from ds4py.cli.eval.grading import SELF_TEST, graded, matches, self_test
from ds4py.cli.eval.questions import Choice, Question, chosen, own_questions, parsed
from ds4py.cli.eval.trace import read_trace
from ds4py.engine import Engine, EngineOptions, SessionOptions
from ds4py.errors import FormatError, UsageError
from ds4py.gguf import open_gguf
from ds4py.protocols import SamplingParams
from ds4py.tokenizer import load_tokenizer

BY_ID = {question.id: question for question in own_questions()}


def fibonacci(n: int) -> int:
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


COMPUTED: dict[str, Callable[[], object]] = {
    "sum-product": lambda: 17 * 23 - 41,
    "train-minutes": lambda: (17 * 60 + 20) - (14 * 60 + 35),
    "sum-to-40": lambda: sum(range(41)),
    "shirt-price": lambda: 80 * 85 // 100 - 10,
    "lcm": lambda: lcm(12, 18),
    "seconds": lambda: int(2.5 * 3600),
    "apples": lambda: 3 * 24 // 9,
    "powers": lambda: 2**10 - 10**2,
    "sequence": lambda: 6 * 7,
    "wall": lambda: 1989,
    "py-set": lambda: len({1, 2, *[2], 3}),
    "py-sum": lambda: sum(range(1, 5)),
    "py-default": lambda: 2,
    "shop-hours": lambda: 5 * 9 + 8,
    "marbles": lambda: 36 - 18 - 6,
    "zeros": lambda: len(str(factorial(100))) - len(str(factorial(100)).rstrip("0")),
    "power-mod": lambda: pow(7, 100, 13),
    "dominoes": lambda: fibonacci(11),
    "digit-sum": lambda: sum(map(int, str(2**50))),
    "primes": lambda: sum(all(n % p for p in range(2, n)) for n in range(2, 200)),
    "derangements": lambda: sum(all(i != x for i, x in enumerate(p)) for p in permutations(range(6))),
    "thousand": lambda: next(n for n in count(1) if factorial(n) % 1000 == 0),
    "lattice": lambda: comb(12, 6),
    "coprime": lambda: sum(all(n % p for p in (2, 3, 5)) for n in range(1, 1001)),
    "no-neighbours": lambda: sum(not s & (s >> 1) for s in range(2**12)),
    "bits": lambda: sum(n.bit_count() == 4 for n in range(256)),
    "queue": lambda: sum(p.index(0) < p.index(1) < p.index(2) for p in permutations(range(5))),
}
CHOSEN = {
    "py-list": lambda: str([x * x for x in range(4) if x % 2]),
    "py-or": lambda: repr([] or "x"),
    "closures": lambda: str([f() for f in [lambda: i for i in range(3)]]),  # noqa: B023
    "dice-thirds": lambda: "1/3" if 3 * sum((a + b) % 3 == 0 for a in range(1, 7) for b in range(1, 7)) == 36 else "",
}


# --- questions -----------------------------------------------------------------------------------------------------------------


def test_answers_that_can_be_computed_are() -> None:
    integers = {question.id for question in BY_ID.values() if question.kind == "integer"}
    assert integers == set(COMPUTED)
    for name, compute in COMPUTED.items():
        assert BY_ID[name].answers == (str(compute()),), name
    for name, right in CHOSEN.items():
        question = BY_ID[name]
        assert question.options["ABCDEFGHIJ".index(question.answers[0])] == right(), name
    assert BY_ID["py-slice"].answers == ("abcd"[::-1],)


def test_our_own_questions() -> None:
    assert Counter(question.suite for question in BY_ID.values()) == {"core": 49, "hard": 14}
    letters = Counter(question.answers[0] for question in BY_ID.values() if question.kind == "choice")
    assert max(letters.values()) <= 8, "one letter must not be a good guess"
    assert "A) Some florks" in BY_ID["florks"].prompt and BY_ID["lcm"].prompt.endswith("where N is a whole number.")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"kind": "essay"}, "kind is one of"),
        ({"answer": "E"}, "not one of the options' letters"),
        ({"options": ["x"]}, "2 to 10 options"),
        ({"kind": "integer"}, "2 to 10 options"),
        ({"kind": "integer", "options": []}, "no whole number"),
        ({"id": ""}, "texts that are not empty"),
        ({"answer": []}, "texts that are not empty"),
        ({"tokens": "9"}, "tokens is a whole number"),
        ({"suite": "soft"}, "suite is core or hard"),
    ],
)
def test_questions_that_cannot_be_graded(change: dict[str, Any], sentence: str) -> None:
    good = {"id": "q", "suite": "core", "source": "s", "domain": "d", "kind": "choice", "question": "?", "options": ["x", "y"]}
    row = {**good, "answer": "A", **change}
    with pytest.raises(FormatError, match=f"here, line 1: .*{sentence}"):
        list(parsed(json.dumps(row), "here"))
    whole = json.dumps({**good, "answer": "A"})
    with pytest.raises(FormatError, match="line 2: there are two questions 'q'"):
        list(parsed(f"{whole}\n{whole}", "here"))
    with pytest.raises(FormatError, match="line 1: answer is missing"):
        list(parsed(json.dumps(good), "here"))


def test_choosing() -> None:
    everything = own_questions()
    assert len(chosen(everything, Choice())) == 49 and len(chosen(everything, Choice("all"))) == 63
    assert [question.id for question in chosen(everything, Choice("hard-smoke"))] == ["zeros", "power-mod", "dominoes"]
    assert [question.id for question in chosen(everything, Choice(ids=["bits", "lcm"]))] == ["lcm", "bits"]
    assert [question.id for question in chosen(everything, Choice(sequence=["bits", "lcm", "bits"]))] == ["bits", "lcm", "bits"]
    assert {question.domain for question in chosen(everything, Choice("all", domains=["code"], limit=99))} == {"code"}
    for choice, sentence in (
        (Choice(ids=["x"]), "no question 'x'"),
        (Choice(domains=["x"]), "no domain 'x'; there are arithmetic"),
        (Choice(sources=["x"]), "no source 'x'; there are own"),
        (Choice("core", domains=["mathematics"]), "no question is left"),
    ):
        with pytest.raises(UsageError, match=sentence):
            chosen(everything, choice)


# --- grading -------------------------------------------------------------------------------------------------------------------


def test_extractors(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert self_test() == [] and main(["--self-test-extractors"]) == 0
    assert f"{len(SELF_TEST)} of {len(SELF_TEST)} cases read right" in capsys.readouterr().out
    monkeypatch.setattr(grading, "EXTRACTORS", {**grading.EXTRACTORS, "integer": lambda reply: "7"})
    assert main(["--self-test-extractors"]) == 1
    assert "integer: 'Answer: 3.5' gives '7', not ''" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "reply", "right"),
    [
        ("florks", "Answer: B", True),
        ("florks", "Answer: E", False),  # there is no E
        ("florks", "B is tempting, but no.\nAnswer: C", False),
        ("lcm", "Answer: 36.", True),
        ("lcm", "12 and 18: 36", True),
        ("lcm", "Answer: 3,6", False),
        ("lcm", "Answer: 36.0", False),
        ("canberra", "Answer: canberra!", True),
        ("canberra", "The capital of Australia is Canberra.", True),
        ("canberra", "Canberra, of course; many say that it is Sydney.", False),
        ("danube", "Answer: The Danube", True),
        ("pride", "Answer: Jane Austen", True),
        ("iron", "Answer: Fe3", False),
        ("ben", "", False),
    ],
)
def test_verdicts(name: str, reply: str, right: bool) -> None:
    assert graded(BY_ID.get(name, BY_ID["tallest"]), reply)[1] is right


def test_words_match_but_for_case_articles_and_punctuation() -> None:
    assert matches("The Danube.", "danube") and matches("It is called 'dcba'", "dcba")
    assert not matches("dcbaa", "dcba") and not matches("", "dcba") and not matches("dcba, or not", "dcba")


# --- thinking ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, Any]:
    """A random model whose vocabulary has think tags."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    tiny = make_tiny("llama", path)
    tokens = list(open_gguf(tiny.path).kv["tokenizer.ggml.tokens"])
    types = list(open_gguf(tiny.path).kv["tokenizer.ggml.token_type"])
    tokens[258:260], types[258:260] = ["<think>", "</think>"], [4, 4]
    make_tiny("llama", path, {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types})
    g = open_gguf(path)
    return Engine.open(g, EngineOptions(n_ctx=256, threads=1)), load_tokenizer(g)


def reply(thinker: tuple[Engine, Any], budget: Budget) -> tuple[Any, list[int], list[int], list[int]]:
    """(what was told, the prompt, all ids, the ids that close)"""
    engine, tokenizer = thinker
    prompt, close = list(range(60, 80)), tokenizer.encode("</think>\n\n", special=True)
    stream = ReplyStream(tokenizer, think_tags=ThinkTags("<think>", "</think>"), inside_thinking=True)
    session = engine.session(SessionOptions(params=SamplingParams(0.0)))
    return answered(session, prompt, stream, close, budget), prompt, list(session.tokens), close


def test_thinking_is_closed_at_the_hard_limit(thinker: tuple[Engine, Any]) -> None:
    """With 10 tokens left, the tag stands in place of the token that was drawn, and the reply goes on as a session that has read
    so much would go on."""
    told, prompt, ids, close = reply(thinker, Budget(60, 0, 10, 3))
    assert told.closed == "hard" and ids[len(prompt) + 50 :][: len(close)] == close
    assert len(ids) == len(prompt) + 60 and told.tokens == 60 and told.finish == "length"
    assert told.reasoning and told.text
    engine, _ = thinker
    again = engine.session(SessionOptions(params=SamplingParams(0.0)))
    again.sync(ids[: len(prompt) + 50 + len(close)])
    for _ in again.generate(10 - len(close)):
        pass
    assert list(again.tokens) == ids


def test_thinking_is_closed_early_where_it_is_about_to_close(thinker: tuple[Engine, Any]) -> None:
    told, prompt, ids, close = reply(thinker, Budget(60, 30, 5, rank=320))
    assert told.closed == "soft" and ids[len(prompt) + 30] == close[0]
    never, *_ = reply(thinker, Budget(60, 30, 0, rank=0))
    assert never.closed in ("", "hard")


def test_a_model_that_does_not_think_is_left_alone(thinker: tuple[Engine, Any]) -> None:
    engine, tokenizer = thinker
    session = engine.session(SessionOptions(params=SamplingParams(0.0)))
    told = answered(session, list(range(60, 80)), ReplyStream(tokenizer), [], Budget(20, 1024, 512, 3))
    assert (told.closed, told.tokens, told.reasoning) == ("", 20, "")


def test_budgets_smaller_than_their_margins() -> None:
    row = np.array([3.0, 2.0, 1.0, 0.0], np.float32)
    small = Budget(100, 1024, 512, 3)
    assert [small.due(left, row, 2) for left in (60, 50, 26, 25)] == ["", "soft", "soft", "hard"]
    assert small.due(50, row, 3) == "", "the fourth likeliest is not among three"


# --- whole runs ----------------------------------------------------------------------------------------------------------------

ANSWERS = {
    "17 times 23": "It is 391 - 41.\nAnswer: 350",
    "14:35": "Answer: 160",
    "from 1 to 40": "I would rather not say.",
    "80 euros": "Answer: **58**",
}


def test_a_run_its_trace_and_going_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, out = tmp_path / "trace.jsonl", tmp_path / "out.json"
    argv = ["--questions", "5", "--trace", str(trace), "--json", str(out), "-n", "64", "--seed", "3"]
    with LoopbackServer(answers=ANSWERS, faults={"least common": "error"}) as server:
        assert main([*argv, "--url", server.url]) == 1, "one question came to nothing"
        assert all(body["max_tokens"] == 64 and body["seed"] == 3 and body["temperature"] == 0 for body in server.seen)
    told = capsys.readouterr().out
    assert "1/5 arithmetic sum-product: '350', right" in told and "train-minutes: '160', wrong, it is 165" in told
    assert "sum-to-40: no answer, wrong" in told and "lcm: failed: out of memory" in told
    assert "| all        | 2     | 5  | 40%   | 2         | 1       |" in told
    assert {row["domain"]: row["right"] for row in json.loads(out.read_text())["summary"]} == {"arithmetic": 2, "all": 2}
    assert [record.complete for record in read_trace(str(trace))] == [True, True, False, True, False]

    assert main([*argv, "--url", "http://127.0.0.1:9"]) == 1
    assert "--retry-incomplete goes on with it" in capsys.readouterr().err
    with LoopbackServer(answers={**ANSWERS, "from 1 to 40": "Answer: 820", "least common": "Answer: 36"}) as server:
        assert main([*argv, "--url", server.url, "--retry-incomplete"]) == 0
        assert len(server.seen) == 2
    assert "| all        | 4     | 5  | 80%" in capsys.readouterr().out
    assert main([*argv, "--url", "http://127.0.0.1:9", "--retry-incomplete"]) == 0, "nothing is left to ask"


def test_a_trace_is_judged_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    with LoopbackServer(answers=ANSWERS) as server:
        main(["--questions", "4", "--trace", str(trace), "--url", server.url])
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    rows[0] |= {"found": "1", "correct": False}
    trace.write_text("\n".join(map(json.dumps, rows)) + '\n{"id": "cut sho')
    capsys.readouterr()
    assert main(["--regrade-trace", str(trace)]) == 0
    told = capsys.readouterr().out
    assert "changed: arithmetic sum-product: '350', right" in told and "(before: '1')" in told and told.count("changed") == 1
    assert "| all        | 2     | 4 " in told
    trace.write_text('{"id": "x"}\n{"id": "y"}\n')
    assert main(["--regrade-trace", str(trace)]) == 1
    assert "line 1: this is no line of a ds4-eval trace" in capsys.readouterr().err


def test_a_model_is_asked_and_drafts_change_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The pair's target talks of foxes, which is an answer like another."""
    target = str(PAIR / "target.gguf")
    replies = []
    for number, extra in enumerate(([], ["--drafters", "draft-dspark", "-md", str(PAIR / "dspark.gguf")])):
        trace = tmp_path / f"{number}.jsonl"
        assert main(["-m", target, "-t", "1", "--questions", "3", "-n", "40", "--trace", str(trace), *extra]) == 0
        replies.append([record.reply for record in read_trace(str(trace))])
    assert replies[0] == replies[1] and all(replies[0])
    assert capsys.readouterr().out.count("3/3 arithmetic") == 2


def test_listing_and_checking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-cases", "--domain", "security"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 2 + 4 and len({len(line) for line in told}) == 1
    assert main(["--validate-cases", "--suite", "all"]) == 0
    assert "63 questions can be asked and graded" in capsys.readouterr().out
    path = tmp_path / "own.jsonl"
    path.write_text('{"id": "a"}')
    assert main(["--validate-cases", "--cases", str(path)]) == 1
    assert "line 1: answer is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--retry-incomplete"], "name it with --trace"),
        (["--drafters", "ngram-mod,ngram-simple", "-m", str(PAIR / "target.gguf")], "one drafter or chain"),
        (["--suite", "soft"], "--suite must be core, hard, hard-smoke or all"),
        (["--spec", "--suite", "hard"], "--spec and --suite"),
        (["--case-id", "x"], "no question 'x'"),
    ],
)
def test_options_that_do_not_fit(argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert sentence in capsys.readouterr().err


def test_question_prompts_end_with_how_to_answer() -> None:
    question = Question("a", "core", "s", "d", "short", "Who?", ("x",))
    assert question.prompt == 'Who?\n\nEnd with a line "Answer: ...", with nothing but the answer.'
