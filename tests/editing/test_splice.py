"""Splicing: every tensor of the result is byte for byte the base's or the donor's, and unlike files are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ds4py.editing import parse_layers, plan_splice, splice
from ds4py.editing.together import copied
from ds4py.errors import FormatError, UsageError
from ds4py.gguf import GgufFile, open_gguf, write_gguf


def test_chosen_tensors_are_the_donors_and_all_others_the_bases(base: GgufFile, donor: GgufFile, tmp_path: Path) -> None:
    exchanges = plan_splice(base, donor, frozenset({1, 3}))
    assert len(exchanges) == 6
    splice(base, donor, exchanges, tmp_path / "out.gguf")
    out = open_gguf(tmp_path / "out.gguf")
    assert list(out.tensors) == list(base.tensors)
    for name, tensor in out.tensors.items():
        source = donor if "_exps" in name and name.split(".")[1] in "13" else base
        assert tensor.type is source.tensors[name].type and np.array_equal(tensor.data, source.tensors[name].data), name
    assert {key: out.kv[key] for key in base.kv if isinstance(out.kv[key], (int, str))} == {
        key: base.kv[key] for key in base.kv if isinstance(base.kv[key], (int, str))
    }
    assert (out.kv["ds4.splice.base"], out.kv["ds4.splice.donor"]) == ("base.gguf", "donor.gguf")
    assert list(out.kv["ds4.splice.tensors"]) == [item.old.name for item in exchanges]


def test_any_tensors_of_a_layer_can_be_named(base: GgufFile, donor: GgufFile) -> None:
    names = [item.old.name for item in plan_splice(base, donor, frozenset({0, 2}), r"attn_q|down")]
    assert names == [f"blk.{i}.{part}.weight" for i in (0, 2) for part in ("attn_q", "ffn_down_exps")]


def test_unlike_files_are_refused(base: GgufFile, donor: GgufFile, other: GgufFile, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="expert_count 3, .* has 5: not the same model"):
        plan_splice(base, other, frozenset({1}))
    write_gguf(
        tmp_path / "less.gguf", donor.kv.typed, [copied(t) for n, t in donor.tensors.items() if n != "blk.1.ffn_up_exps.weight"]
    )
    less = open_gguf(tmp_path / "less.gguf")
    with pytest.raises(FormatError, match="'blk.1.ffn_up_exps.weight' is missing"):
        plan_splice(base, less, frozenset({1}))
    with pytest.raises(FormatError, match="ffn_up_exps.weight is not in .*less.gguf"):
        plan_splice(less, donor, frozenset({1}))
    write_gguf(tmp_path / "arch.gguf", dict(donor.kv.typed) | {"general.architecture": "toy2"})
    with pytest.raises(FormatError, match="is toy, .* is toy2"):
        plan_splice(base, open_gguf(tmp_path / "arch.gguf"), frozenset({1}))


def test_layers_without_such_tensors_are_an_error(base: GgufFile, donor: GgufFile) -> None:
    with pytest.raises(UsageError, match="no tensor of layer.s. 4, 5 matches"):
        plan_splice(base, donor, frozenset({1, 4, 5}))
    with pytest.raises(UsageError, match="no regular expression"):
        plan_splice(base, donor, frozenset({1}), "(")


def test_lists_of_layers() -> None:
    assert parse_layers("37-42") == frozenset(range(37, 43)) and parse_layers("0, 3,5-6") == {0, 3, 5, 6}
    for text in ("", "a", "5-3", "1,,2", "-1", "1-", "999999"):
        with pytest.raises(UsageError, match="numbers and ranges"):
            parse_layers(text)
