"""What a draft costs by its file, and that a draft model which can never pay is left out where no clock may be asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from draft_tools import PAIR
from tiny_models import tiny_gguf

from ds4py.drafters import Drafters, SpecConfig, open_drafters
from ds4py.drafters.price import ROW, Price, block_price, model_price, read_bytes, row_price
from ds4py.engine import Engine, SessionOptions
from ds4py.engine.cost import CostAware
from ds4py.engine.depth import Adaptive
from ds4py.engine.speculation import line, speculating, target_of
from ds4py.gguf import open_gguf
from ds4py.protocols import SamplingParams

HOT, COLD = SessionOptions(SamplingParams(0.8)), SessionOptions(SamplingParams(0))


def test_a_rows_bytes_are_those_of_its_matrices(tmp_path: Path) -> None:
    g = open_gguf(tiny_gguf("qwen3", tmp_path / "a.gguf"))
    matrices = {name: t.nbytes for name, t in g.tensors.items() if len(t.shape) == 2}
    free = 0 if "output.weight" not in g.tensors else matrices["token_embd.weight"]
    assert read_bytes(g) == (sum(matrices.values()) - free, 0) and row_price(g) == ROW


def test_of_a_mixture_only_the_experts_in_use_count(tmp_path: Path) -> None:
    g = open_gguf(tiny_gguf("qwen3moe", tmp_path / "a.gguf"))
    share = g.get("expert_used_count") / g.get("expert_count")
    experts = share * sum(t.nbytes for t in g.tensors.values() if len(t.shape) == 3)
    assert 0 < share < 1 and read_bytes(g)[1] == pytest.approx(experts)
    assert ROW < row_price(g) < 0.5, "rows of a mixture share less"


def test_a_borrowed_head_is_read_all_the_same() -> None:
    target, eagle, spark = (open_gguf(PAIR / f"{name}.gguf") for name in ("target", "eagle3", "dspark"))
    assert "output.weight" in eagle.tensors and "output.weight" not in spark.tensors
    own = model_price(target, eagle)
    assert own.start == 0 and own.token == read_bytes(eagle)[0] / read_bytes(target)[0]
    block = block_price(target, spark, 7)
    head = target.tensors["output.weight" if "output.weight" in target.tensors else "token_embd.weight"].nbytes
    assert block.start == pytest.approx((read_bytes(spark)[0] + head) / read_bytes(target)[0] * (1 + 6 * ROW))
    markov = next(t.nbytes for name, t in spark.tensors.items() if "markov_w2" in name)
    assert block.token == pytest.approx(markov / read_bytes(target)[0])


@pytest.mark.parametrize(
    ("price", "n_max", "pays"),
    [
        (Price(), 1, True),
        (Price(token=0.8), 1, True),
        (Price(token=0.84), 1024, False),
        (Price(token=0.93), 3, False),
        (Price(start=2.0, token=0.1), 2, False),
        (Price(start=2.0, token=0.1), 7, True),
    ],
)
def test_what_can_pay(price: Price, n_max: int, pays: bool) -> None:
    assert price.can_pay(n_max) == pays


def test_a_draft_model_as_dear_as_the_target_is_not_asked_where_the_clock_may_not_decide(
    tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path]
) -> None:
    """It was, above temperature 0, and halved the speed: counts alone can only see that it is right."""
    engine, path = tiny_engine(), tiny_file(noise=0.04)
    assert engine.gguf is not None
    target = target_of(engine, engine.gguf)

    def opened(**settings: object) -> Drafters:
        return open_drafters(SpecConfig(draft_model=path, **settings), target)  # type: ignore[arg-type]

    plain = opened()
    assert list(plain.too_dear()) == ["draft-simple"] and plain.new(True) is None and plain.new(False) is not None
    assert speculating(HOT, plain) == HOT and speculating(COLD, plain).drafter is not None
    for options in (HOT, None):
        said = line(plain, options)
        assert "above temperature 0 without draft-simple (a token at 1.00 of the model's cost)" in said and "\n" not in said
        assert "--mtp-exact-sampling" in said and "--spec-depth adaptive" in said
    for quiet in (line(plain, COLD), line(opened(accept="exact"), HOT), line(opened(depth="fixed"), HOT)):
        assert "without draft-simple" not in quiet
    seldom = "; no acceptance could pay for a token at 1.00 of the model's cost, so it is asked but seldom"
    assert line(plain, COLD).endswith(seldom) and line(plain).endswith(f"{seldom} at temperature 0")
    assert line(opened(accept="exact")).endswith(seldom) and "seldom" not in line(opened(depth="fixed"))
    assert isinstance(speculating(COLD, plain).depth, CostAware)
    for asked in (opened(accept="exact"), opened(depth="fixed"), opened(depth="adaptive"), opened(depth="ds4")):
        assert speculating(HOT, asked).drafter is not None
    chained = opened(types=("ngram-simple", "draft-simple"))
    assert type(chained.new(True)).__name__ == "NgramSimple" and chained.price() == Price(), "n-grams go on without it"
    assert plain.in_vain() == Price(token=1.0) and chained.in_vain() is None


def test_the_price_reaches_the_policy(tiny_engine: Callable[..., Engine], tiny_file: Callable[..., Path]) -> None:
    """A quarter of the target's layers: the same counts make a shorter draft than of n-grams."""
    engine = tiny_engine()
    assert engine.gguf is not None
    drafters = open_drafters(SpecConfig(draft_model=tiny_file(num_hidden_layers=1), n_max=8), target_of(engine, engine.gguf))
    assert 0 < drafters.price().token < 0.8
    policy = speculating(HOT, drafters).depth
    assert isinstance(policy, Adaptive) and policy.depth() < Adaptive(8).depth()
