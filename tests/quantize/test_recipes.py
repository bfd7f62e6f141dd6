"""Recipes against what llama.cpp stored for the same skeletons (tests/scripts/golden_recipes.py records it)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ds4py.errors import UsageError
from ds4py.gguf import GgmlType, open_gguf
from ds4py.quantize import Options, make_plan, recipe
from ds4py.quantize.recipes import RECIPES

HERE = Path(__file__).parent
GOLDEN: dict[str, Any] = json.loads((HERE.parent / "golden" / "recipes.json").read_text())
GOLDEN.pop("made by")


@pytest.fixture(scope="module")
def skeletons(tmp_path_factory: pytest.TempPathFactory) -> Any:
    sys.path.insert(0, str(HERE.parent / "scripts"))
    import golden_recipes

    sys.path.pop(0)
    folder = tmp_path_factory.mktemp("skeletons")
    return golden_recipes, {name: golden_recipes.skeleton(folder / f"{i}.gguf", name) for i, name in enumerate(GOLDEN)}


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("with_imatrix", [False, True])
def test_every_recipe_gives_the_types_that_llama_cpp_gives(skeletons: Any, name: str, with_imatrix: bool) -> None:
    tools, files = skeletons
    g = open_gguf(files[name])
    checked = 0
    for kind in tools.TYPES:
        expected = GOLDEN[name].get(f"{kind} imatrix") if with_imatrix else None
        expected = expected or GOLDEN[name].get(kind)
        if expected is None:
            assert kind == "IQ2_XXS" and not with_imatrix  # llama.cpp refuses
            continue
        plan = make_plan(g, Options(recipe(kind)), with_imatrix)
        assert tools.by_role({item.tensor.name: item.type.name for item in plan.tensors}) == expected, kind
        checked += 1
    assert checked >= len(tools.TYPES) - 1


@pytest.mark.parametrize(
    "name, kind", [("F16", GgmlType.F16), ("BF16", GgmlType.BF16), ("F32", GgmlType.F32), ("Q8_0", GgmlType.Q8_0)]
)
def test_plain_types_have_no_exceptions(skeletons: Any, name: str, kind: GgmlType) -> None:
    for path in skeletons[1].values():
        plan = make_plan(open_gguf(path), Options(recipe(name)))
        for item in plan.tensors:
            kept = len(item.tensor.shape) == 1 or "ffn_gate_inp" in item.tensor.name
            assert item.type is (item.tensor.type if kept else kind), item.tensor.name
        assert plan.file_type == RECIPES[name].file_type


def test_the_mix_of_large_mixtures(skeletons: Any) -> None:
    plan = make_plan(open_gguf(skeletons[1]["four experts"]), Options(recipe("ds4_q2")))
    types = {item.tensor.name: item.type.name for item in plan.tensors}
    assert types["blk.3.ffn_gate_exps.weight"] == types["blk.3.ffn_up_exps.weight"] == "IQ2_XXS"
    assert types["blk.3.ffn_down_exps.weight"] == "Q2_K"
    assert types["blk.3.attn_v.weight"] == types["output.weight"] == "Q8_0"
    assert types["token_embd.weight"] == "F16" and types["blk.3.ffn_gate_inp.weight"] == "F32"


def test_experts_in_mxfp4(skeletons: Any) -> None:
    plan = make_plan(open_gguf(skeletons[1]["four experts"]), Options(recipe("MXFP4_MOE")))
    for item in plan.tensors:
        wanted = "MXFP4" if "_exps" in item.tensor.name else "Q8_0"
        assert item.type.name in (wanted, "F32"), item.tensor.name


def test_names_are_found_in_any_case_and_by_their_short_forms() -> None:
    assert recipe("q4_k") is recipe("Q4_K_M") and recipe("fp16") is RECIPES["F16"]
    with pytest.raises(UsageError, match="no quantisation type 'Q4_KM'.*Q4_K_M"):
        recipe("Q4_KM")
