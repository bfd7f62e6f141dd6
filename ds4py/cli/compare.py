"""`ds4-bench --compare-llama-cpp`: the same file in ds4py and in llama.cpp, side by side.

The idea: rounds. In each, both engines run once, each in a fresh process (`peers.py`), and who goes first changes from round to
round; one round before them is thrown away. What is made of the figures is in `ratios.py`.

Which llama.cpp it was matters as much as the figures, so the build's own words are printed. One kind of build cannot be measured:
made by GCC 12, on a processor with AMX, it crashes (that compiler loses most of the tile configuration); a process of its own
turns the crash into a sentence.
"""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from ds4py.cli.bench import COMMAND, kernels, own_text
from ds4py.cli.parsing import Values
from ds4py.cli.peers import N_FIRST, N_VERIFY, Figures, Job, from_json
from ds4py.cli.ratios import CSV_HEADER, amx_gains, remarks, summarise, table
from ds4py.errors import ContextError, Ds4Error, UnsupportedError
from ds4py.gguf import GgufFile

PREFILL = (128, 512, 2048)
DEPTHS = (2048, 8192)
SHALLOW = 512  # a lesser depth says nothing that the decode after a short prompt does not
VERIFY = tuple(range(1, 17))
OURS, THEIRS = "ds4py", "llama.cpp"


class PeerError(Ds4Error):
    """A measured process ended badly."""


def compare(model: GgufFile, values: Values) -> int:
    """Run both engines and print the table. UnsupportedError without llama-cpp-python, PeerError if a process fails."""
    from ds4py.cli.files import read_text, result_file

    if importlib.util.find_spec("llama_cpp") is None:
        raise UnsupportedError("--compare-llama-cpp needs llama-cpp-python, which is not installed: pip install 'ds4py[compare]'")
    text = read_text(values.text("prompt_file")) if values.has("prompt_file") else own_text()
    job = make_job(model, values, text)
    busy = busy_share()
    rounds = values.integer("rounds")
    ours, theirs = run_rounds(job, rounds)
    flags, info = cpu_flags(), theirs[0].info
    gains = amx_gains(model.nbytes, info, flags)
    lines = summarise(ours, theirs, job, gains or (1.0, 1.0))
    print(
        f"{model.kv.get('general.name', model.path.name)} ({model.path.name})\n"
        f"{job.threads} threads, context {job.n_ctx}, f16 cache, decode of {job.decode} tokens, medians of {rounds} rounds\n"
        f"ds4py: {ours[0].info}\n{info}\n"
    )
    print("\n".join([*table(lines), "", *remarks(info, gains, flags, busy)]))
    if values.has("csv"):
        with result_file(values.text("csv")) as out:
            out.write("\n".join([CSV_HEADER, *(line.csv() for line in lines), ""]))
    return 0


def make_job(model: GgufFile, values: Values, text: str) -> Job:
    """The work both engines will do: prompts and depths as far as the model's context and --ctx-max go. ContextError if the
    context cannot hold even the least."""
    from ds4py.kernels.cpu.executor import physical_cores
    from ds4py.tokenizer import load_tokenizer

    decode = values.integer("gen_tokens")
    least = max(PREFILL[0] + 1, N_FIRST + decode + 1, N_VERIFY + max(VERIFY))
    trained = int(model.get("context_length", least, int))
    if trained < least:
        raise ContextError(f"the comparison needs {least} positions and this model was trained for {trained}")
    limit = min(trained, max(least, values.integer("ctx_max"))) if values.has("ctx_max") else trained
    prefill = tuple(n for n in PREFILL if n < limit)
    reached = {min(depth, limit - decode - 1) for depth in DEPTHS}
    depths = tuple(sorted(depth for depth in reached if depth > SHALLOW))
    longest = max(*prefill, *depths, N_FIRST, N_VERIFY + max(VERIFY))
    n_threads = values.integer("threads") if values.has("threads") else physical_cores()
    ids = load_tokenizer(model).encode(text, add_bos=False)
    while 0 < len(ids) <= longest:
        ids = ids + ids
    if not ids:
        raise ContextError("the prompt file is empty; there is nothing to measure with")
    n_ctx = min(-(-(longest + decode + 1) // 256) * 256, trained)
    return Job(str(model.path), tuple(ids[: longest + 1]), n_threads, n_ctx, prefill, decode, kernels(values), depths, VERIFY)


def run_rounds(job: Job, rounds: int) -> tuple[list[Figures], list[Figures]]:
    """Figures of each engine, one for each round, after a round that does not count."""
    found: dict[str, list[Figures]] = {OURS: [], THEIRS: []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(asdict(job)))
        for number in range(rounds + 1):
            print(f"{COMMAND}: {f'round {number} of {rounds}' if number else 'warm-up round'}", file=sys.stderr, flush=True)
            for name in (OURS, THEIRS) if number % 2 else (THEIRS, OURS):
                found[name].append(run_peer(name, path))
    return found[OURS][1:], found[THEIRS][1:]


def run_peer(name: str, job: Path) -> Figures:
    """One engine in a process of its own. PeerError when it ends badly, with what to do where that is known."""
    command = [sys.executable, "-m", "ds4py.cli.peers", name, str(job)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PeerError(failure(name, done.returncode, done.stderr, cpu_flags()))
    return from_json(Figures, done.stdout.strip().splitlines()[-1])


def failure(name: str, code: int, stderr: str, flags: frozenset[str]) -> str:
    """Why a measured process ended, as a sentence."""
    words = [line.strip() for line in stderr.splitlines() if line.strip()]
    if code >= 0:
        return f"the {name} process failed: {words[-1] if words else f'exit code {code}'}"
    died = signal.Signals(-code).name
    if name == THEIRS and code == -signal.SIGSEGV and "amx_tile" in flags:
        return (
            "the llama.cpp process died by SIGSEGV; this processor has AMX, where a llama.cpp compiled by GCC 12 crashes: build "
            "llama-cpp-python with another compiler (CMAKE_ARGS='-DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++'), "
            "or without AMX (CFLAGS and CXXFLAGS='-mno-amx-tile -mno-amx-int8 -mno-amx-bf16')"
        )
    if name == THEIRS and code == -signal.SIGILL:
        return "the llama.cpp process died by SIGILL: its build uses instructions that this processor lacks; build it here"
    return f"the {name} process died by {died}" + (f"; its last words: {words[-1]}" if words else "")


def busy_share(seconds: float = 0.5) -> float:
    """How much of the processors others use while this process sleeps: 0 to 1, 0 where the system does not tell."""

    def ticks() -> tuple[int, int]:
        fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]  # all; idle and waiting for the disk

    try:
        total, idle = ticks()
        time.sleep(seconds)
        total_after, idle_after = ticks()
    except (OSError, ValueError, IndexError):
        return 0.0
    return 1 - (idle_after - idle) / max(1, total_after - total)


def cpu_flags() -> frozenset[str]:
    """Feature names of the processor as Linux spells them; empty where it does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))
