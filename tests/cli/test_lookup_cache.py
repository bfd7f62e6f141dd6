"""-lcd is read at the start and added to at the end, however a run ends; gguf-tools/lookup.py makes files for -lcs and -lcd."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ds4py.chat import Message, open_format
from ds4py.cli import answering, lookup_tool
from ds4py.cli.chat import main
from ds4py.cli.conversation import Conversation
from ds4py.cli.opening import Opened
from ds4py.cli.prompting import Thinking
from ds4py.cli.repl import Repl
from ds4py.cli.speculating import Speculation
from ds4py.cli.terminal import Terminal
from ds4py.drafters import SpecConfig, open_drafters
from ds4py.drafters.learning import Learned
from ds4py.drafters.lookup_file import LookupCache, read_lookup_cache
from ds4py.engine import Engine, EngineOptions, SessionOptions
from ds4py.engine.speculation import target_of
from ds4py.errors import NumericError
from ds4py.gguf import open_gguf
from ds4py.protocols import SamplingParams
from ds4py.tokenizer import load_tokenizer

TEXT = "apple, pear, plum, fig, lime, apple, pear, plum, fig, lime, apple,"
RUN = "--raw -n 24 -c 256 -t 1 --temp 0 --spec-type ngram-cache,ngram-mod"
NOWHERE = Terminal(io.StringIO(), False, False)
V = 49152

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ds4(capsys: pytest.CaptureFixture[str], smollm2_path: Path) -> Run:
    def run(options: str, *more: str) -> tuple[int, str, str]:
        code = main(["-m", str(smollm2_path), *options.split(), *more])
        return code, *capsys.readouterr()

    return run


def table(path: Path) -> Mapping[tuple[int, ...], Mapping[int, int]]:
    return {ngram: dict(counts) for ngram, counts in read_lookup_cache(path, V).items()}


def sights(path: Path) -> int:
    return sum(sum(counts.values()) for counts in table(path).values())


def test_a_run_makes_the_file_and_the_next_ones_add_to_it(ds4: Run, tmp_path: Path) -> None:
    path = tmp_path / "dynamic"
    plain = ds4("--raw -n 24 -c 256 -t 1 --temp 0", "-p", TEXT)
    first = ds4(f"{RUN} -lcd {path}", "-p", TEXT)
    n = sights(path)
    second = ds4(f"{RUN} -lcd {path}", "-p", TEXT)
    third = ds4(f"{RUN} -lcd {path}", "-p", TEXT)
    assert first[:2] == second[:2] == third[:2] == plain[:2] and first[0] == 0
    assert n > 100 and sights(path) == 3 * n
    assert "ngram-cache with dynamic" in second[2] and accepted(third[2]) > 0  # how many is the clock's to decide


def accepted(err: str) -> int:
    found = re.search(r"\( *(\d+) accepted /", err)
    return int(found[1]) if found else 0


def test_an_interrupted_run_keeps_what_it_learned(ds4: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check, calls = answering.Interrupts.check, []

    def pressed(self: answering.Interrupts) -> None:
        calls.append(1)
        self.asked = len(calls) > 12
        check(self)

    monkeypatch.setattr(answering.Interrupts, "check", pressed)
    run = RUN.replace("-n 24", "-n 200")  # many more passes than it takes to be asked, however much a pass commits
    code, _, err = ds4(f"{run} -lcd {tmp_path}/dynamic", "-p", TEXT)
    assert code == 130 and "generation: " in err and sights(tmp_path / "dynamic") > 50


def test_an_error_in_an_answer_keeps_what_was_learned(ds4: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        raise NumericError("logits are NaN at position 30")

    monkeypatch.setattr(answering, "_generate", broken)
    code, _, err = ds4(f"{RUN} -lcd {tmp_path}/dynamic", "-p", TEXT)
    assert code == 1 and err.endswith("ds4: logits are NaN at position 30\n") and sights(tmp_path / "dynamic") > 50


def test_a_failed_write_is_one_sentence_and_costs_no_answer(ds4: Run, tmp_path: Path) -> None:
    plain = ds4("--raw -n 24 -c 256 -t 1 --temp 0", "-p", TEXT)
    code, out, err = ds4(f"{RUN} -lcd {tmp_path}/none/dynamic", "-p", TEXT)
    told = [line for line in err.splitlines() if "what was learned is lost" in line]
    assert code == 1 and out == plain[1] and len(told) == 1 and "cannot write the file: No such file or directory" in told[0]


def test_made_up_text_teaches_nothing(ds4: Run, tmp_path: Path) -> None:
    assert ds4(f"{RUN} --spec-depth fixed --spec-synth-len 3 -lcd {tmp_path}/dynamic", "-p", TEXT)[0] == 0
    assert os.listdir(tmp_path) == []


def test_a_chat_adds_what_was_said_in_all_its_conversations(smollm2_path: Path, tmp_path: Path) -> None:
    g = open_gguf(smollm2_path)
    engine = Engine.open(g, EngineOptions(n_ctx=512, threads=1))
    config = SpecConfig(types=("ngram-cache",), lookup_dynamic=tmp_path / "dynamic")
    learned = Learned(tmp_path / "dynamic", V)
    opened = Opened(g, load_tokenizer(g), engine, Speculation(open_drafters(config, target_of(engine, g)), learned=learned))
    chat = open_format(g, opened.tokenizer)
    options = SessionOptions(SamplingParams(0.0), stop_ids=chat.stop_ids)
    conversation = Conversation(opened, chat, options, [Message("system", "Be brief.")], Thinking())
    log = io.StringIO()
    said = ["Say alpha beta.", "/reset", "Say gamma delta.", "/ctx 256", "Say epsilon zeta."]

    class Lines:
        def read(self) -> str:
            if not said:
                raise EOFError
            return said.pop(0)

    assert Repl(conversation, 6, 8192, NOWHERE, Terminal(log, False, False)).run(Lines()) == 0
    assert "lost" not in log.getvalue()
    kept = table(tmp_path / "dynamic")
    for words in ("Say alpha beta.", "Say gamma delta."):
        ids = tuple(opened.tokenizer.encode(words))
        assert kept[ids[:2]][ids[2]] == 2 - (words == "Say alpha beta."), "the second conversation was read twice, for /ctx"
    opening = tuple(opened.tokenizer.encode("Be brief."))
    assert kept[opening[:2]][opening[2]] == 2, "once in the session that /reset kept, once in the one that /ctx made"


# --- gguf-tools/lookup.py ----------------------------------------------------------------------------------------------------


def test_a_static_file_is_made_merged_and_used(ds4: Run, smollm2_path: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT * 3)
    static, twice = tmp_path / "static", tmp_path / "twice"
    assert lookup_tool.main(["create", "-m", str(smollm2_path), "-f", str(tmp_path / "text"), "-lcs", str(static)]) == 0
    assert {len(ngram) for ngram in table(static)} == {2}
    assert lookup_tool.main(["merge", str(static), str(static), "-o", str(twice)]) == 0
    assert table(twice) == {ngram: {token: 2 * n for token, n in counts.items()} for ngram, counts in table(static).items()}
    _, out, err = ds4(f"{RUN} --spec-depth fixed -lcs {twice}", "-p", "apple, pear, plum, fig, lime, apple,")
    assert "ngram-cache with twice" in err and accepted(err) > 5
    again = ["create", "-m", str(smollm2_path), "-f", str(tmp_path / "text"), "--sizes", "1-4", "-o", str(twice), "--force"]
    assert lookup_tool.main(again) == 0
    assert {len(ngram) for ngram in table(twice)} == {1, 2, 3, 4}


def test_counts_are_those_of_a_session() -> None:
    from ngram_reference import random_text, table_of

    cache, text = LookupCache(), random_text(300, 9, seed=2)
    lookup_tool.count(cache, text, [1, 2, 3, 4])
    assert {ngram: dict(counts) for ngram, counts in cache.items()} == table_of(text)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("merge {bad} -o {new}", 1, "no whole number of 4-byte values"),
        ("merge {none} -o {new}", 1, "no such file"),
        ("merge {empty} -o {empty}", 2, "one of the files to read"),
        ("merge {empty} -o {bad}", 2, "is there already; --force replaces it"),
        ("create -m {model} -f {empty} -o {new} --sizes 2-5", 2, "a range within 1-4, not '2-5'"),
        ("create -m {model} -f {none} -o {new}", 1, "cannot read"),
        ("create -m {bad} -f {empty} -o {new}", 1, "bad"),
    ],
)
def test_what_the_tool_refuses(
    words: str, code: int, says: str, smollm2_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad").write_bytes(b"abc")
    (tmp_path / "empty").touch()
    names = {name: tmp_path / name for name in ("bad", "empty", "none", "new")}
    assert lookup_tool.main(words.format(model=smollm2_path, **names).split()) == code
    out, err = capsys.readouterr()
    assert says in err and err.startswith("lookup.py: ") and err.count("\n") == 1 and out == ""
    assert not names["new"].exists() and names["bad"].read_bytes() == b"abc"
