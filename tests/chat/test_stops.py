"""Stop strings against their definition, however the text is cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ds4py.chat.stops import StopStrings

STOPS = st.lists(st.text("ab\U0001f600", max_size=4), max_size=4)


def by_definition(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Character by character: the first stop string that is complete, the longest of those."""
    for end in range(1, len(text) + 1):
        met = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if met:
            stop = max(met, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(st.text("ab\U0001f600c", max_size=20), STOPS, st.lists(st.integers(0, 20), max_size=6))
def test_any_cut_gives_what_the_definition_says(text: str, stops: list[str], cuts: list[int]) -> None:
    search = StopStrings(stops)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    shown, met = "", None
    for start, end in zip(edges, edges[1:], strict=False):
        more, met = search.feed(text[start:end])
        shown += more
        if met is not None:
            break
    assert (shown if met else shown + search.flush(), met) == by_definition(text, stops)


def test_only_a_possible_beginning_is_held() -> None:
    search = StopStrings(["STOP"])
    assert search.feed("aST") == ("a", None) and search.state == "ST"
    assert search.feed("x") == ("STx", None) and search.state == ""


def test_first_complete_wins() -> None:
    assert StopStrings(["ab", "abc"]).feed("xabc") == ("x", "ab")
    assert StopStrings(["bcde", "cd"]).feed("abcde") == ("ab", "cd")
    assert StopStrings(["c", "abc"]).feed("xabc") == ("x", "abc")
    assert StopStrings([""]).feed("abc") == ("abc", None)
