"""What only shares DeepSeek V4 Flash's name: V4.1's files and folders are refused in one sentence by every command, V4 PRO runs
and is said to be PRO, and support files are no models. Nothing crashes, and nothing but --inspect ends with 0."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deepseek4_reference import spark_weights
from tiny_v4 import make_tiny, metadata, spark_keys, tiny_config, write_support

from ds4py.cli import bench, chat, convert, deepseek4_quantize, quantize, server
from ds4py.gguf import GgmlType, NewTensor, write_gguf

NETWORK = "is DeepSeek V4.1 Flash, another network than V4 Flash"
Command = Callable[[Sequence[str]], int]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """V4.1 as ds4 writes it, with V4's keys and a word about its checkpoint, and its support files in both spellings."""
    made = tmp_path_factory.mktemp("relatives")
    tensors = [NewTensor.of("blk.0.attn_kv.weight", np.zeros((32, 64), np.float32))]
    own = {"hidden_size": 5120, "num_hidden_layers": 40, "vocab_size": 129280, "engram.encoding": "e4m3_e8m0_32_row264"}
    keys: dict[str, Any] = {"general.architecture": "deepseek41", **{f"deepseek41.{name}": value for name, value in own.items()}}
    write_gguf(made / "v41.gguf", keys, tensors)
    told = metadata(tiny_config(), [0, 4, 128, 4]) | {"deepseek4.checkpoint_variant": "v4.1-flash"}
    write_gguf(made / "v41-told.gguf", told, tensors)
    for name, extra in (("a", {"general.architecture": "deepseek41-dspark"}), ("b", {"dspark.checkpoint_variant": "v4.1-flash"})):
        stage = NewTensor.of("mtp.2.markov_head.markov_w1.weight", np.zeros((320, 16), np.float32))
        write_gguf(made / f"support-{name}.gguf", {"general.architecture": "deepseek4-dspark", **extra}, [stage])
    return made


@pytest.mark.parametrize("name", ["v41.gguf", "v41-told.gguf"])
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (chat.main, ["-p", "hi", "-n", "2"]),
        (chat.main, ["-p", "hi", "--dump-tokens"]),
        (chat.main, ["-p", "hi", "--raw", "--dump-logits", "x.json"]),
        (server.main, ["--port", "0"]),
        (bench.main, []),
    ],
)
def test_v4_1_is_refused_by_name(folder: Path, name: str, command: Command, words: list[str], capsys: Any) -> None:
    code = command(["-m", str(folder / name), *words])
    out, err = capsys.readouterr()
    *before, last = err.rstrip().splitlines()
    assert code == 1 and not out and NETWORK in last and all("more than the 1024 positions" in line for line in before)


@pytest.mark.parametrize("name", ["v41.gguf", "v41-told.gguf"])
def test_v4_1_can_be_looked_at(folder: Path, name: str, capsys: Any) -> None:
    assert chat.main(["-m", str(folder / name), "--inspect"]) == 0
    out, err = capsys.readouterr()
    assert NETWORK in out and "cannot run" in out and "Traceback" not in err


@pytest.mark.parametrize(("name", "says"), [("a", "a DSpark support file for DeepSeek V4.1"), ("b", "a DSpark support file")])
def test_v4_1_s_support_file_is_no_model(folder: Path, name: str, says: str, capsys: Any) -> None:
    assert chat.main(["-m", str(folder / f"support-{name}.gguf"), "-p", "hi"]) == 1
    err = capsys.readouterr().err
    assert says in err and "not a model" in err and err.rstrip().count("\n") == 0


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("tool", ["convert", "convert a draft", "quantize", "deepseek4_quantize"])
def test_v4_1_s_folder_is_refused_by_name(nested: bool, tool: str, tmp_path: Path, capsys: Any) -> None:
    """With the text model's values in a part of their own, as in the released one, or not."""
    text = {"model_type": "deepseek_v41_text", "num_hidden_layers": 40, "hidden_size": 5120}
    whole: dict[str, Any] = {"architectures": ["DeepseekV41ForConditionalGeneration"], "model_type": "deepseek_v41"}
    (tmp_path / "config.json").write_text(json.dumps(whole | ({"text_config": text} if nested else text)))
    out = str(tmp_path / "out.gguf")
    code = {
        "convert": lambda: convert.main([str(tmp_path), "-o", out]),
        "convert a draft": lambda: convert.main([str(tmp_path), "-o", out, "--dspark-out", out + "d"]),
        "quantize": lambda: quantize.main([str(tmp_path), out, "--type", "Q4_K_M"]),
        "deepseek4_quantize": lambda: deepseek4_quantize.main(["--hf", str(tmp_path), "--out", out]),
    }[tool]()
    err = capsys.readouterr().err
    assert code == 1 and "is of DeepSeek V4.1 Flash, another network than V4 Flash; it cannot be converted yet" in err
    assert "Traceback" not in err and sorted(path.name for path in tmp_path.iterdir()) == ["config.json"]


def test_pro_runs_and_has_no_dspark(tmp_path: Path, capsys: Any) -> None:
    """A tiny one with the layers that tell it: it answers, says what it is, and refuses the support file of Flash."""
    ratios = [128, 128, *[4, 128] * 29, 4]
    tiny = make_tiny(hca=32, num_hidden_layers=61, compress_ratios=ratios, num_hash_layers=0, n_routed_experts=2,
                     hc_sinkhorn_iters=2, head_dim=80, o_lora_rank=16)  # fmt: skip
    path = str(tiny.write(tmp_path / "pro.gguf"))
    stages = spark_weights(tiny.config, 32, 3)
    support = write_support(tmp_path / "support.gguf", stages, tiny.config, spark_keys([58, 59, 60], 32, 319), GgmlType.F32)
    words = ["-m", path, "--raw", "-p", "the quick", "-n", "3", "-c", "64", "--temp", "0"]
    assert chat.main(words) == 0
    err = capsys.readouterr().err
    assert "pro.gguf: deepseek4 (DeepSeek V4 PRO, for which there are no drafts), 61 layers" in err
    assert chat.main([*words, "--dspark", "--mtp-model", str(support)]) == 1
    err = capsys.readouterr().err
    assert "support.gguf drafts for DeepSeek V4 Flash; pro.gguf is V4 PRO, which has no such draft" in err
    assert chat.main(["-m", path, "--inspect"]) == 0
    assert "deepseek4 (DeepSeek V4 PRO, for which there are no drafts)" in capsys.readouterr().out
