"""Error and speed of the encoders beside llama.cpp's own, through its C library (which llama-cpp-python brings).

    python tests/scripts/encode_error_vs_llamacpp.py                       table on synthetic rows
    python tests/scripts/encode_error_vs_llamacpp.py --model FILE.gguf     the same on a model's weights (repeatable)
    python tests/scripts/encode_error_vs_llamacpp.py --speed               MB/s of float32 input, both, on two threads
    python tests/scripts/encode_error_vs_llamacpp.py --speed --cpu-time --threads 1       the same on a busy machine
    python tests/scripts/encode_error_vs_llamacpp.py --record tests/golden/quants/encode_errors.json --values 4096 --model ...
                                                                           what tests/quants/test_encode.py compares with

Errors are mean squared errors over the mean square of the input; with importance both are weighted by it. The synthetic rows are
made from seeds by tests/encode_samples.py, so the recorded figures stand for the same numbers. A `!` marks ratios above 1.02.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from encode_samples import TYPES, importance_for, model_rows, relative_error, synthetic_rows  # noqa: E402

from ds4py.gguf import GgmlType  # noqa: E402
from ds4py.quants import decode, encode  # noqa: E402

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
Clock = Callable[[], float]
NEED_IMPORTANCE = {GgmlType.IQ2_XXS}  # llama.cpp refuses to write it without


def open_ggml() -> ctypes.CDLL:
    """llama.cpp's base library as llama-cpp-python ships it; SystemExit if it is not there."""
    spec = find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("llama-cpp-python is not installed: pip install llama-cpp-python")
    folder = Path(next(iter(spec.submodule_search_locations))) / "lib"
    found = sorted([*folder.glob("libggml-base.so"), *folder.glob("libggml-base.dylib"), *folder.glob("ggml-base.dll")])
    if not found:
        raise SystemExit(f"no ggml base library in {folder}")
    library = ctypes.CDLL(str(found[0]))
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    library.ggml_quantize_chunk.argtypes = [ctypes.c_int, pointer, pointer, count, count, count, pointer]
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    for kind in TYPES:
        library.ggml_quantize_init(int(kind))
    return library


def their_encode(ggml: ctypes.CDLL, kind: GgmlType, rows: F32, importance: F32 | None) -> U8:
    """llama.cpp's bytes for the rows."""
    out = np.zeros(kind.nbytes(rows.size), np.uint8)
    if importance is None and kind in NEED_IMPORTANCE:
        importance = np.ones(rows.shape[1], np.float32)
    weights = None if importance is None else importance.ctypes.data
    written = ggml.ggml_quantize_chunk(int(kind), rows.ctypes.data, out.ctypes.data, 0, *rows.shape, weights)
    if written != out.size:
        raise SystemExit(f"llama.cpp wrote {written} bytes of {kind.name}, {out.size} were expected")
    return out


def error_of(kind: GgmlType, data: U8, rows: F32, importance: F32 | None) -> float:
    return relative_error(rows, decode(kind, data, rows.size).reshape(rows.shape), importance)


def compare(ggml: ctypes.CDLL, rows: F32, kinds: list[GgmlType]) -> dict[str, dict[str, float]]:
    """Per type: our and their error, without and with importance."""
    table = {}
    for kind in kinds:
        line = {}
        for name, importance in (("plain", None), ("weighted", importance_for(rows.shape[1]))):
            theirs = error_of(kind, their_encode(ggml, kind, rows, importance), rows, importance)
            ours = error_of(kind, encode(kind, rows, importance), rows, importance)
            line |= {f"{name} ours": ours, f"{name} llama.cpp": theirs}
        table[kind.name] = line
    return table


def show(title: str, table: dict[str, dict[str, float]]) -> None:
    print(f"\n{title}\n{'':8}{'ours':>12}{'llama.cpp':>12}{'ratio':>8}   importance:{'ours':>12}{'llama.cpp':>12}{'ratio':>8}")
    for kind, line in table.items():
        cells = ""
        for name in ("plain", "weighted"):
            ours, theirs = line[f"{name} ours"], line[f"{name} llama.cpp"]
            ratio = ours / theirs if theirs else (1.0 if not ours else float("inf"))
            mark = "!" if ratio > 1.02 else " "
            cells += f"{ours:12.4e}{theirs:12.4e}{ratio:7.3f}{mark}" + (" " * 14 if name == "plain" else "")
        print(f"{kind:8}{cells}", flush=True)


def megabytes_per_second(run: Callable[[F32], object], rows: F32, threads: int, seconds: float, clock: Clock) -> float:
    """float32 megabytes of input per second of the clock, slabs of the rows given to a pool."""
    slabs = np.array_split(rows, 4 * threads)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, slabs[:threads]))
        done, start = 0, clock()
        while clock() - start < seconds:
            list(pool.map(run, slabs))
            done += rows.nbytes
        return done / (clock() - start) / 1e6


def speeds(ggml: ctypes.CDLL, kinds: list[GgmlType], threads: int, seconds: float, clock: Clock) -> None:
    rows = np.random.default_rng(0).normal(0, 0.02, (1024, 2048)).astype(np.float32)
    print(f"\nMB/s of float32 input on {threads} thread(s)\n{'':8}{'ours':>9}{'llama.cpp':>11}{'ratio':>8}   importance:", end="")
    print(f"{'ours':>9}{'llama.cpp':>11}{'ratio':>8}")
    for kind in kinds:
        cells = ""
        for importance in (None, importance_for(rows.shape[1])):
            part = rows[:256] if kind in NEED_IMPORTANCE else rows
            ours = megabytes_per_second(partial(_encode_slab, kind, importance), part, threads, seconds, clock)
            theirs = megabytes_per_second(partial(_their_slab, ggml, kind, importance), part, threads, seconds, clock)
            cells += f"{ours:9.1f}{theirs:11.1f}{ours / theirs:8.2f}" + (" " * 14 if importance is None else "")
        print(f"{kind.name:8}{cells}", flush=True)


def _encode_slab(kind: GgmlType, importance: F32 | None, slab: F32) -> U8:
    return encode(kind, slab, importance)


def _their_slab(ggml: ctypes.CDLL, kind: GgmlType, importance: F32 | None, slab: F32) -> U8:
    return their_encode(ggml, kind, slab, importance)


def record(ggml: ctypes.CDLL, samples: dict[str, F32], n_values: int, path: Path) -> None:
    tables = {}
    for name, rows in samples.items():
        tables[name] = compare(ggml, rows, list(TYPES))
        show(name, tables[name])
    what = {
        "made by": f"llama-cpp-python {version('llama-cpp-python')} (ggml_quantize_chunk), numpy {np.__version__}",
        "command": "python " + " ".join(["tests/scripts/encode_error_vs_llamacpp.py", *map(_public, sys.argv[1:])]),
        "figures": "mean squared error over mean square of the rows of tests/encode_samples.py, weighted by importance_for()",
        "values per tensor": n_values,
        "errors": tables,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(what, indent=1) + "\n")
    print(f"wrote {path}")


def _public(argument: str) -> str:
    """An argument without the folders of the machine that it was given on."""
    return Path(argument).name if Path(argument).is_absolute() else argument


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, action="append", default=[])
    parser.add_argument("--values", type=int, default=8192, help="values per tensor of --model")
    parser.add_argument("--types", default=",".join(kind.name for kind in TYPES))
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="per figure of --speed")
    parser.add_argument("--cpu-time", action="store_true", help="count the CPU's seconds: for a machine that is not alone")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    ggml = open_ggml()
    kinds = [GgmlType[name] for name in args.types.split(",")]
    if args.speed:
        return speeds(ggml, kinds, args.threads, args.seconds, time.process_time if args.cpu_time else time.perf_counter)
    samples = synthetic_rows() if args.record or not args.model else {}
    for path in args.model:
        samples |= model_rows(path, args.values)
    if args.record:
        return record(ggml, samples, args.values, args.record)
    for name, rows in samples.items():
        show(name, compare(ggml, rows, kinds))


if __name__ == "__main__":
    main()
