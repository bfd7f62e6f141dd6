"""The think splitter: the same parts for every cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4py.chat import ThinkTags
from ds4py.chat.think import ThinkSplitter

TAGS = ThinkTags("<think>", "</think>")
CASES = [  # text, prompt opened it, reasoning, answer
    ("<think>\nplan\n</think>\n\nanswer", False, "plan", "answer"),
    ("  \n<think>plan</think>answer", False, "plan", "answer"),
    ("plan\n\nmore\n</think>\n\nanswer", True, "plan\n\nmore", "answer"),
    ("<think>\nplan\n</think>\nanswer", True, "plan", "answer"),
    ("\n\n</think>\n\nanswer", True, "", "answer"),
    ("<think>\n\n</think>\n\nanswer", False, "", "answer"),
    ("just an answer", False, "", "just an answer"),
    ("  spaces first", False, "", "  spaces first"),
    ("\n", False, "", "\n"),
    ("a <think>b</think>", False, "", "a <think>b</think>"),
    ("<think>x</think>y</think>z<think>", False, "x", "y</think>z<think>"),
    ("<thing>", False, "", "<thing>"),
    ("<think>a </thin b\n</thinking", False, "a </thin b\n</thinking", ""),
    ("never closed\n", True, "never closed\n", ""),
    ("<thi", False, "", "<thi"),
    ("<think>", False, "", ""),
    ("", True, "", ""),
]


def split(pieces: list[str], inside: bool, tags: ThinkTags | None = TAGS) -> tuple[str, str, ThinkSplitter]:
    splitter = ThinkSplitter(tags, inside)
    parts = [part for piece in pieces for part in splitter.feed(piece)] + splitter.flush()
    assert all(text for _, text in parts)
    reasoning, answer = ("".join(text for is_reasoning, text in parts if is_reasoning is kind) for kind in (True, False))
    return reasoning, answer, splitter


@pytest.mark.parametrize(("text", "inside", "reasoning", "answer"), CASES)
def test_every_cut_in_three_gives_the_same(text: str, inside: bool, reasoning: str, answer: str) -> None:
    for a, b in itertools.combinations_with_replacement(range(len(text) + 1), 2):
        got_reasoning, got_answer, splitter = split([text[:a], text[a:b], text[b:]], inside)
        assert (got_reasoning, got_answer) == (reasoning, answer)
        if answer:
            assert text[splitter.state.text_base :] == answer
    assert split(list(text), inside)[:2] == (reasoning, answer)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<", "/", "think>", "\n", " ", "a"]), max_size=10), st.booleans())
def test_one_piece_or_many(pieces: list[str], inside: bool) -> None:
    text = "".join(pieces)
    assert split(pieces, inside)[:2] == split([text], inside)[:2] == split(list(text), inside)[:2]


def test_without_tags_all_is_answer() -> None:
    assert split(["<think>a", "</think>"], False, None)[:2] == ("", "<think>a</think>")
