"""-hfd: a draft model that is fetched from the hub, once, and drafts; against a hub on this machine."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import loopback_hub
import pytest

from ds4py.cli.chat import main

TOOL = Path(__file__).parents[2] / "gguf-tools" / "prune_layers.py"
RUN = "--raw -n 12 -c 128 -t 1 --temp 0"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def draft(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Two layers of the target: it drafts, and it is mostly wrong."""
    spec = importlib.util.spec_from_file_location("prune_layers", TOOL)
    assert spec is not None and spec.loader is not None
    module = sys.modules["prune_layers"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path = tmp_path_factory.mktemp("draft") / "draft.gguf"
    module.prune(smollm2_path, "0,29", path)
    return path.read_bytes()


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, draft: bytes) -> Iterator[loopback_hub.Hub]:
    for name in list(os.environ):
        if name.upper().endswith("_PROXY") or name.startswith(("HF_", "HUGGINGFACE", "DS4_GGUF", "LLAMA_ARG")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with loopback_hub.running() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        hub.put("o/r", "draft-Q4_1.gguf", draft)
        yield hub


@pytest.fixture
def ds4(capsys: pytest.CaptureFixture[str], smollm2_path: Path) -> Run:
    def run(options: str, prompt: str = "The capital of France is") -> tuple[int, str, str]:
        code = main(["-m", str(smollm2_path), *RUN.split(), *options.split(), "-p", prompt])
        return code, *capsys.readouterr()

    return run


def test_it_is_fetched_once_and_drafts(ds4: Run, shelf: loopback_hub.Hub, tmp_path: Path) -> None:
    plain = ds4("")
    first = ds4("-hfd o/r:q4_1 --spec-depth fixed --spec-draft-n-max 2")
    assert first[:2] == plain[:2] and "downloaded, its hash is right" in first[2]
    assert "ds4: speculation: draft-simple with draft-Q4_1.gguf (draft-Q4_1.gguf was taken for one" in first[2]
    assert re.search(r"statistics draft-simple: #calls\(b,g,a\) = 1 \d+ ([2-9]|1\d),", first[2]), first[2]
    assert (tmp_path / "gguf" / "draft-Q4_1.gguf").exists() and not (tmp_path / "ds4flash.gguf").exists()
    shelf.files.clear()
    for spelling in ("-hfrd", "--hf-repo-draft", "--spec-draft-hf"):
        again = ds4(f"{spelling} o/r:Q4_1 --offline --spec-type draft-simple --spec-depth fixed --spec-draft-n-max 2")
        assert again[:2] == plain[:2] and "downloaded" not in again[2] and "statistics draft-simple" in again[2]
    assert shelf.served == 1


def test_the_environment_names_the_repository_and_md_a_file_in_it(
    ds4: Run, shelf: loopback_hub.Hub, draft: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.put("o/r", "other.gguf", draft)
    monkeypatch.setenv("LLAMA_ARG_SPEC_DRAFT_HF_REPO", "o/r")
    code, _, err = ds4("-md other.gguf")
    assert code == 0 and "draft-simple with other.gguf" in err and not (tmp_path / "gguf" / "draft-Q4_1.gguf").exists()


def test_none_fetches_nothing(ds4: Run, shelf: loopback_hub.Hub) -> None:
    code, _, err = ds4("-hfd o/r --spec-type none")
    assert code == 0 and shelf.requests == [] and "speculation: off, because --spec-type says none" in err


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ("-hfd nothing", 2, "OWNER/NAME"),
        ("-hfd o/none", 1, "o/none"),
        ("-hfd o/r:Q9_9", 1, "Q9_9"),
        ("-hfd o/r -md missing.gguf", 1, "missing.gguf"),
        ("-hfd o/r --offline", 1, "the network is not to be used"),
    ],
)
def test_what_cannot_be_fetched_is_one_sentence(ds4: Run, shelf: loopback_hub.Hub, options: str, code: int, says: str) -> None:
    found, out, err = ds4(options)
    last = err.splitlines()[-1 if code == 1 else -3]  # a usage error adds how to use it
    assert found == code and out == "" and last.startswith("ds4: ") and says in last, err
