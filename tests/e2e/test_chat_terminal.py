"""The interactive chat on a pseudo-terminal, with a real model."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.screen import Screen

SPEED = r"ds4: prefill: \d+\.\d\d t/s, generation: \d+\.\d\d t/s"
PROMPT = "ds4>"


class Chat:
    """Starts `ds4` in a home of its own."""

    def __init__(self, model: Path, home: Path) -> None:
        self._model, self._home = model, home
        self.open: list[Screen] = []

    def __call__(self, *argv: str, into: str = "", **extra: str) -> Screen:
        """`into`: a file that takes standard output."""
        env = {**os.environ, "TERM": "xterm-256color", "XDG_STATE_HOME": str(self._home), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "ds4py.cli.chat", "-m", str(self._model), "--temp", "0", "-t", "1", *argv]
        command = ["sh", "-c", f"{shlex.join(command)} > {into}"] if into else command
        screen = Screen(command, {**env, **extra}, str(self._home))
        self.open.append(screen)
        screen.expect(PROMPT)
        return screen


@pytest.fixture
def chat(smollm2_path: Path, tmp_path: Path) -> Iterator[Chat]:
    chat = Chat(smollm2_path, tmp_path)
    yield chat
    for screen in chat.open:
        screen.close()


def test_two_turns_reset_and_history(chat: Chat, tmp_path: Path) -> None:
    screen = chat("-n", "12", "-c", "512")
    screen.line("Say hello.")
    screen.expect(SPEED)
    screen.expect(PROMPT)
    screen.line("/status")
    screen.expect(r"context +\d+/512 tokens \(\d+\.\d%\), 1 turn\n")
    screen.line("And again.")
    first = screen.expect(SPEED)
    assert "processing" in first  # the progress line of a terminal
    screen.line("/reset")
    screen.expect("a fresh conversation")
    screen.line("/status")
    screen.expect(", 0 turns")
    screen.line("/nonsense")
    screen.expect("unknown command /nonsense")
    screen.line("/power 50")
    screen.expect("/power is not supported")
    screen.line("/quit")
    assert screen.wait() == 0
    kept = (tmp_path / "ds4" / "history").read_text().splitlines()
    assert kept[0] == '"Say hello."' and '"And again."' in kept
    again = chat("-n", "1", "-c", "128")
    again.send("\x1b[A\x1b[A")  # two lines up: past /quit
    again.expect("/power 50")
    again.send("\x04")  # Ctrl-D does not leave while there is text
    again.send("\x03")
    again.expect("/quit leaves")
    again.expect(PROMPT)  # between two prompts a Ctrl-D would go to nobody
    again.send("\x04")
    assert again.wait() == 0


def test_ctrl_c_in_an_answer_keeps_it_and_the_chat(chat: Chat) -> None:
    screen = chat("--ignore-eos", "-n", "400", "-c", "1024")
    screen.line("Tell me a story.")
    screen.expect(r"\(100%\)")
    screen.expect(r"\w+ \w+")
    screen.send("\x03")
    screen.expect(SPEED, timeout=20)
    screen.expect(PROMPT)
    screen.line("/status")
    screen.expect(", 1 turn\n")
    screen.line("/ctx 256")
    screen.expect("context 256")
    screen.line("More.")
    screen.expect(r"\(100%\)")
    screen.expect(r"\w+ \w+")
    screen.send("\x03")
    screen.expect(SPEED, timeout=20)
    screen.expect(PROMPT)
    screen.send("\x03")
    screen.expect("Ctrl-C once more")
    screen.send("\x03")
    assert screen.wait() == 0


@pytest.mark.parametrize("leave", ["\x04", "\x03\x03"])
def test_the_statistics_of_all_turns_come_when_the_chat_ends(chat: Chat, tmp_path: Path, leave: str) -> None:
    """However it is left; the counts are those of the whole chat, and the lookup cache is written."""
    drafting = "--spec-type ngram-cache,ngram-map-k --spec-ngram-map-k-size-n 3 --spec-depth fixed -lcd dynamic --ignore-eos"
    screen = chat("-n", "24", "-c", "512", *drafting.split())
    assert "fixed depth, greedy" in screen.text
    drafted = 0
    for _ in range(2):
        screen.line("Say fig, lime, fig, lime, fig, lime, fig, lime.")
        screen.expect(SPEED)
        screen.expect(PROMPT)
        screen.line("/status")
        screen.expect(r"drafts +\d+ of ")
        now = int(screen.expect(" tokens accepted, "))
        assert now > drafted
        drafted = now
        screen.expect(PROMPT)
    for key in leave:
        screen.send(key)
        if leave == "\x03\x03" and "once more" not in screen.text:
            screen.expect("Ctrl-C once more")
            screen.expect(PROMPT)
    screen.expect(rf"ds4: draft acceptance = \d\.\d{{5}} \( *\d+ accepted / *{drafted} generated\), mean len = ")
    screen.expect(r"ds4: acc per pos = \(")
    assert screen.wait() == 0 and (tmp_path / "dynamic").stat().st_size > 1000


def test_ctrl_c_before_anything_takes_the_message_back(chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("word " * 7000)
    screen = chat("-n", "5", "-c", "8192")
    screen.line("/read long.txt")
    screen.expect(r"processing \d+ input tokens: [1-9]\d*/")
    screen.send("\x03")
    screen.expect("your message was taken back", timeout=30)
    screen.line("/status")
    screen.expect(", 0 turns")
    screen.line("/ctx 64")
    screen.expect("context 64")
    screen.line("/read long.txt")
    screen.expect(r"the prompt has \d+ tokens, but the context holds 64")
    screen.line("/read no-such-file")
    screen.expect("cannot read no-such-file")
    screen.line("Say hello.")
    screen.expect(SPEED)
    screen.line("/exit")
    assert screen.wait() == 0


def test_several_lines_are_one_message(chat: Chat, tmp_path: Path) -> None:
    screen = chat("-n", "2", "-c", "512")
    screen.send("one\\\rtwo")
    screen.expect(r"\.\.\.>")
    screen.send("\x1b\rthree\r")
    screen.expect(SPEED)
    screen.send("\x1b[200~pasted\tline\nsecond line\n\x1b[201~")
    screen.send("\r")
    screen.expect(SPEED)
    screen.line("/status")
    screen.expect(", 2 turns")
    kept = (tmp_path / "ds4" / "history").read_text()
    assert kept.startswith('"one\\ntwo\\nthree"\n"pasted\\tline\\nsecond line\\n"\n')


def test_answers_in_a_file_prompts_on_the_terminal(chat: Chat, tmp_path: Path) -> None:
    screen = chat("-n", "8", "-c", "256", into="answers.txt")
    screen.line("Say hello.")
    screen.expect(SPEED)
    screen.line("/quit")
    assert screen.wait() == 0
    answer = (tmp_path / "answers.txt").read_text()
    assert answer and "\x1b" not in answer and "ds4" not in answer and answer not in screen.text


def test_no_colours_when_not_wanted(chat: Chat) -> None:
    screen = chat("-n", "2", "-c", "256", NO_COLOR="1")
    screen.line("/help")
    screen.expect("/quit, /exit")
    screen.expect(PROMPT)
    assert b"\x1b[36m/help" not in screen.raw
    coloured = chat("-n", "2", "-c", "256", NO_COLOR="")
    coloured.line("/help")
    coloured.expect("/quit, /exit")
    assert b"\x1b[36m/help" in coloured.raw


def test_a_grammar_holds_in_every_answer(chat: Chat) -> None:
    screen = chat("-n", "12", "-c", "512", "-j", '{"enum":["yes","no"]}', "--spec-type", "ngram-cache")
    for _ in range(2):
        screen.line("Is the sea wet?")
        screen.expect(r'\)"(yes|no)"\n')
        screen.expect(SPEED)
        screen.expect(PROMPT)
    screen.line("/quit")
    assert screen.wait() == 0
