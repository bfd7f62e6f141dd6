"""Arguments for strict parsers: beginnings of JSON, and slips that are put right, wherever the text is cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4py.server.json_prefix import JsonPrefix
from ds4py.server.sound_json import SoundJson

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_json_is_taken_whole(value: object, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    prefix = JsonPrefix()
    assert prefix.feed(text) == text and prefix.holds


@given(values, st.data())
def test_a_character_too_many_is_the_last(value: object, data: st.DataObject) -> None:
    """Against the parser of the standard library: it says at which character a text stops being JSON."""
    text = json.dumps(value)
    at = data.draw(st.integers(0, len(text)))
    broken = text[:at] + data.draw(st.sampled_from(list('{}[]",:\\x\n-.e0t'))) + text[at:]
    taken = JsonPrefix().feed(broken)
    pieces = JsonPrefix()
    assert "".join(pieces.feed(char) for char in broken) == taken
    try:
        json.loads(broken)
        assert taken == broken
    except json.JSONDecodeError as error:
        # it goes past the place of the error by what it must look ahead: the rest of a word, or of an escape
        assert taken == broken or len(taken) >= error.pos or broken[len(taken)] in '"\\'


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ('{"a": 2, "b": }', '{"a": 2, "b": '),
        ('{"a": x}', '{"a": '),
        ('{"a": "b\nc"}', '{"a": "b'),
        ('{"a": "\\x"}', '{"a": "\\'),
        ('{"a": "\\u00g0"}', '{"a": "\\u00'),
        ('{"a": 01}', '{"a": 0'),
        ('{"a": 1.e5}', '{"a": 1.'),
        ('{"a": tru}', '{"a": tru'),
        ('{"a" "b"}', '{"a" '),
        ('{"a": 1,}', '{"a": 1,'),
        ("[1, 2}", "[1, 2"),
        ("{} x", "{} "),
        ("{'a'}", "{"),
        ('{"a": NaN}', '{"a": '),
    ],
)
def test_where_it_ends(text: str, taken: str) -> None:
    prefix = JsonPrefix()
    assert prefix.feed(text) == taken and not prefix.holds and prefix.feed("}") == ""


def sound(*pieces: str) -> str:
    made = SoundJson()
    return "".join([made.feed(piece) for piece in pieces] + [made.end()])


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ('{\n"a": "b\n\tc\x00"}', '{\n"a": "b\\n\\tc\\u0000"}'),
        (
            r'["\ud83d\ude00 \ud83d \ude00 \ud83d\n \ud83d\ud83d\ude00 \u00e9"]',
            r'["\ud83d\ude00 \ufffd \ufffd \ufffd\n \ufffd\ud83d\ude00 \u00e9"]',
        ),
        (r'["\\ud83d \" \\", "\ud8', r'["\\ud83d \" \\", "\ud8'),
        (r'["\ud83d', r'["\ufffd'),
        ('"\\', '"\\'),
    ],
)
def test_slips_are_put_right_wherever_they_are_cut(text: str, want: str) -> None:
    assert sound(text) == want
    for at in range(len(text)):
        assert sound(text[:at], text[at:]) == want
    assert sound(*text) == want


@given(values, st.booleans())
def test_sound_json_stays_as_it_is(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=1)
    assert sound(text) == sound(*text) == text
