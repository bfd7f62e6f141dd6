"""Tokens that are numpy's integers: they overflowed in the hashes, wrapped around, and drafts came from nowhere."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ngram_reference import random_text

from ds4py.drafters.config import ModSizes, NgramSizes
from ds4py.drafters.lookup_file import pack, push
from ds4py.drafters.ngram_cache import NgramCache
from ds4py.drafters.ngram_map_k import NgramMapK
from ds4py.drafters.ngram_map_k4v import NgramMapK4V
from ds4py.drafters.ngram_mod import NgramMod, NgramModPool
from ds4py.drafters.ngram_simple import NgramSimple
from ds4py.drafters.rolling_hash import MAP_FACTOR, MOD_FACTOR, RollingHash

KINDS = (np.int64, np.int32, np.uint16)
DRAFTERS: dict[str, Callable[[], Any]] = {
    "ngram-simple": lambda: NgramSimple(NgramSizes(2, 4)),
    "ngram-map-k": lambda: NgramMapK(NgramSizes(2, 4)),
    "ngram-map-k4v": lambda: NgramMapK4V(NgramSizes(2, 2)),
    "ngram-mod": lambda: NgramMod(ModSizes(3, 1, 8), NgramModPool(4096)),
    "ngram-cache": NgramCache,
}


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_integers_overflow_in_the_rolling_hash(kind: type[np.integer[Any]]) -> None:
    tokens = [49151, 3, 65535, 12, 40000, 7]
    numbers = np.array(tokens).astype(kind)
    for factor, n_bits in ((MAP_FACTOR, 32), (MOD_FACTOR, 64)):
        hashes = RollingHash(4, factor, n_bits)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert hashes.of(numbers[:4]) == hashes.of(tokens[:4])
            rolled = hashes.roll(hashes.of(numbers[:4]), numbers[0], numbers[4])
        assert rolled == hashes.of(tokens[1:5])


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_integers_overflow_in_packed_n_grams(kind: type[np.integer[Any]]) -> None:
    tokens = [65535, 3, 40000, 12]
    numbers = np.array(tokens).astype(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pack(numbers) == pack(tokens) and push(pack(numbers), numbers[0]) == push(pack(tokens), tokens[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DRAFTERS)
def test_drafts_are_those_of_plain_integers(name: str, kind: type[np.integer[Any]]) -> None:
    text = [50000 + token for token in random_text(300, 6, seed=3)]
    plain, other, n_drafts = DRAFTERS[name](), DRAFTERS[name](), 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for at in range(0, len(text), 3):
            piece = text[at : at + 3]
            plain.observe(piece, {})
            other.observe(np.array(piece).astype(kind), {})
            last = text[(at + 3) % len(text)]
            drafts = [plain.propose(5, last, None).tokens, other.propose(5, kind(last), None).tokens]
            assert list(drafts[0]) == list(drafts[1]) and all(type(token) is int for token in drafts[1])
            n_drafts += bool(drafts[0])
            if at % 60 == 30:
                for drafter in (plain, other):
                    drafter.truncate(drafter.pos - 7)
    assert n_drafts > 20
