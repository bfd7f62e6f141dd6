"""ds4-convert as a process: output, exit codes, what is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hf_folders import raw_safetensors, save_folder

from ds4py.cli import convert
from ds4py.gguf import open_gguf

ROOT = Path(convert.__file__).resolve().parents[2]
ENVIRON = os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder("llama", tmp_path_factory.mktemp("models") / "Tiny Llama").path


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    code = convert.main([str(arg) for arg in args])
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    return code, told.out, told.err


def test_convert(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "x.gguf"
    code, told, err = run(capsys, folder, "--outfile", out, "--outtype", "q8_0", "--model-name", "My model")
    assert code == 0 and told.startswith(f"{out}: llama, 30 tensors, ")
    assert "20 rows of the embedding have no token" in err
    g = open_gguf(out)
    assert g.kv["general.name"] == "My model" and g.kv["general.file_type"] == 7
    assert list(tmp_path.iterdir()) == [out]
    code, _, err = run(capsys, folder, "--outfile", out)
    assert code == 1 and "is there already; --overwrite replaces it" in err
    code, _, _ = run(capsys, folder, "--outfile", out, "--overwrite")
    assert code == 0 and open_gguf(out).kv["general.name"] == "Tiny Llama"


def test_a_dry_run_predicts_the_size_and_writes_nothing(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.iterdir())
    code, told, _ = run(capsys, folder, "--dry-run", "--outtype", "f16", "--outfile", tmp_path / "x.gguf")
    assert code == 0 and sorted(folder.iterdir()) == before and not list(tmp_path.iterdir())
    assert "blk.2.ffn_down.weight" in told and "model.layers.2.mlp.down_proj.weight" in told
    code, done, _ = run(capsys, folder, "--outtype", "f16", "--outfile", tmp_path / "x.gguf")
    assert told.splitlines()[-1] == done.splitlines()[-1]
    assert f"{sum(t.nbytes for t in open_gguf(tmp_path / 'x.gguf').tensors.values()) / 1e6:,.1f} MB of weights" in done


def test_vocab_only(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, folder, "--vocab-only", "-o", tmp_path / "v.gguf")[0] == 0
    g = open_gguf(tmp_path / "v.gguf")
    assert not g.tensors and len(g.kv["tokenizer.ggml.tokens"]) == 320


@pytest.mark.parametrize("args", [[], ["a", "b"], ["a", "--outtype", "q9"], ["a", "--frobnicate"], ["a", "--outfile", ""]])
def test_usage_errors_exit_2(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *args)
    assert code == 2 and out == "" and err.startswith("ds4-convert: ") and "usage: ds4-convert FOLDER" in err


def test_failures_exit_1_with_a_sentence(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, tmp_path / "none")
    assert code == 1 and "this is no folder" in err and err.count("\n") == 1
    code, _, err = run(capsys, folder, "--outfile", tmp_path / "no" / "x.gguf")
    assert code == 1 and "cannot write the file" in err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0 and "--outtype" in out and "--drop" in out and "--help" in out


def test_the_script_is_the_command(folder: Path, tmp_path: Path) -> None:
    script = ROOT / "gguf-tools" / "convert_hf_to_gguf.py"
    command = [sys.executable, str(script), str(folder), "--outfile", str(tmp_path / "x.gguf")]
    assert subprocess.run(command, env=ENVIRON, capture_output=True, check=False).returncode == 0
    assert open_gguf(tmp_path / "x.gguf").architecture == "llama"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sparse checkpoint of 400 MB: three matrices that take 268 MB each as float32."""
    folder = save_folder(
        "llama", tmp_path_factory.mktemp("large") / "large", num_hidden_layers=1, intermediate_size=128, vocab_size=320
    ).path
    n_ff = 1 << 20
    config = (folder / "config.json").read_text().replace('"intermediate_size": 128', f'"intermediate_size": {n_ff}')
    (folder / "config.json").write_text(config)
    from ds4py.convert.safetensors import read_header

    at, table = 0, {}
    for name, entry in read_header(folder / "model.safetensors").items():
        shape = [n_ff if n == 128 else n for n in entry.shape]
        n_bytes = int(np.prod(shape)) * 2
        table[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n_bytes]}
        at += n_bytes
    path = raw_safetensors(folder / "model.safetensors", table, b"")
    os.truncate(path, path.stat().st_size + at)
    assert at > 4e8
    return folder


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc to read the peak from")
def test_memory_is_that_of_a_piece_not_of_a_tensor(large: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from ds4py.cli.convert import main; code = main(sys.argv[1:]);"
        "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]); sys.exit(code)"
    )
    command = [sys.executable, "-c", code, str(large), "--outfile", str(tmp_path / "x.gguf"), "--outtype", "bf16"]
    done = subprocess.run(command, env=ENVIRON, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kilobytes = int(done.stdout.splitlines()[-1])
    assert kilobytes < 200_000, f"{kilobytes / 1000:.0f} MB; one tensor has 268"
    (tmp_path / "x.gguf").unlink()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped_half_way_nothing_has_the_final_name(number: signal.Signals, large: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ds4py.cli.convert", str(large), "--outfile", str(tmp_path / "x.gguf"), "--outtype", "q8_0"]
    child = subprocess.Popen(command, env=ENVIRON, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    limit = time.monotonic() + 60
    while not any(path.stat().st_size > 10**6 for path in tmp_path.iterdir()) and time.monotonic() < limit:
        time.sleep(0.01)
    child.send_signal(number)
    _, err = child.communicate(timeout=60)
    assert not (tmp_path / "x.gguf").exists()
    if number != signal.SIGKILL:
        assert child.returncode == 130 and "interrupted; nothing was kept" in err and "Traceback" not in err
        assert list(tmp_path.iterdir()) == []
