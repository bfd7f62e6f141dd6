"""Options as the engine takes them."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ds4py.cli import settings
from ds4py.cli.parsing import parse
from ds4py.errors import UsageError
from ds4py.tokenizer import Tokenizer

VOCAB = cast(Tokenizer, SimpleNamespace(vocab_size=100, stop_ids=frozenset({2, 7})))


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LLAMA_ARG_TOP_K", "LLAMA_ARG_N_PREDICT"):
        monkeypatch.delenv(name, raising=False)


def sampling(architecture: str, *argv: str) -> tuple[Any, ...]:
    found = settings.sampling(parse("ds4", list(argv)), architecture)
    return found.temperature, found.top_k, found.top_p, found.min_p


def test_defaults_by_family() -> None:
    assert sampling("llama") == (1.0, 0, 1.0, 0.05)
    assert sampling("glm4moe") == (1.0, 0, 0.95, 0.0)


def test_glm_defaults_replace_only_what_nobody_set() -> None:
    assert sampling("glm-dsa", "--top-p", "1", "--temp", "0.3") == (0.3, 0, 1.0, 0.0)
    assert sampling("glm-dsa", "--min-p", "0.05") == (1.0, 0, 0.95, 0.05)


def test_penalties() -> None:
    found = settings.penalties(
        parse("ds4", "--repeat-penalty 1.1 --repeat-last-n -1 --presence-penalty -2 --frequency-penalty .5".split())
    )
    assert (found.repeat, found.last_n, found.presence, found.frequency) == (1.1, -1, -2.0, 0.5)
    assert not settings.penalties(parse("ds4", [])).active


def bias(*argv: str) -> dict[int, float]:
    return settings.bias(parse("ds4", list(argv)), VOCAB)


def test_bias() -> None:
    assert bias() == {}
    assert bias("-l", "3+1.5", "-l", "4-.5", "-l", "3+1") == {3: 2.5, 4: -0.5}
    assert bias("-l", "99-inf") == {99: -math.inf}
    assert bias("--ignore-eos", "-l", "7+5") == {2: -math.inf, 7: -math.inf}


@pytest.mark.parametrize(
    "text", ["", "3", "3=4", "a+1", "-1+5", "3+nan", "3+1e999", "3+", "+5", "3++5", " 3+5", "3+inf", "100+1", "999999999+1"]
)
def test_a_bias_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="--logit-bias"):
        bias("-l", text)


def test_seed() -> None:
    assert settings.seed(parse("ds4", ["--seed", "5"])) == (5, False)
    for argv in ([], ["--seed", "0"], ["--seed", "-1"]):
        made, made_up = settings.seed(parse("ds4", argv))
        assert made_up and 0 < made < 2**32
    assert len({settings.seed(parse("ds4", []))[0] for _ in range(20)}) > 15
