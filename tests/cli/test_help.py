"""Help pages: every topic, the note for an unknown one, colours only where they belong."""

from __future__ import annotations

import io

import pytest

from ds4py.cli.help import SLASH_COMMANDS, page
from ds4py.cli.options import TOPICS, for_command
from ds4py.cli.terminal import Terminal

PLAIN = Terminal(io.StringIO(), live=False, colour=False)
COLOURED = Terminal(io.StringIO(), live=True, colour=True)


@pytest.mark.parametrize("topic", ["runtime", "distributed", "sampling", "steering", "diagnostics", "speculation"])
def test_a_topic_lists_its_rows_and_no_others(topic: str) -> None:
    text, note = page("ds4", topic, PLAIN)
    assert note == ""
    entries = [line.split() for line in text.splitlines() if line.startswith("  -")]
    listed = {word.rstrip(",") for words in entries for word in words if word.startswith("-")}
    for option in for_command("ds4"):
        if topic in option.topics:
            assert listed >= set(option.names)
        else:
            assert not any(words[0].rstrip(",") in option.names for words in entries), option.name


def test_all_lists_every_row_and_command() -> None:
    text, note = page("ds4", "all", PLAIN)
    assert note == ""
    for option in for_command("ds4"):
        for name in option.names:
            assert name in text
    for name, _ in SLASH_COMMANDS:
        assert name in text


def test_the_default_page_shows_what_works_and_the_topics() -> None:
    text, note = page("ds4", "", PLAIN)
    assert note == "" and text.startswith("usage: ds4 [(-p PROMPT | --prompt-file FILE)] [options]")
    assert "--temp" in text and "--metal" not in text and "not in this build" not in text
    assert all(topic in text for topic in TOPICS["ds4"])
    assert "(default 32768)" in text and "[LLAMA_ARG_CTX_SIZE]" in text


def test_unknown_topic_gives_a_note_and_the_default_page() -> None:
    text, note = page("ds4", "cooking", PLAIN)
    assert "cooking" in note and "sampling" in note
    assert text == page("ds4", "", PLAIN)[0]


def test_colours_are_only_added() -> None:
    plain, coloured = page("ds4", "all", PLAIN)[0], page("ds4", "all", COLOURED)[0]
    assert "\x1b[" not in plain and "\x1b[" in coloured
    for code in ("\x1b[1m", "\x1b[36m", "\x1b[0m"):
        coloured = coloured.replace(code, "")
    assert coloured == plain


def test_pages_fit_a_wide_terminal() -> None:
    for command in TOPICS:
        for line in page(command, "all", PLAIN)[0].splitlines():
            assert len(line) <= 120, line
