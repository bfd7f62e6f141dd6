"""Checkpoint folders through ds4-quantize and through the script with ds4's own options: plans, files, resuming, refusals."""

from __future__ import annotations

import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_deepseek4 import Folder, save_checkpoint

from ds4py.cli import chat, convert, deepseek4_quantize, quantize
from ds4py.gguf import open_gguf, partial_path, resume
from ds4py.quantize import Entry, Imatrix, write_imatrix

SMALL: dict[str, Any] = {
    "num_hidden_layers": 3, "compress_ratios": [0, 4, 128, 0, 0, 0], "n_routed_experts": 2, "num_hash_layers": 1,
    "dspark_target_layer_ids": [0, 1, 2],
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return save_checkpoint(tmp_path_factory.mktemp("v4") / "Tiny", draft="dspark", **SMALL)


def tool(capsys: Any, *words: object) -> tuple[int, str, str]:
    code = deepseek4_quantize.main(list(map(str, words)))
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    return code, told.out, told.err


def test_a_dry_run_tells_both_files_and_writes_nothing(folder: Folder, tmp_path: Path, capsys: Any) -> None:
    out, draft = tmp_path / "m.gguf", tmp_path / "d.gguf"
    code, told, err = tool(capsys, "--hf", folder.path, "--out", out, "--dspark-out", draft, "--dry-run")
    assert code == 0 and not list(tmp_path.iterdir())
    assert "blk.2.ffn_gate_exps.weight" in told and "MXFP4 -> IQ2_XXS" in told and "mtp.2.markov_head.markov_w1.weight" in told
    assert "tensors mtp.* draft for the model; --dspark-out FILE writes them" in err
    ends = [line for line in told.splitlines() if "nothing was written" in line]
    sizes = [int(line.split(".gguf: ")[1].split(" bytes")[0].replace(",", "")) for line in ends]
    code, _, err = tool(capsys, "--hf", folder.path, "--out", out, "--dspark-out", draft)
    assert code == 0, err
    assert sizes == [out.stat().st_size, draft.stat().st_size]
    assert not any(name.startswith("mtp.") for name in open_gguf(out).tensors) and len(open_gguf(draft).tensors) == 81
    code, _, err = tool(capsys, "--hf", folder.path, "--out", out)
    assert code == 1 and "is there already; --overwrite replaces it" in err


def test_parts_and_names_take_the_types_that_are_asked(folder: Folder, tmp_path: Path, capsys: Any) -> None:
    out, draft = tmp_path / "m.gguf", tmp_path / "d.gguf"
    parts = ("--routed-w2", "Q4_K", "--shared", "Q4_K", "--output", "F16", "--tensor-type", "blk.1.ffn_gate_exps=Q8_0")
    words = ("--hf", folder.path, "--out", out, "--dspark-out", draft, "--quant", "mxfp4", *parts)
    code, _, err = tool(capsys, *words)
    assert code == 0, err
    types = {name: tensor.type.name for name, tensor in open_gguf(out).tensors.items()}
    assert types["blk.1.ffn_gate_exps.weight"] == "Q8_0" and types["blk.2.ffn_gate_exps.weight"] == "MXFP4"
    assert {types[f"blk.{i}.ffn_down_exps.weight"] for i in range(3)} == {"Q4_K"} and types["output.weight"] == "F16"
    assert types["blk.0.ffn_up_shexp.weight"] == "Q4_K" and types["blk.0.ffn_gate_inp.weight"] == "F16"
    drafts = {name: tensor.type.name for name, tensor in open_gguf(draft).tensors.items()}
    assert drafts["mtp.1.ffn_down_exps.weight"] == "Q4_K" and drafts["mtp.1.ffn_up_exps.weight"] == "MXFP4"
    code, _, err = tool(capsys, *words, "--overwrite", "--tensor-type", "nowhere=Q8_0")
    assert code == 2 and "--tensor-type ^nowhere=Q8_0 matches no tensor of either file" in err


def test_an_importance_matrix_is_used_and_may_have_to_be_whole(folder: Folder, tmp_path: Path, capsys: Any) -> None:
    rng = np.random.default_rng(1)
    names = [f"blk.{i}.ffn_{part}_exps.weight" for i in range(3) for part in ("gate", "up", "down")]
    entries = {name: Entry(rng.random(512, np.float32) ** 4, np.ones(2, np.float32)) for name in names}
    write_imatrix(tmp_path / "all.dat", Imatrix(entries))
    entries.pop("blk.1.ffn_up_exps.weight")
    write_imatrix(tmp_path / "some.dat", Imatrix(entries))
    made = {}
    for name, words in (("plain", ()), ("weighted", ("--imatrix", tmp_path / "all.dat", "--imatrix-strict"))):
        made[name] = tmp_path / f"{name}.gguf"
        code, _, err = tool(capsys, "--hf", folder.path, "--out", made[name], "--quant", "q4", *words)
        assert code == 0, err
    a, b = (open_gguf(path) for path in made.values())
    assert b.kv["quantize.imatrix.file"] == "all.dat" and b.kv["ds4.quantize.recipe"] == "DS4_Q4"
    differ = {name for name in a.tensors if not np.array_equal(a.tensor(name).data, b.tensor(name).data)}
    assert differ == set(names)
    words = ("--hf", folder.path, "--out", tmp_path / "c.gguf", "--quant", "q4", "--imatrix", tmp_path / "some.dat")
    code, _, err = tool(capsys, *words, "--imatrix-strict")
    assert code == 1 and "there is no entry for blk.1.ffn_up_exps.weight" in err and not (tmp_path / "c.gguf").exists()


def test_an_interrupted_run_goes_on_where_it_was(
    folder: Folder, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "m.gguf"
    words = ("--hf", folder.path, "--quant", "q4", "--threads", 1)
    assert tool(capsys, *words, "--out", tmp_path / "whole.gguf")[0] == 0
    running: Any = sys.modules["ds4py.quantize.run"]
    encode, calls, limit = running.encode_rows, [0], [1000]

    def counted(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] > limit[0]:
            raise KeyboardInterrupt
        return encode(*args)

    def counting(*more: object, most: int = 1000) -> tuple[int, int, str]:
        calls[0], limit[0] = 0, most
        code, _, err = tool(capsys, *words, *more)
        return calls[0], code, err

    monkeypatch.setattr(resume, "_MARK_BYTES", 1 << 16)
    monkeypatch.setattr(running, "encode_rows", counted)
    whole, code, _ = counting("--out", tmp_path / "again.gguf")
    assert code == 0 and whole > 40
    first, code, err = counting("--out", out, "--resume", most=30)
    assert code == 130 and "what is done is kept in" in err and not out.exists()
    second, code, err = counting("--out", out, "--resume")
    assert code == 0 and out.read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    assert whole <= first + second <= whole + 12  # what was done is not done again, but for what came after the last note
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.gguf", "m.gguf", "whole.gguf"]


def converting(module: str, *words: object, until: str = "") -> subprocess.CompletedProcess[str]:
    """A process that converts and is killed, as by kill -9, when a piece of the tensor `until` is written. It names tensors as it
    comes to them, and notes how far it is every 64 KiB."""
    code = (
        "import os, signal, sys\n"
        "import ds4py.gguf.resume as resume\n"
        f"from ds4py.cli import {module} as command\n"
        "plain = resume.write_tensor\n"
        "resume._MARK_BYTES = 1 << 16\n"
        "def watched(file, tensor, alignment, start, then):\n"
        "    print(tensor.name, start, file=sys.stderr)\n"
        "    def counted(file):\n"
        f"        if tensor.name == {until!r}: os.kill(os.getpid(), signal.SIGKILL)\n"
        "        then(file)\n"
        "    plain(file, tensor, alignment, start, counted)\n"
        "resume.write_tensor = watched\n"
        "sys.exit(command.main(sys.argv[1:]))"
    )
    argv = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", ["convert", "deepseek4_quantize"])
def test_kill_9_loses_one_tensor_at_most(folder: Folder, tmp_path: Path, capsys: Any, module: str) -> None:
    """Killed in the first file and again in the second: what is finished is kept, the rest goes on at the tensor it was in."""
    names = [tmp_path / name for name in ("m.gguf", "d.gguf", "m2.gguf", "d2.gguf")]

    def words(out: Path, draft: Path) -> list[object]:
        if module == "convert":
            return [folder.path, "-o", out, "--dspark-out", draft]
        return ["--hf", folder.path, "--quant", "mxfp4", "--threads", 1, "--out", out, "--dspark-out", draft]

    command = {"convert": convert, "deepseek4_quantize": deepseek4_quantize}[module]
    assert command.main(list(map(str, words(*names[2:])))) == 0
    again = [*words(*names[:2]), "--resume"]
    first = converting(module, *again, until="blk.2.attn_kv.weight")
    assert first.returncode == -signal.SIGKILL and not names[0].exists() and partial_path(names[0]).exists()
    second = converting(module, *again, until="mtp.1.attn_kv.weight")
    assert second.returncode == -signal.SIGKILL and names[0].read_bytes() == names[2].read_bytes()
    assert partial_path(names[1]).exists() and not names[1].exists()
    third = converting(module, *again)
    assert third.returncode == 0
    begun = [[line.split()[0] for line in run.stderr.splitlines() if ".weight" in line] for run in (first, second, third)]
    assert all(len(set(one) & set(other)) < 15 for one, other in pairwise(begun)), "only what follows the last note is done again"
    assert min(map(len, begun)) > 30 and not set(begun[0]) & set(begun[2])
    assert names[1].read_bytes() == names[3].read_bytes()
    capsys.readouterr()
    assert command.main(list(map(str, again))) == 0
    assert capsys.readouterr().err.count("was finished before") == 2
    names[0].write_bytes(b"something else")
    assert command.main(list(map(str, again))) == 1
    assert "is there already" in capsys.readouterr().err and names[0].read_bytes() == b"something else"
    assert not list(tmp_path.glob("*partial*"))


def test_ds4_convert_writes_both_files_without_a_recipe(folder: Folder, tmp_path: Path, capsys: Any) -> None:
    out, draft = tmp_path / "m.gguf", tmp_path / "d.gguf"
    words = [str(folder.path), "-o", str(out), "--dspark-out", str(draft)]
    assert convert.main([*words, "--dry-run"]) == 0 and not list(tmp_path.iterdir())
    told = capsys.readouterr().out
    assert convert.main(words) == 0 and capsys.readouterr().out.splitlines() == told.splitlines()[-1:-3:-1][::-1]
    assert open_gguf(out).tensor("blk.0.ffn_up_exps.weight").type.name == "MXFP4"
    assert open_gguf(draft).architecture == "deepseek4-dspark"
    assert convert.main(words) == 1 and "is there already" in capsys.readouterr().err


def test_both_files_explain_themselves_and_only_one_answers(folder: Folder, tmp_path: Path, capsys: Any) -> None:
    out, draft = tmp_path / "m.gguf", tmp_path / "d.gguf"
    assert convert.main([str(folder.path), "-o", str(out), "--dspark-out", str(draft)]) == 0
    capsys.readouterr()
    assert chat.main(["-m", str(out), "--inspect"]) == 0
    told = capsys.readouterr().out
    for line in (
        "3, hidden size 256, feed-forward 256 in each expert",
        "16 positions on all the layers",
        "1 x none, 1 x 1 row for 4 positions, 1 x 1 row for 128 positions",
        "2, 2 per token and 1 shared; the first 1 layers choose by the token alone",
        "DeepSeek V4's own, revision 0731; tools (DSML), thinking, system prompt",
    ):
        assert line in told
    assert chat.main(["-m", str(draft), "--inspect"]) == 0
    told = capsys.readouterr().out
    assert "a DSpark support file for DeepSeek V4 Flash: it drafts for another model" in told and "Tokenizer" not in told
    for words in (["-p", "hi"], ["-p", "hi", "--dump-tokens"]):
        assert chat.main(["-m", str(draft), *words]) == 1
        told = capsys.readouterr().err
        assert told.count("\n") == 1 and "d.gguf is a DSpark support file for DeepSeek V4 Flash, not a model" in told
    assert chat.main(["-m", str(out), "-p", "hi", "--show-prompt", "--think-max", "-c", "900"]) == 0
    shown = capsys.readouterr()
    assert shown.out.endswith("<｜User｜>hi<｜Assistant｜><think>\n") and "Effort" not in shown.out
    assert "only with a context of 393216 positions (-c 393216); with 900 it thinks as usual" in shown.err


def test_what_only_folders_or_only_files_can_do_is_said(folder: Folder, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "m.gguf"
    assert tool(capsys, "--hf", folder.path, "--out", out, "--quant", "mxfp4")[0] == 0
    for words, problem in (
        ((out, tmp_path / "x.gguf", "--type", "Q8_0", "--dspark-out", tmp_path / "d.gguf"), "needs a Hugging Face folder"),
        ((folder.path, tmp_path / "x.gguf", "--type", "Q8_0", "--keep-split"), "a Hugging Face folder becomes one file"),
    ):
        assert quantize.main(list(map(str, words))) == 2
        assert problem in capsys.readouterr().err
    with pytest.raises(SystemExit) as refused:
        deepseek4_quantize.main(["--hf", "x", "--out", "y", "--quant", "q3"])
    assert refused.value.code == 2 and "invalid choice: 'q3'" in capsys.readouterr().err
