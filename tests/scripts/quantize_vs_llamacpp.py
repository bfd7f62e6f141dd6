"""The same file quantised by us and by llama.cpp, to the same types: sizes, types per tensor, perplexities, speed.

    python tests/scripts/quantize_vs_llamacpp.py F16.gguf [--types Q4_0,Q4_K_M] [--tokens 2048] [--threads 2] [--keep DIR]
    ds4-quantize MODEL.Q4_1.gguf F16.gguf --type F16 --allow-requantize     # makes such an F16.gguf of a quantised model

Exit code 1 if a perplexity of ours is more than 1 % above llama.cpp's, or a tensor has another type than llama.cpp chose. Both
perplexities come from our engine, teacher-forced over one text from its 33rd token on. llama.cpp runs in a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ds4py.cli.quantize import main as quantize
from ds4py.engine import Engine, EngineOptions, SessionOptions
from ds4py.engine.scoring import perplexity
from ds4py.gguf import open_gguf
from ds4py.protocols import SamplingParams
from ds4py.quantize import recipe
from ds4py.tokenizer import load_tokenizer

TEXT = Path(__file__).parent.parent / "golden" / "alice.txt"
BOUND = 1.01

THEIRS = """
import ctypes, sys
from llama_cpp import llama_cpp as api
source, target, number, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
params = api.llama_model_quantize_default_params()
params.ftype, params.nthread = number, threads
sys.exit(api.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)))
"""


def score(path: Path, n_tokens: int, threads: int) -> float:
    g = open_gguf(path)
    ids = load_tokenizer(g).encode(TEXT.read_text(), add_bos=True)[:n_tokens]
    engine = Engine.open(g, EngineOptions(n_ctx=n_tokens, threads=threads))
    return perplexity(engine.session(SessionOptions(params=SamplingParams(temperature=0))), ids).ppl


def by_us(source: Path, target: Path, name: str, threads: int) -> float:
    """Seconds."""
    begun = time.perf_counter()
    if quantize([str(source), str(target), name, str(threads)]):
        raise SystemExit(f"ds4-quantize {name} failed")
    return time.perf_counter() - begun


def by_them(source: Path, target: Path, name: str, threads: int) -> float:
    begun = time.perf_counter()
    words = [sys.executable, "-c", THEIRS, str(source), str(target), str(recipe(name).file_type), str(threads)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"llama.cpp's quantisation to {name} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return time.perf_counter() - begun


def compare(source: Path, folder: Path, name: str, n_tokens: int, threads: int) -> bool:
    """One row of the table; whether both bounds are met."""
    ours, theirs = folder / f"ours-{name}.gguf", folder / f"theirs-{name}.gguf"
    our_s, their_s = by_us(source, ours, name, threads), by_them(source, theirs, name, threads)
    a, b = open_gguf(ours), open_gguf(theirs)
    others = [n for n in b.tensors if a.tensors[n].type is not b.tensors[n].type]
    p, q = (score(path, n_tokens, threads) for path in (ours, theirs)) if n_tokens else (1.0, 1.0)
    megabytes = source.stat().st_size / 1e6
    met = p <= BOUND * q and not others
    print(
        f"{name:<8} ours {ours.stat().st_size:>12,} B  llama.cpp {theirs.stat().st_size:>12,} B  other types {len(others):>3}  "
        f"ppl {p:.4f} / {q:.4f} = {p / q:.4f}  MB/s {megabytes / our_s:.1f} / {megabytes / their_s:.1f}  "
        f"{'met' if met else 'NOT MET'} {others[:3] or ''}",
        flush=True,
    )
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--types", default="Q8_0,Q5_1,Q4_0,Q4_K_M")
    parser.add_argument("--tokens", type=int, default=2048, help="0: no perplexities")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="leave the files in this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = options.keep or Path(made)
        if options.tokens:
            print(f"source   ppl {score(options.source, options.tokens, options.threads):.4f}", flush=True)
        rows = [compare(options.source, folder, name, options.tokens, options.threads) for name in options.types.split(",")]
    return 0 if all(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
