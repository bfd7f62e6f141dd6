"""What the plan decides: fallbacks by row length, rules, what stays, labels, and the refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ds4py.errors import FormatError, UsageError
from ds4py.gguf import GgmlType, GgufFile, NewTensor, open_gguf, write_gguf
from ds4py.quantize import Options, Plan, Rule, make_plan, recipe

T = GgmlType


def matrix(n_rows: int, row_len: int) -> np.ndarray:
    return np.ones((n_rows, row_len), np.float32)


def types(plan: Plan) -> dict[str, str]:
    return {item.tensor.name: item.type.name for item in plan.tensors}


def planned(g: GgufFile, name: str, *rules: str, **options: Any) -> Plan:
    return make_plan(g, Options(recipe(name), tuple(map(Rule.parse, rules)), **options))


WIDTHS = (64, 96, 255, 256, 288, 4096 + 32)
AFTER = {  # wanted type -> what rows of WIDTHS take
    "Q4_K": ("Q5_0", "Q5_0", "F16", "Q4_K", "Q5_0", "Q5_0"),
    "Q5_K": ("Q5_1", "Q5_1", "F16", "Q5_K", "Q5_1", "Q5_1"),
    "Q6_K": ("Q8_0", "Q8_0", "F16", "Q6_K", "Q8_0", "Q8_0"),
    "Q2_K": ("Q4_0", "Q4_0", "F16", "Q2_K", "Q4_0", "Q4_0"),
    "Q3_K": ("Q4_0", "Q4_0", "F16", "Q3_K", "Q4_0", "Q4_0"),
    "IQ2_XXS": ("IQ4_NL", "IQ4_NL", "F16", "IQ2_XXS", "IQ4_NL", "IQ4_NL"),
    "Q8_0": ("Q8_0", "Q8_0", "F16", "Q8_0", "Q8_0", "Q8_0"),
    "MXFP4": ("MXFP4", "MXFP4", "F16", "MXFP4", "MXFP4", "MXFP4"),
}


@pytest.mark.parametrize("wanted", AFTER)
def test_rows_that_are_no_whole_blocks_take_the_documented_type(make: Any, wanted: str) -> None:
    g = make({f"blk.{i}.ffn_up.weight": matrix(2, width) for i, width in enumerate(WIDTHS)})
    plan = planned(g, wanted, pure=True)
    assert tuple(types(plan).values()) == AFTER[wanted]
    different = [item.tensor.name for item in plan.tensors if item.type.name != wanted]
    assert [item.tensor.name for item in plan.fallbacks] == different
    with pytest.raises(FormatError, match=f"{len(different)} tensor.*{different[0]}.*--strict"):
        planned(g, wanted, pure=True, strict=True)


def test_a_rule_falls_back_too_and_says_so(make: Any) -> None:
    plan = planned(make({"blk.0.ffn_up.weight": matrix(2, 288)}), "Q8_0", "ffn_up=Q4_K")
    (item,) = plan.fallbacks
    assert (item.wanted, item.type, item.rule) == (T.Q4_K, T.Q5_0, Rule("ffn_up", T.Q4_K))


def test_vectors_norms_routers_and_tiny_rows_stay(make: Any) -> None:
    stays = {
        "output_norm.weight": np.ones(64, np.float32),
        "blk.0.attn_q_norm.weight": matrix(4, 64),
        "blk.0.attn_q.bias": np.ones(64, np.float32),
        "blk.0.ffn_gate_exps.bias": matrix(8, 64),
        "blk.0.ffn_gate_inp.weight": matrix(8, 64),
        "blk.0.small.weight": matrix(8, 3),
        "rope_freqs.weight": np.ones(64, np.float32),
        "blk.0.strange": matrix(8, 64),
    }
    plan = planned(make(stays | {"blk.0.ffn_up.weight": matrix(4, 64)}), "Q8_0")
    assert types(plan) == dict.fromkeys(stays, "F32") | {"blk.0.ffn_up.weight": "Q8_0"} and not plan.fallbacks


def test_stacked_experts_are_quantised_under_either_name(make: Any) -> None:
    experts = np.ones((8, 64, 256), np.float32)
    plan = planned(make({"blk.0.ffn_down_exps.weight": experts, "blk.0.ffn_up_exps": experts}, expert_count=8), "Q4_K_S")
    assert set(types(plan).values()) <= {"Q4_K", "Q5_K"}
    assert all(item.n_mat == 8 for item in plan.tensors)


def test_the_first_rule_that_fits_decides(make: Any) -> None:
    g = make({f"blk.{i}.{part}.weight": matrix(2, 256) for i in range(3) for part in ("ffn_up", "ffn_down")})
    plan = planned(g, "Q8_0", r"blk\.1\..*down=F16", "ffn_down=Q4_K", "ffn_up=q6_k")
    assert types(plan) == {
        f"blk.{i}.{part}.weight": "Q6_K" if part == "ffn_up" else "F16" if i == 1 else "Q4_K"
        for i in range(3)
        for part in ("ffn_up", "ffn_down")
    }


@pytest.mark.parametrize(
    "rules, sentence",
    [
        (("ffn_dwn=Q4_K",), "ffn_dwn=Q4_K matches no tensor"),
        (("ffn=Q8_0", "ffn_up=Q4_K"), r"ffn_up=Q4_K decides nothing: earlier rules take its 1 tensor"),
        (("norm=Q8_0",), "norm=Q8_0 decides nothing"),
        (("ffn_up",), "must be PATTERN=TYPE, not 'ffn_up'"),
        (("=Q8_0",), "must be PATTERN=TYPE"),
        (("ffn_(up=Q8_0",), "no regular expression"),
        (("ffn_up=Q9_9",), "'Q9_9' is no type that can be written; types are .*Q4_K"),
        (("ffn_up=IQ1_S",), "'IQ1_S' is no type that can be written"),
    ],
)
def test_rules_that_cannot_be_meant_are_errors(make: Any, rules: tuple[str, ...], sentence: str) -> None:
    g = make({"blk.0.ffn_up.weight": matrix(2, 256), "output_norm.weight": np.ones(256, np.float32)})
    with pytest.raises(UsageError, match=sentence):
        planned(g, "Q8_0", *rules)


def test_a_broad_pattern_does_not_ruin_the_router(make: Any) -> None:
    g = make({"blk.0.ffn_gate.weight": matrix(2, 256), "blk.0.ffn_gate_inp.weight": matrix(8, 256)})
    assert types(planned(g, "Q8_0", "ffn_gate=Q4_0"))["blk.0.ffn_gate_inp.weight"] == "F32"
    assert types(planned(g, "Q8_0", "ffn_gate_inp=F16"))["blk.0.ffn_gate_inp.weight"] == "F16"


def test_output_and_embedding_have_their_options(make: Any) -> None:
    g = make({"token_embd.weight": matrix(4, 256), "output.weight": matrix(4, 256), "blk.0.ffn_up.weight": matrix(4, 256)})
    assert types(planned(g, "Q4_K_S")) == {"token_embd.weight": "Q4_K", "output.weight": "Q6_K", "blk.0.ffn_up.weight": "Q4_K"}
    chosen = planned(g, "Q4_K_S", output_type=T.Q8_0, embedding_type=T.F16)
    assert types(chosen) == {"token_embd.weight": "F16", "output.weight": "Q8_0", "blk.0.ffn_up.weight": "Q4_K"}
    assert types(planned(g, "Q4_K_S", leave_output=True))["output.weight"] == "F32"
    assert set(types(planned(g, "Q4_K_S", pure=True)).values()) == {"Q4_K"}


def test_a_tied_output_is_treated_as_the_output(make: Any) -> None:
    g = make({"token_embd.weight": matrix(4, 256), "blk.0.ffn_up.weight": matrix(4, 256)})
    assert types(planned(g, "Q4_0"))["token_embd.weight"] == "Q6_K"
    assert types(planned(g, "Q4_0", embedding_type=T.Q5_0, output_type=T.Q8_0))["token_embd.weight"] == "Q5_0"


def test_the_label_follows_what_most_weights_are(make: Any) -> None:
    odd = {f"blk.{i}.ffn_up.weight": matrix(4, 288) for i in range(4)}
    assert planned(make(odd), "Q4_K_M").file_type == 8  # Q5_0 is what they became
    assert planned(make(odd | {"blk.0.ffn_down.weight": matrix(20, 256)}), "Q4_K_M", "ffn_down=Q4_K").file_type == 15
    assert planned(make(odd), "F16").file_type == 1
    assert planned(make(odd), "Q8_0", "ffn_up=BF16").file_type == 32


def test_quantising_twice_must_be_asked_for(make: Any, tmp_path: Any) -> None:
    path = tmp_path / "q.gguf"
    blocks = np.zeros(4 * 34, np.uint8)
    write_gguf(path, {"general.architecture": "llama"}, [NewTensor("blk.0.ffn_up.weight", (64, 2), T.Q8_0, blocks)])
    g = open_gguf(path)
    with pytest.raises(
        UsageError, match=r"q.gguf is quantised already: 1 tensor.*blk.0.ffn_up.weight \(Q8_0 to Q4_0\).*--allow-requantize"
    ):
        planned(g, "Q4_0")
    assert types(planned(g, "Q4_0", allow_requantize=True)) == {"blk.0.ffn_up.weight": "Q4_0"}
    assert not planned(g, "Q8_0").tensors[0].changes  # the same type is a copy, not a loss
