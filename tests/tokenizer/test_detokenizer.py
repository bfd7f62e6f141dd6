"""Streaming text: never half a character, the same however it is cut, and rewindable."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4py.protocols import Timeline
from ds4py.tokenizer import Detokenizer, Tokenizer

Make = Callable[..., Tokenizer]


def over(pieces: list[bytes], strip: bool = False) -> Detokenizer:
    return Detokenizer(pieces.__getitem__, strip)


@st.composite
def cut_bytes(draw: st.DrawFn) -> list[bytes]:
    """Text or broken bytes, cut anywhere."""
    data = draw(st.one_of(st.text(max_size=12).map(str.encode), st.binary(max_size=20)))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@given(cut_bytes())
def test_any_cut_gives_the_same_text(pieces: list[bytes]) -> None:
    stream = over(pieces)
    text = "".join(map(stream.push, range(len(pieces)))) + stream.flush()
    assert text == b"".join(pieces).decode("utf-8", "replace")


@given(cut_bytes(), st.data())
def test_truncate_forgets_and_goes_on(pieces: list[bytes], data: st.DataObject) -> None:
    stream = over(pieces)
    texts = [stream.push(i) for i in range(len(pieces))]
    back = data.draw(st.integers(0, len(pieces)))
    stream.flush()
    stream.truncate(back)
    assert stream.pos == back
    assert [stream.push(i) for i in range(back, len(pieces))] == texts[back:]


def test_a_character_comes_when_it_is_whole() -> None:
    stream = over([b"\xf0\x9f", b"\x98", b"\x80!", b"\xe4\xbd"])
    assert [stream.push(i) for i in range(4)] == ["", "", "\U0001f600!", ""]
    assert stream.flush() == "\ufffd"


def test_it_is_a_timeline() -> None:
    stream = over([b"a"])
    assert isinstance(stream, Timeline) and stream.floor == stream.pos == 0
    for pos in (-1, 1):
        with pytest.raises(ValueError, match="truncate"):
            stream.truncate(pos)


def test_first_space_is_dropped_once(byte_level: Make) -> None:
    stream = over([b"", b" ", b" a"], strip=True)
    assert [stream.push(i) for i in range(3)] == ["", "", " a"]
    stream.truncate(1)
    assert stream.push(2) == "a"


def test_control_tokens_are_silent_unless_shown(byte_level: Make) -> None:
    tokenizer = byte_level({"<|x|>": 3, "<|y|>": 3, "<think>": 4, "[PAD1]": 5})
    ids = [97, 256, 257, 258, 259, 98]
    assert tokenizer.decode(ids) == "a<think>b"
    assert tokenizer.decode(ids, special=True) == "a<|x|><|y|><think>b"
    shown = tokenizer.detokenizer(show=frozenset({257}))
    assert "".join(map(shown.push, ids)) == "a<|y|><think>b"
    assert tokenizer.token_bytes(256) == b"<|x|>" and tokenizer.token_bytes(10**9) == b"" and tokenizer.token_bytes(-1) == b""


def test_byte_level_spellings_do_not_show(byte_level: Make) -> None:
    tokenizer = byte_level({}, ["\u0120 f", "\u0120f o", "\u010a \u010a"])
    assert tokenizer.decode([257, 258]) == " fo\n\n"
    assert tokenizer.token_text(256) == " f"
