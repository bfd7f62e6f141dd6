"""Processes that end in the middle: killed, interrupted, several at once. Real processes, since the disk is all that stays."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from download_bench import CONTENT, FILE, REPO, Bench
from loopback_hub import Fault

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def start(bench: Bench, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start `ds4-download` for the file of the bench in an empty folder."""

    def run(*args: str) -> subprocess.Popen[str]:
        environ = os.environ | {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": bench.shelf.endpoint}
        command = [sys.executable, "-m", "ds4py.cli.download", *(args or (f"hf:{REPO}",)), "--gguf-dir", str(bench.folder)]
        return subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return run


def wait_for_part(bench: Bench, size: int) -> None:
    """Until so many bytes are in the part (or the file is finished)."""
    for _ in range(3000):
        if bench.path.exists() or (bench.part.exists() and bench.part.stat().st_size >= size):
            return
        time.sleep(0.01)
    raise AssertionError("no byte came in 30 s")


def test_kill_9_at_random_moments(bench: Bench, start: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    draw, kills = random.Random(3), 0
    bench.shelf.faults = [Fault(wait=0.01) for _ in range(100)]
    for _ in range(60):
        run = start()
        have = bench.part.stat().st_size if bench.part.exists() else 0
        wait_for_part(bench, have + draw.randrange(0, 300_000))
        time.sleep(draw.random() * 0.03)
        if run.poll() is not None or bench.path.exists():
            break
        run.kill()
        run.communicate()
        kills += 1
        assert not bench.path.exists() or bench.path.read_bytes() == CONTENT
        if bench.part.exists():
            assert bench.part.read_bytes() == CONTENT[: bench.part.stat().st_size]
        link = tmp_path / "ds4flash.gguf"
        assert not link.is_symlink() or link.exists()
    out, err = run.communicate(timeout=60)
    assert run.returncode == 0, err
    assert kills >= 3 and bench.path.read_bytes() == CONTENT and bench.names() == [FILE]
    assert (tmp_path / "ds4flash.gguf").samefile(bench.path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_says_how_to_go_on(
    bench: Bench, start: Callable[..., subprocess.Popen[str]], number: int, tmp_path: Path
) -> None:
    bench.shelf.faults = [Fault(wait=0.05)]
    run = start()
    wait_for_part(bench, 100_000)
    run.send_signal(number)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 130 and "the same command goes on from there" in err and "Traceback" not in err
    assert bench.names() == [f"{FILE}.part", f"{FILE}.part.json"] and not (tmp_path / "ds4flash.gguf").is_symlink()
    again = start()
    out, err = again.communicate(timeout=60)
    assert again.returncode == 0 and bench.path.read_bytes() == CONTENT and bench.ranges()[-1] != ""


def test_two_at_once_download_once(bench: Bench, start: Callable[..., subprocess.Popen[str]]) -> None:
    bench.shelf.faults = [Fault(wait=0.2)]
    first = start()
    wait_for_part(bench, 1)
    others = [start(), start()]
    ended = [run.communicate(timeout=60) for run in (first, *others)]
    assert [run.returncode for run in (first, *others)] == [0, 0, 0], ended
    assert bench.shelf.served == 1 and bench.path.read_bytes() == CONTENT and bench.names() == [FILE]
    assert all("another process is downloading" in err for _, err in ended[1:])


def test_the_one_that_waits_goes_on_when_the_other_is_killed(bench: Bench, start: Callable[..., subprocess.Popen[str]]) -> None:
    bench.shelf.faults = [Fault(wait=0.3)]
    first = start()
    wait_for_part(bench, 200_000)
    second = start()
    assert second.stderr is not None
    lines = []
    for line in second.stderr:
        lines.append(line)
        if "waiting for it" in line:
            break
    first.kill()
    first.communicate()
    out, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    assert bench.path.read_bytes() == CONTENT and bench.ranges()[-1] != "" and bench.names() == [FILE]


def test_a_pipe_gets_sentences_and_no_progress(bench: Bench, start: Callable[..., subprocess.Popen[str]]) -> None:
    run = start(f"hf:{REPO}", "--token", "hf_SecretSecret")
    out, err = run.communicate(timeout=60)
    assert run.returncode == 0 and out == "" and "\r" not in err and "\x1b" not in err and "hf_SecretSecret" not in err
    assert "disk: 2 MB still to come" in err and "a tenth of that" in err and "its hash is right" in err


def test_a_terminal_gets_progress(bench: Bench, tmp_path: Path) -> None:
    import pty

    bench.shelf.faults = [Fault(wait=0.03)]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": bench.shelf.endpoint, "TERM": "xterm"}
    command = [sys.executable, "-m", "ds4py.cli.download", f"hf:{REPO}"]
    master, slave = pty.openpty()
    run = subprocess.Popen(command, env=environ, cwd=tmp_path, stderr=slave, stdin=subprocess.DEVNULL)
    os.close(slave)
    shown = b""
    try:
        while chunk := os.read(master, 4096):
            shown += chunk
    except OSError:
        pass  # how Linux reports that the other side is closed
    assert run.wait(60) == 0
    assert b"downloading " in shown and b" MB/s" in shown and b"%" in shown
