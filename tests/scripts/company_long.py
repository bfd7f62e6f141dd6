"""Rows 1 to 65 x depths around every tile edge x 1 to n threads x every path of this processor, bit for bit as decoded alone.

    python tests/scripts/company_long.py [MODEL.gguf ...] [--tiny] [--backend cpu:avx2,...] [--threads 1,2,3,4] [--positions 200]
                                         [--every 1] [--parties 200]

For each model and path: decodes a random text one token at a time on one thread, then evaluates it again from every depth around
an edge (tiles of 16 positions; ends of rings), with every number of rows, on every number of threads, and calls of two to five
sessions. Logits of all rows and all caches are compared; the first difference ends the run. tests/company.py does the comparing,
tests/kernels/test_rows_in_company.py is the suite's share. --every 4 takes a quarter of the numbers of rows at each depth.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from company import MOST_ROWS, Alone, compare, edges, ring_capacities

from ds4py.gguf import open_gguf
from ds4py.kernels.cpu import CpuKernels
from ds4py.kernels.cpu.target import host_paths
from ds4py.models import LoadedModel, load_model


def opened(file: Path, path: str, made: dict[int, LoadedModel], threads: int) -> LoadedModel:
    if threads not in made:
        made[threads] = load_model(open_gguf(file), CpuKernels(threads, MOST_ROWS, path))
    return made[threads]


def check(file: Path, path: str, args: argparse.Namespace) -> None:
    """One model on one path; prints a line. AssertionError for a difference."""
    open_model = partial(opened, file, path, {})
    model = open_model(1)
    rings = ring_capacities(model)
    n = args.positions or max([2 * capacity + MOST_ROWS for capacity in rings], default=MOST_ROWS + 64)
    ids = np.random.default_rng(13).integers(0, model.vocab_size, n).tolist()
    begun = time.monotonic()
    alone = Alone.decode(model, ids, edges(n, *rings))
    threads = [int(t) for t in args.threads.split(",")]
    done = compare(alone, open_model, threads, args.every, args.parties, cross=True)
    wrapped = ", rings wrapped" if rings and n > rings[-1] else ", no ring wrapped" if rings else ""
    print(
        f"{file.stem} on {path}: {n} positions, {len(alone.at)} depths{wrapped}, threads {args.threads}: {done.n_calls} calls, "
        f"{done.n_rows} rows, 0 differences, {time.monotonic() - begun:.0f} s",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="*", type=Path)
    parser.add_argument("--tiny", action="store_true", help="random models of every architecture")
    parser.add_argument("--backend", default=",".join(f"cpu:{path}" for path in host_paths()))
    parser.add_argument("--threads", default="1,2,3,4")
    parser.add_argument("--positions", type=int, default=0, help="length of the text; 0: two rings and 65, or 129")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--parties", type=int, default=200, help="calls of several sessions")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for file in [*(_tiny(Path(folder)) if args.tiny else []), *args.model]:
            for backend in args.backend.split(","):
                check(file, backend.removeprefix("cpu:"), args)
    return 0


def _tiny(folder: Path) -> list[Path]:
    from tiny_models import ARCHITECTURES, GgmlType, tiny_gguf
    from tiny_v4 import make_tiny

    made = [tiny_gguf(name, folder / f"tiny-{name}.gguf") for name in ARCHITECTURES]
    made.append(tiny_gguf("llama", folder / "tiny-llama-f16.gguf", kind=GgmlType.F16))
    flash = make_tiny(hca=24, compress_ratios=[4, 128, 0], num_hidden_layers=3, hc_sinkhorn_iters=3)
    return [*made, flash.write(folder / "tiny-deepseek4.gguf", GgmlType.Q8_0)]


if __name__ == "__main__":
    sys.exit(main())
