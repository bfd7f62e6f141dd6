"""ds4-quantize, --imatrix-* and the gguf-tools scripts as commands: words, exit codes, what is printed where."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4py.cli import chat, gguf_tools, quantize
from ds4py.editing import Limit, split
from ds4py.gguf import NewTensor, open_gguf, write_gguf
from ds4py.quantize import Entry, Imatrix, read_imatrix, write_imatrix

TOOLS = Path(__file__).parents[2] / "gguf-tools"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    shapes = {"token_embd.weight": (40, 256), "output.weight": (40, 256)}
    shapes |= {
        f"blk.{i}.{part}.weight": (20, 288 if part == "ffn_up" else 256)
        for i in range(4)
        for part in ("attn_v", "ffn_up", "ffn_down")
    }
    tensors = [NewTensor.of(name, rng.standard_normal(shape).astype(np.float32)) for name, shape in shapes.items()]
    write_gguf(tmp_path / "in.gguf", {"general.architecture": "llama", "llama.block_count": 4}, tensors)
    return tmp_path / "in.gguf"


def run(capsys: Any, *words: object) -> tuple[int, str, str]:
    code = quantize.main(list(map(str, words)))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_both_forms_of_the_command_make_the_same_file(model: Path, capsys: Any) -> None:
    a, b = model.with_name("a.gguf"), model.with_name("b.gguf")
    assert run(capsys, model, a, "--type", "Q4_K_M", "--threads", 1)[0] == 0
    assert run(capsys, model, b, "q4_k", "2")[0] == 0
    assert a.read_bytes() == b.read_bytes()


def test_the_dry_run_tells_the_plan_and_the_exact_size(model: Path, capsys: Any) -> None:
    out = model.with_name("out.gguf")
    code, plan, err = run(capsys, model, out, "--type", "Q4_K_M", "--tensor-type", r"blk\.0\.attn_v=Q5_K", "--dry-run")
    assert (code, err) == (0, "") and not out.exists()
    size = int(plan.rsplit("out.gguf: ", 1)[1].split(" bytes")[0].replace(",", ""))
    assert "(wanted Q4_K)" in plan and r"(blk\.0\.attn_v=Q5_K)" in plan
    code, nothing, told = run(capsys, model, out, "--type", "Q4_K_M", "--tensor-type", r"blk\.0\.attn_v=Q5_K")
    assert (code, nothing) == (0, "") and out.stat().st_size == size
    assert "4 of 14 tensors could not have the type asked" in told
    for i in range(4):
        assert f"blk.{i}.ffn_up.weight: rows of 288 are not whole blocks of Q4_K: Q5_0 instead" in told
    assert "\r" not in told and "\x1b" not in told  # a pipe gets no progress


def test_what_was_made_is_known_to_the_gguf_package(model: Path, capsys: Any) -> None:
    gguf = pytest.importorskip("gguf")
    out = model.with_name("out.gguf")
    assert run(capsys, model, out, "--type", "Q6_K", "--override-kv", "general.name=str:small")[0] == 0
    reader = gguf.GGUFReader(out)
    types = {t.name: t.tensor_type.name for t in reader.tensors}
    assert types["blk.0.attn_v.weight"] == "Q6_K" and types["blk.0.ffn_up.weight"] == "Q8_0"
    assert reader.fields["general.name"].contents() == "small"
    from gguf.quants import dequantize

    source = {name: t.data.view(np.float32) for name, t in open_gguf(model).tensors.items()}
    for t in reader.tensors:
        error = dequantize(t.data, t.tensor_type).reshape(-1) - source[t.name]
        assert np.sqrt((error**2).mean()) < 0.03, t.name


@pytest.mark.parametrize(
    "words, code, sentence",
    [
        (["{in}"], 2, "give the file to read and the file to write"),
        (["{in}", "{out}"], 2, "--type NAME"),
        (["{in}", "{out}", "Q9"], 2, "there is no quantisation type 'Q9'"),
        (["{in}", "{out}", "Q8_0", "many"], 2, "number of threads must be a whole number"),
        (["{in}", "{out}", "Q8_0", "0"], 2, "number of threads"),
        (["{in}", "{out}", "Q8_0", "1", "x"], 2, "unexpected argument 'x'"),
        (["{in}", "{out}", "Q8_0", "--type", "Q4_0"], 2, "unexpected argument 'Q8_0'"),
        (["{in}", "{out}", "Q8_0", "--treads", "2"], 2, "did you mean --threads"),
        (["{in}", "{in}", "Q8_0"], 2, "is a file to read"),
        (["{in}", "{dir}", "Q8_0"], 2, "is a folder"),
        (["{in}", "{out}", "Q8_0", "--tensor-type", "nothing=Q8_0"], 2, "nothing=Q8_0 matches no tensor"),
        (["{in}", "{out}", "Q8_0", "--output-tensor-type", "Q1"], 2, "--output-tensor-type: 'Q1' is no type"),
        (["{in}", "{out}", "Q4_K", "--strict"], 1, "--strict allows no Q5_0"),
        (["{in}x", "{out}", "Q8_0"], 1, "no such file"),
        (["{in}", "{out}", "Q8_0", "--imatrix", "{in}x"], 1, "cannot read the importance matrix"),
        (["{in}", "{out}", "Q8_0", "--imatrix", "{in}"], 1, "no importance matrix"),
        (["{in}", "{in}/x/out.gguf", "Q8_0"], 1, "cannot write the file"),
    ],
)
def test_calls_that_cannot_be_obeyed(model: Path, capsys: Any, words: list[str], code: int, sentence: str) -> None:
    out = model.with_name("out.gguf")
    found, printed, told = run(
        capsys, *(word.replace("{in}", str(model)).replace("{out}", str(out)).replace("{dir}", str(out.parent)) for word in words)
    )
    assert (found, printed) == (code, "") and sentence in told and told.startswith("ds4-quantize: ")
    assert os.listdir(model.parent) == ["in.gguf"]


def test_shards_of_the_source_are_never_written_over(model: Path, capsys: Any) -> None:
    parts = split(open_gguf(model), model.with_name("m.gguf"), Limit(tensors=5))
    before = [path.read_bytes() for path in parts]
    code, _, told = run(capsys, parts[0], model.with_name("m.gguf"), "Q8_0", "--keep-split")
    assert code == 2 and "is a file to read" in told and [path.read_bytes() for path in parts] == before
    code, _, told = run(capsys, parts[0], model.with_name("q.gguf"), "Q8_0", "--keep-split")
    assert (
        code == 0 and "3 files, the first is" in told and len(open_gguf(model.with_name("q-00002-of-00003.gguf")).tensors) == 14
    )


def test_a_matrix_of_another_model_is_refused_before_anything_is_written(model: Path, capsys: Any) -> None:
    matrix = model.with_name("im.dat")
    write_imatrix(matrix, Imatrix({"blk.3.ffn_down.weight": Entry(np.ones(64, np.float32), np.ones(1, np.float32))}))
    for extra in ([], ["--dry-run"]):
        code, _, told = run(capsys, model, model.with_name("out.gguf"), "Q4_0", "--imatrix", matrix, *extra)
        assert code == 1 and "made for another model" in told and sorted(os.listdir(model.parent)) == ["im.dat", "in.gguf"]


def test_the_list_names_every_recipe(capsys: Any) -> None:
    from ds4py.quantize import RECIPES

    code, text, _ = run(capsys, "--list")
    assert code == 0 and [line.split()[0] for line in text.splitlines()] == list(RECIPES)


def test_an_importance_matrix_is_collected_and_used(smollm2_path: Path, tmp_path: Path, capfd: Any) -> None:
    (tmp_path / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 20)
    words = ["-m", str(smollm2_path), "--imatrix-dataset", str(tmp_path / "text.txt"), "--imatrix-max-tokens", "24", "-t", "1"]
    assert chat.main([*words, "--imatrix-out", str(tmp_path / "im.gguf")]) == 0
    found = read_imatrix(tmp_path / "im.gguf")
    g = open_gguf(smollm2_path)
    matrices = [t for t in g.tensors.values() if len(t.shape) == 2]
    assert set(found.entries) == {t.name for t in matrices} and tuple(found.datasets) == ("text.txt",)
    assert all(found.importance(t.name, 1, t.row_len) is not None for t in matrices)
    assert all(entry.counts.tolist() == [24] for entry in found.entries.values())
    out, err = capfd.readouterr()
    assert out == "" and "24 tokens of 1 prompt(s), 211 entries" in err


@pytest.mark.parametrize("words", [["--imatrix-dataset", "x"], ["--imatrix-out", "x"], ["--imatrix-max-tokens", "3"]])
def test_an_importance_matrix_needs_text_and_file(words: list[str], capsys: Any) -> None:
    assert chat.main(["-m", "nothing.gguf", *words]) == 2
    assert "both --imatrix-dataset FILE and --imatrix-out FILE" in capsys.readouterr().err


# --- gguf-tools ------------------------------------------------------------------------------------------------------------


def script(name: str, *words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(TOOLS.parent)}
    return subprocess.run(
        [sys.executable, str(TOOLS / name), *map(str, words)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=cwd,
        check=False,
    )


def test_every_script_starts(tmp_path: Path) -> None:
    for path in sorted(TOOLS.glob("*.py")):  # inspect.py has the name of a module of Python's own: it must harm none of them
        done = script(path.name, "--help", cwd=tmp_path)
        assert done.returncode == 0 and "usage" in done.stdout and not done.stderr, path.name


def test_split_inspect_splice_merge(model: Path, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    split = script("split.py", model, "w/part", "--max-tensors", 5, cwd=tmp_path)
    assert split.returncode == 0 and split.stdout.count("\n") == 3
    listing = script("inspect.py", "w/part-00002-of-00003.gguf", "--json", cwd=tmp_path)
    found = json.loads(listing.stdout)
    assert len(found["files"]) == 3 and len(found["tensors"]) == 14
    assert script("merge.py", "w/part-00001-of-00003.gguf", "w/one.gguf", cwd=tmp_path).returncode == 0
    assert (tmp_path / "w" / "one.gguf").read_bytes() == model.read_bytes()
    made = script("quantize.py", model, "w/q.gguf", "--type", "Q8_0", cwd=tmp_path)
    assert made.returncode == 0
    words = ["--base", "w/q.gguf", "--donor", model, "--layers", "1-2", "--match", "ffn_down", "--out", "w/mix.gguf"]
    dry = script("splice.py", *words, "--dry-run", cwd=tmp_path)
    assert dry.returncode == 0 and "2 of 14 tensors" in dry.stdout and not (tmp_path / "w" / "mix.gguf").exists()
    assert script("splice.py", *words, cwd=tmp_path).returncode == 0
    again = script("splice.py", *words, cwd=tmp_path)
    assert again.returncode == 2 and "is there already; --force replaces it" in again.stderr
    assert script("splice.py", *words, "--force", cwd=tmp_path).returncode == 0
    types = {name: t.type.name for name, t in open_gguf(tmp_path / "w" / "mix.gguf").tensors.items()}
    assert types["blk.1.ffn_down.weight"] == "F32" and types["blk.3.ffn_down.weight"] == "Q8_0"


def test_scripts_refuse_in_one_sentence(model: Path, capsys: Any) -> None:
    out = model.with_name("out.gguf")
    cases = (
        (gguf_tools.split_main, [model, out, "--max-size", "x"], 2, "500M or 2G"),
        (gguf_tools.split_main, [model, out, "--max-tensors", "0"], 2, "at least 1"),
        (gguf_tools.merge_main, [model, out], 2, "one file already"),
        (gguf_tools.merge_main, [model, model], 2, "one of the files to read"),
        (gguf_tools.inspect_main, [out], 1, "no such file"),
        (gguf_tools.splice_main, ["--base", model, "--donor", model, "--layers", "x", "--out", out], 2, "numbers and ranges"),
    )
    for main, words, code, sentence in cases:
        assert main(list(map(str, words))) == code
        told = capsys.readouterr().err
        assert sentence in told and told.count("\n") == 1
    assert os.listdir(model.parent) == ["in.gguf"]
