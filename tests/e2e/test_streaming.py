"""--ssd-streaming and its sisters through the command: what they say and refuse, the same text at every size, and a process that
stays smaller than the experts it reads."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from deepseek4_reference import spark_weights
from tiny_v4 import make_tiny, spark_keys, write_support

from ds4py.cli import opening, streaming
from ds4py.cli.chat import main
from ds4py.gguf import GgmlType, open_gguf

RUN = "--raw -n 40 -c 200 -t 2 --ignore-eos --temp 0 -p".split()
Ds4 = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("flash")
    tiny = make_tiny(hca=32, hidden_size=256, moe_intermediate_size=256, o_lora_rank=64)
    tiny.write(made / "flash.gguf", GgmlType.Q8_0, GgmlType.IQ2_XXS, GgmlType.Q2_K)
    keys = spark_keys([1, 2, 3], 32, 319)
    write_support(made / "support.gguf", spark_weights(tiny.config, 32, 3), tiny.config, keys, GgmlType.Q8_0)
    return made


@pytest.fixture
def ds4(capsys: pytest.CaptureFixture[str], folder: Path) -> Ds4:
    def run(*options: str) -> tuple[int, str, str]:
        words = [option.format(support=folder / "support.gguf") for option in options]
        code = main(["-m", str(folder / "flash.gguf"), *RUN, "the quick brown fox", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_the_memory_line_counts_a_streamed_drafts_experts_once(ds4: Ds4, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie in the seats of the model's own."""
    monkeypatch.setattr(opening, "_GIB", 1.0)
    drafting = ("--dspark", "--mtp-model", "{support}")
    support = open_gguf(folder / "support.gguf")
    for more, expected in ((("--ssd-streaming",), streaming.expert_bytes(support)[1]), ((), support.nbytes)):
        _, _, err = ds4(*drafting, *more)
        parts = re.search(r"KV (.+?) GiB raw \+ (.+?) GiB compressed, weights (.+?) GiB, draft (.+?) GiB, total (.+?) GiB", err)
        assert parts is not None, err
        *each, total = map(float, parts.groups())
        assert each[3] == expected and total == sum(each)


def test_every_size_gives_the_same_text_with_and_without_drafts(ds4: Ds4) -> None:
    """32 experts of the model and 24 of the draft in one cache, which draft and model share."""
    plain = ds4()
    drafting = ("--dspark", "--mtp-model", "{support}", "--dspark-confidence", "0", "--spec-depth", "fixed")
    assert plain[0] == 0 and len(plain[1]) > 10 and "experts:" not in plain[2]
    for size in ("1", "5", "9", "20", "0.0005GB", "56"):
        for more in ((), drafting):
            code, out, err = ds4("--ssd-streaming-cache-experts", size, *more)
            assert (code, out) == plain[:2], f"{size} {more}: {err}"
            n = 56 if more else 32
            line = re.search(rf"room for (\d+) of {n} .*?([\d,]+) taken, ([\d.]+) % of them there, ([\d.]+) GB", err, re.DOTALL)
            assert line is not None, err
            seats, taken, share, read = (float(text.replace(",", "")) for text in line.groups())
            assert seats == min(n, int(size)) if size.isdigit() else 1 <= seats < n
            assert taken > 300 and (seats == n) == (taken * (1 - share / 100) < n + 1), "each read once, or some again"
            assert read > 0
            assert not more or re.search(r"accepted / +[1-9]\d+ generated", err)


def test_experts_are_read_ahead_unless_it_is_to_start_cold(ds4: Ds4) -> None:
    warm = ds4("--ssd-streaming", "--ssd-streaming-preload-experts", "1000")
    assert "room for 32 of 32" in warm[2] and ", 32 read" in warm[2] and "100.0 % of them there, 0.000 GB read" in warm[2]
    cold = ds4("--ssd-streaming-preload-experts", "1000", "--ssd-streaming-cold")
    assert "room for 32 of 32" in cold[2] and "read\n" not in cold[2].split("prefill:")[0] and "100.0 %" not in cold[2]
    whole = ds4("--ssd-streaming-cache-experts", "20", "--ssd-streaming-full-layers", "2", "--ssd-streaming-preload-experts", "9")
    assert "room for 20 of 32" in whole[2] and warm[1] == cold[1] == whole[1]


def test_what_does_not_fit_is_streamed_unasked(ds4: Ds4, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ds4()
    monkeypatch.setattr(streaming, "free_bytes", lambda: streaming._RESERVE + 5_000_000)
    code, out, err = ds4()
    assert (code, out) == plain[:2]
    assert "experts of 0.0 GB do not fit in the 2.2 GB that are free: --ssd-streaming" in err and "experts: room for" in err


def test_more_than_memory_holds_is_reduced(ds4: Ds4, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ds4()
    monkeypatch.setattr(streaming, "free_bytes", lambda: streaming._RESERVE + 1_000_000)
    for size, says in (("24GB", "25.8 GB for experts are more than is free"), ("900", "900 experts are more than free memory")):
        code, out, err = ds4("--ssd-streaming-cache-experts", size)
        assert (code, out) == plain[:2] and says in err, err
        room = re.search(r"room for (\d+) of 32", err)
        assert room is not None and 4 <= int(room[1]) < 32


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--ssd-streaming-cache-experts", "many"], 2, "takes a number of experts or of GiB (2000, 24GB), not 'many'"),
        (["--ssd-streaming-cache-experts", "0"], 2, "takes a number of experts or of GiB"),
        (["--ssd-streaming-cache-experts", "0.00001GB"], 2, "the cache of experts must have room for one"),
        (["--ssd-streaming", "--backend", "reference"], 2, "is for the compiled kernels"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(ds4: Ds4, options: list[str], code: int, says: str) -> None:
    found = ds4(*options)
    assert found[0] == code and not found[1] and says in found[2] and "Traceback" not in found[2]


@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux's")
def test_a_process_stays_smaller_than_the_experts_it_reads() -> None:
    script = Path(__file__).parents[1] / "scripts" / "streaming_memory.py"
    words = [sys.executable, str(script), "--gigabytes", "0.4", "--cache", "0.03GB"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
