"""Carrying out plans: contents, sizes, refusal of broken weights, memory, threads, shards, and what is left after failures."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sparse_model import sparse_model

from ds4py.editing import Limit, split
from ds4py.errors import FormatError, ResourceError, UsageError
from ds4py.gguf import GgmlType, GgufFile, Tensor, open_gguf
from ds4py.quantize import Entry, Imatrix, Job, Options, Rule, make_plan, metadata, output_size, override, recipe, run
from ds4py.quantize.encoding import can_encode
from ds4py.quants import QUANTS, decode, encode

T = GgmlType


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def job(g: GgufFile, name: str, *rules: str, imatrix: Imatrix | None = None, threads: int = 1, keep_split: bool = False) -> Job:
    plan = make_plan(g, Options(recipe(name), tuple(map(Rule.parse, rules)), allow_requantize=True), imatrix is not None)
    return Job(g, plan, metadata(g, plan, imatrix, {}), imatrix, threads, keep_split)


def done(g: GgufFile, name: str, out: Path, *rules: str, **options: Any) -> GgufFile:
    run(job(g, name, *rules, **options), out, lambda *progress: None)
    return open_gguf(out)


def values(tensor: Tensor) -> np.ndarray:
    return decode(tensor.type, tensor.data, tensor.n_values).reshape(tensor.n_rows, tensor.row_len)


@pytest.mark.parametrize(
    "name", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K_M", "Q2_K", "IQ4_NL", "MXFP4", "IQ2_XXS"]
)
def test_the_file_holds_what_the_encoder_makes(make: Any, tmp_path: Path, name: str) -> None:
    shapes = {"token_embd.weight": (70, 512), "output.weight": (70, 512), "blk.0.ffn_up.weight": (300, 512)}
    arrays = {tensor: noise(*shape, seed=i) for i, (tensor, shape) in enumerate(shapes.items())}
    g = make(arrays | {"output_norm.weight": np.ones(512, np.float32)})
    work = job(g, name)
    expected = output_size(work, tmp_path / "out.gguf")
    q = done(g, name, tmp_path / "out.gguf")
    assert q.nbytes == expected
    assert q.kv["general.file_type"] == recipe(name).file_type and q.kv["general.quantization_version"] == 2
    assert q.kv["ds4.quantize.source"] == "in.gguf" and q.kv["ds4.quantize.recipe"] == recipe(name).name
    for tensor_name, array in arrays.items():
        tensor = q.tensors[tensor_name]
        weights = None
        if tensor.type is T.IQ2_XXS:  # without a matrix the column's own energy stands in
            energy = np.einsum("nk,nk->k", array, array, dtype=np.float64)
            weights = (energy / energy.max()).astype(np.float32)
        assert np.array_equal(tensor.data, encode(tensor.type, array, weights)), tensor_name
    assert np.array_equal(q.tensors["output_norm.weight"].data, g.tensors["output_norm.weight"].data)


def test_threads_change_nothing(make: Any, tmp_path: Path) -> None:
    g = make({"blk.0.ffn_up.weight": noise(1200, 2048), "blk.0.ffn_down.weight": noise(3, 256)})  # more than one slab
    one, three = (done(g, "Q8_0", tmp_path / f"{n}.gguf", threads=n) for n in (1, 3))
    assert one.path.read_bytes() == three.path.read_bytes()
    assert np.array_equal(one.tensors["blk.0.ffn_up.weight"].data, encode(T.Q8_0, values(g.tensors["blk.0.ffn_up.weight"])))


def test_each_expert_has_its_own_importance(make: Any, tmp_path: Path) -> None:
    experts = noise(3, 10, 256)
    weights = np.stack([np.where(np.arange(256) % 3 == e, 100.0, 0.01) for e in range(3)]).astype(np.float32)
    counts = np.array([10, 1, 5], np.float32)
    entry = Entry((weights * counts[:, None]).reshape(-1), counts)
    matrix = Imatrix({"blk.0.ffn_up_exps.weight": entry}, ("text",), 4, path="some/where/im.dat")
    g = make({"blk.0.ffn_up_exps.weight": experts, "blk.0.ffn_down.weight": noise(4, 256)}, expert_count=3)
    work = job(g, "Q4_0", imatrix=matrix)
    run(work, tmp_path / "out.gguf", lambda *progress: None)
    assert work.unweighted == ["blk.0.ffn_down.weight"]
    q = open_gguf(tmp_path / "out.gguf")
    got = q.tensors["blk.0.ffn_up_exps.weight"].data
    assert np.array_equal(got, np.concatenate([encode(T.Q4_0, experts[e], weights[e]) for e in range(3)]))
    keys = {key: q.kv[f"quantize.imatrix.{key}"] for key in ("file", "dataset", "entries_count", "chunks_count")}
    assert keys == {"file": "im.dat", "dataset": "text", "entries_count": 1, "chunks_count": 4}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["blk.1.ffn_up.weight", "output_norm.weight"])
def test_a_broken_weight_is_refused_by_name_and_no_file_is_left(make: Any, tmp_path: Path, bad: float, where: str) -> None:
    arrays = {f"blk.{i}.ffn_up.weight": noise(1100, 1024) for i in range(2)} | {"output_norm.weight": np.ones(64, np.float32)}
    arrays[where].reshape(-1)[-1] = bad
    g = make(arrays)
    for name in ("Q4_0", "F16", "F32"):
        with pytest.raises(FormatError, match=f"tensor {where} has a NaN or an infinity in row {1099 if where[0] == 'b' else 0}"):
            done(g, name, tmp_path / "out.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


@pytest.mark.parametrize("name", ["F16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K", "IQ4_NL"])
def test_values_beyond_the_type_are_refused_by_name(make: Any, tmp_path: Path, name: str) -> None:
    array = noise(4, 256)
    array[2, 7] = 1e38
    g = make({"blk.0.ffn_up.weight": array})
    with pytest.raises(FormatError, match=r"blk.0.ffn_up.weight has values as large as 1e\+38, which .* cannot hold"):
        done(g, name, tmp_path / "out.gguf")
    kept = done(g, name, tmp_path / "out.gguf", "blk.0.ffn_up.weight=BF16")
    assert np.isfinite(values(kept.tensors["blk.0.ffn_up.weight"])).all()


def test_zeros_and_denormals_stay_finite_and_zeros_zero(make: Any, tmp_path: Path) -> None:
    array = np.zeros((4, 256), np.float32)
    array[1] = 1e-42
    array[2] = np.linspace(-3e-8, 3e-8, 256)
    g = make({"blk.0.ffn_up.weight": array})
    for name in ("Q8_0", "Q4_0", "Q5_1", "Q4_K", "Q2_K", "Q6_K", "IQ2_XXS", "IQ4_NL", "MXFP4", "F16", "BF16"):
        found = values(done(g, name, tmp_path / "out.gguf").tensors["blk.0.ffn_up.weight"])
        assert np.isfinite(found).all() and not found[0].any() and not found[3].any(), name


def test_shards_are_kept_when_asked(make: Any, tmp_path: Path) -> None:
    g = make({f"blk.{i}.ffn_up.weight": noise(8, 256, seed=i) for i in range(5)})
    split(g, tmp_path / "s.gguf", Limit(tensors=2))
    parts = open_gguf(tmp_path / "s-00001-of-00003.gguf")
    one = done(parts, "Q8_0", tmp_path / "one.gguf")
    work = job(parts, "Q8_0", keep_split=True)
    expected = output_size(work, tmp_path / "q.gguf")
    written = run(work, tmp_path / "q.gguf", lambda *progress: None)
    assert [path.name for path in written] == [f"q-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
    q = open_gguf(written[1])
    assert q.nbytes == expected and [len(list(q.tensors)), len(one.shards)] == [5, 1]
    for name, tensor in one.tensors.items():
        assert np.array_equal(tensor.data, q.tensors[name].data)
    assert "split.count" not in one.kv and not list(tmp_path.glob(".*"))


def test_overrides_are_typed(make: Any) -> None:
    assert override("a.b=int:-3")[1].plain() == -3 and override("a=bool:true")[1].plain() is True
    assert override("a=str:x=y:z") == ("a", override("b=str:x=y:z")[1])
    for text in ("a", "a=3", "a=int:x", "a=bool:yes", "=int:3", "general.file_type=int:2", "split.no=int:2"):
        with pytest.raises(UsageError):
            override(text)


# --- processes -------------------------------------------------------------------------------------------------------------


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "ds4py.cli.quantize", *map(str, words)]


PEAK = """
import sys
from ds4py.cli.quantize import main
code = main(sys.argv[1:])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
sys.exit(code)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_memory_is_that_of_slabs_not_of_tensors(tmp_path: Path) -> None:
    n_bytes = sparse_model(tmp_path / "in.gguf", 300 << 20).stat().st_size
    words = [sys.executable, "-c", PEAK, str(tmp_path / "in.gguf"), str(tmp_path / "out.gguf"), "F16", "2"]
    finished = subprocess.run(words, capture_output=True, text=True, check=True)
    peak = int(finished.stdout.split()[-1]) * 1024
    assert n_bytes > 300e6 and peak < 160e6, f"peak {peak / 1e6:.0f} MB"
    assert (tmp_path / "out.gguf").stat().st_size > 150e6


def test_a_full_disk_leaves_nothing(make: Any, tmp_path: Path) -> None:
    g = make({"blk.0.ffn_up.weight": noise(2000, 1024)})
    out = tmp_path / "out.gguf"

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails, as it does on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    finished = subprocess.run(command(g.path, out, "Q8_0"), capture_output=True, text=True, preexec_fn=limit, check=False)
    assert finished.returncode == 1 and "cannot write the file" in finished.stderr and "Traceback" not in finished.stderr
    assert sorted(os.listdir(tmp_path)) == ["in.gguf"]


def test_too_little_space_is_told_before_the_work(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    g = make({"blk.0.ffn_up.weight": noise(20, 1024)})
    usage = SimpleNamespace(total=10**9, used=10**9 - 1000, free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ResourceError, match="bytes are needed, but the disk has 1,000 free"):
        done(g, "Q8_0", tmp_path / "out.gguf")
    assert sorted(os.listdir(tmp_path)) == ["in.gguf"]


@pytest.mark.parametrize("number, leftovers", [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, 1)])
def test_a_stopped_run_never_leaves_the_name(make: Any, tmp_path: Path, number: int, leftovers: int) -> None:
    g = make({f"blk.{i}.ffn_up.weight": noise(4000, 2048) for i in range(2)})
    process = subprocess.Popen(command(g.path, tmp_path / "out.gguf", "Q4_K", "1"), stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not any(path.stat().st_size > 1000 for path in tmp_path.glob(".out.gguf.*")):  # it is writing
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait(60) != 0
    assert "Traceback" not in (process.stderr.read() if process.stderr else "")
    assert not (tmp_path / "out.gguf").exists() and len(list(tmp_path.glob(".out.gguf.*"))) == leftovers


def test_every_type_that_can_be_written_can_be_read() -> None:
    assert {kind for kind in GgmlType if can_encode(kind)} <= set(QUANTS)
