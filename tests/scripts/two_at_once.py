"""Do two ds4 processes on one machine halt each other? Each one's decoding rate beside another, over its rate alone.

    python tests/scripts/two_at_once.py MODEL.gguf [--tokens 128] [--rounds 3]

Both have the default number of threads, so they want every core twice; fair halves are 0.5 each. Threads that spin while another
process holds the core they wait for would show as far less. Run it on a quiet machine: it says nothing on a busy one.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

CHILD = """
import sys, time
from ds4py.engine import Engine, EngineOptions, SessionOptions
from ds4py.gguf import open_gguf
from ds4py.protocols import SamplingParams

session = Engine.open(open_gguf(sys.argv[1]), EngineOptions(n_ctx=1024)).session(SessionOptions(params=SamplingParams(0.0)))
session.sync(list(range(1000, 1033)))
for _ in session.generate(8):
    pass
print("ready", flush=True)
sys.stdin.readline()
begun = time.perf_counter()
n = sum(len(step.tokens) for step in session.generate(int(sys.argv[2])))
print(n / (time.perf_counter() - begun), flush=True)
"""


def rates(model: str, n_tokens: int, n_processes: int) -> list[float]:
    """Tokens per second of processes that begin at the same moment."""
    command = [sys.executable, "-c", CHILD, model, str(n_tokens)]
    running = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(n_processes)]
    for process in running:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise SystemExit("a process did not start; its words are above")
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    found = [float(process.communicate()[0]) for process in running]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    alone, together = [], []
    for number in range(1, options.rounds + 1):
        alone += rates(options.model, options.tokens, 1)
        together.append(rates(options.model, options.tokens, 2))
        print(
            f"round {number}: alone {alone[-1]:.1f} t/s, together {together[-1][0]:.1f} and {together[-1][1]:.1f} t/s", flush=True
        )
    one = statistics.median(alone)
    print(
        "share of the rate alone, medians: "
        + " and ".join(f"{statistics.median(side) / one:.2f}" for side in zip(*together, strict=True))
    )


if __name__ == "__main__":
    main()
