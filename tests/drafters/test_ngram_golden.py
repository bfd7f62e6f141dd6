"""The documented examples of every draftless drafter, and the rolling hash against its definition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ngram_reference import UNTIMED

from ds4py.drafters.config import ModSizes, NgramSizes
from ds4py.drafters.lookup_file import LookupCache, pack
from ds4py.drafters.ngram_cache import LookupCaches, NgramCache, look_up
from ds4py.drafters.ngram_map_k import NgramMapK
from ds4py.drafters.ngram_map_k4v import NgramMapK4V
from ds4py.drafters.ngram_mod import NgramMod
from ds4py.drafters.ngram_simple import NgramSimple
from ds4py.drafters.rolling_hash import MAP_FACTOR, MOD_FACTOR, RollingHash

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden/drafters/ngram.json").read_text())


def ask(drafter: Any, history: list[int], last: int, k: int = 1024) -> list[int]:
    drafter.observe(history, {})
    return list(drafter.propose(k, last, None).tokens)


@pytest.mark.parametrize("case", GOLDEN["hashes"], ids=lambda case: str(case["slot"]))
def test_hash(case: dict[str, Any]) -> None:
    h = RollingHash(len(case["tokens"]), case["factor"], case["n_bits"]).of(case["tokens"])
    assert case["factor"] in (MAP_FACTOR, MOD_FACTOR)
    assert h % case["slots"] == case["slot"]
    assert h == case.get("hash", h)


@UNTIMED
@given(st.lists(st.integers(0, 2**31 - 1), min_size=12, max_size=60), st.integers(1, 11), st.sampled_from([32, 64]))
def test_rolling_equals_reading_anew(tokens: list[int], n: int, n_bits: int) -> None:
    hashing = RollingHash(n, MOD_FACTOR, n_bits)
    h = hashing.of(tokens[:n])
    for i in range(n, len(tokens)):
        h = hashing.roll(h, tokens[i - n], tokens[i])
        assert h == hashing.of(tokens[i - n + 1 : i + 1]) < 2**n_bits


@pytest.mark.parametrize("case", GOLDEN["ngram-simple"])
def test_simple(case: dict[str, Any]) -> None:
    assert ask(NgramSimple(NgramSizes(case["n"], case["m"])), case["history"], case["last"]) == case["draft"]


def test_map_k_remembers_accepted_lengths() -> None:
    case = GOLDEN["ngram-map-k"]
    drafter = NgramMapK(NgramSizes(case["n"], case["m"], case["min_hits"]))
    drafter.observe(case["history"], {})
    for done in case["rounds"]:
        draft = list(drafter.propose(1024, done["last"], None).tokens)
        assert draft == done["draft"]
        if "accepted" in done:
            drafter.truncate(drafter.pos)
            drafter.observe([done["last"], *draft[: done["accepted"]]], {})
            drafter.observe([70 + drafter.pos, case["history"][-1]], {})  # the target's own token, and the key once more


@pytest.mark.parametrize("case", GOLDEN["ngram-map-k4v"])
def test_map_k4v(case: dict[str, Any]) -> None:
    assert ask(NgramMapK4V(NgramSizes(case["n"], case["m"])), case["history"], case["last"]) == case["draft"]


@pytest.mark.parametrize("case", GOLDEN["ngram-mod"])
def test_mod(case: dict[str, Any]) -> None:
    sizes = ModSizes(case["n_match"], case["n_min"], case["n_max"])
    assert ask(NgramMod(sizes), case["history"], case["last"]) == case["draft"]


def test_cache() -> None:
    case = GOLDEN["ngram-cache"]
    text = case["text"]
    assert ask(NgramCache(), text[:-1], text[-1]) == case["as_context"]
    statistics = LookupCache()
    for i in range(1, len(text)):
        for n in range(1, min(i, 4) + 1):
            statistics.add(pack(text[:i]), n, text[i])
    nothing = LookupCache()
    assert look_up(text, statistics, LookupCaches(), 8) == case["as_context"]
    assert look_up(text, nothing, LookupCaches(dynamic=statistics), 8) == case["as_dynamic"]
    static = LookupCache()
    for token, count in case["static"]["counts"].items():
        static.add(pack(case["static"]["ngram"]), 2, int(token), count)
    assert look_up(text, nothing, LookupCaches(static=static), 8) == case["static_alone"]


def test_defaults_are_the_documented_ones() -> None:
    assert NgramSizes() == NgramSizes(12, 48, 1)
    assert ModSizes() == ModSizes(24, 48, 64)
    long = list(range(100, 180))
    for drafter in (NgramSimple(NgramSizes()), NgramMapK(NgramSizes()), NgramMapK4V(NgramSizes())):
        assert ask(drafter, [1, *long, *range(10), *long[:11]], long[11]) == long[12:60]
    assert ask(NgramMod(ModSizes()), [*long, *range(10), *long[:23]], long[23]) == [*long[24:], *range(8)]
