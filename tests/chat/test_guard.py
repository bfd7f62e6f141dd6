"""No text in any field of any message becomes a control segment, and all of it comes through unchanged."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4py.chat.guard import Guard
from ds4py.errors import UsageError

MARKERS = ["<|im_end|>", "<|im_start|>", "</think>", "[INST]", "\uff5cDSML\uff5c", "||", "<|", "\x01"]
TEXTS = st.lists(st.sampled_from([*MARKERS, "<", "|", "im_end|>", "x", " ", "[", "\ufdd0", "\\ufdd1", "\uff5c"])).map("".join)


@given(TEXTS, TEXTS, st.booleans())
def test_only_the_templates_markers_are_control(first: str, second: str, as_json: bool) -> None:
    guard = Guard(MARKERS)
    sentinel = guard.sentinel([first, second])
    assert sentinel not in first + second
    a, b = guard.hide([first, second], sentinel)
    if as_json:
        prompt = guard.reveal("<|im_start|>" + json.dumps(a) + "</think>", sentinel)
        assert [text for text, is_control in prompt.segments if is_control] == ["<|im_start|>", "</think>"]
        assert str(prompt) == "<|im_start|>" + json.dumps(first) + "</think>"
        return
    prompt = guard.reveal("<|im_start|>" + a + b + "</think>", sentinel)  # joined without anything between
    assert [text for text, is_control in prompt.segments if is_control] == ["<|im_start|>", "</think>"]
    assert str(prompt) == "<|im_start|>" + first + second + "</think>"


def test_every_string_of_a_structure_is_treated() -> None:
    guard = Guard(MARKERS)
    value = {"<|im_end|>": ["<|im_end|>", {"a": ("</think>", 1, None, True)}]}
    hidden = guard.hide(value, "S")
    assert hidden == {"<S|im_end|S>": ["<S|im_end|S>", {"a": ["<S/think>", 1, None, True]}]} or "<|im_end|>" not in str(hidden)
    assert str(hidden).replace("S", "") == str(value).replace("(", "[").replace(")", "]")


def test_more_spellings_can_be_hidden_from_template_logic() -> None:
    guard = Guard(["<|x|>"], ["</think>"])
    hidden = guard.hide("a</think>b", "S")
    assert "</think>" not in hidden
    assert guard.reveal("</think>" + hidden, "S").segments == (("</think>a</think>b", False),)


def test_someone_uses_every_spare_character() -> None:
    spare = "".join(map(chr, [*range(0xFDD0, 0xFDF0), *range(0xE000, 0xF900)]))
    assert Guard([]).sentinel([spare[:-1]]) == spare[-1]
    with pytest.raises(UsageError, match="remove one"):
        Guard([]).sentinel([spare])
