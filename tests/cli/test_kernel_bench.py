"""`ds4-bench --kernels`: every type is listed with the code that is really called. Structure only: no time is judged here."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from ds4py.cli import bench
from ds4py.cli.kernel_bench import CSV_HEADER, kernel_bench
from ds4py.cli.parsing import parse
from ds4py.kernels.cpu import CpuKernels, matmul
from ds4py.kernels.cpu.executor import RECORD
from ds4py.kernels.cpu.measure import read_limit
from ds4py.kernels.cpu.target import candidates, host_paths
from ds4py.quants import QUANTS


def test_every_type_path_and_row_count_has_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = parse("ds4-bench", ["--kernels", "--csv", str(tmp_path / "k.csv"), "-t", "2"])
    assert kernel_bench(values, n_bytes=1, least=0.0, rows=(1, 6, 64)) == 0
    header, *csv_lines = (tmp_path / "k.csv").read_text().splitlines()
    assert header == CSV_HEADER
    cells = [line.split(",", 6) for line in csv_lines if not line.endswith('(not available)"')]
    paths = candidates()
    computed = [kind.name for kind in QUANTS if kind.name != "Q8_K"]
    assert [(path, kind, int(rows)) for path, kind, rows, *_ in cells] == [
        (path, kind, rows) for path in paths for kind in computed for rows in (1, 6, 64)
    ]
    assert all(float(us) > 0 and float(speed) > 0 for _, _, _, us, speed, _, _ in cells)
    code = {(path, kind, int(rows)): name.strip('"') for path, kind, rows, _, _, _, name in cells}
    best = host_paths()[0]
    assert code[best, "Q4_K", 6].startswith("few_p4m_6: vpdpbusd" if best == "avx512" else "tiles_p4m: ")
    assert code[best, "F16", 1].startswith("float_f16, from the file's layout")
    floats = ("F32", "F16", "BF16", "IQ2_XXS")
    assert all(name.startswith(("micro_", "few_", "tiles_")) or kind in floats for (_, kind, _), name in code.items())
    told = capsys.readouterr().out
    if "amx" not in paths:  # what this processor cannot run is listed all the same
        assert 'amx,Q4_K,64,,,,"tiles_p4m: tdpbssd, 16 x 16 tiles (not available)"' in csv_lines
        assert "cpu:amx: not available, it needs" in told
    assert told.count("no kernel: Q8_K") == len(paths) and "IQ3_S" in told
    assert "fallback: no int8 dot product on this path" in told  # of the plain path
    for path in {"avx512", "avx2"} - set(host_paths()):
        assert f"fallback: cpu:{path} would be used on a processor with" in told


@pytest.mark.parametrize(
    "args", [["--backend", "reference"], ["--backend", "cpu:sse9"], ["--compare-llama-cpp"], ["--plot", "x.png"]]
)
def test_what_cannot_be_measured_exits_2(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--kernels", *args]) == 2
    assert capsys.readouterr().err.startswith("ds4-bench: ")


@pytest.mark.parametrize("sizes", [(1, 2, 3), (1, 2, 3, 4), (1, 2, 3, 4, 8)], ids=str)
def test_the_driver_cuts_rows_as_the_table_says(sizes: tuple[int, ...]) -> None:
    """The driver is run with micro kernels that only note their number of rows."""
    kernels = CpuKernels(threads=1)
    called: list[int] = []
    spies = {m: ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 8)(lambda *_, m=m: called.append(m)) for m in sizes}
    table = np.zeros(max(spies) + 1, np.int64)
    for m, spy in spies.items():
        table[m] = ctypes.cast(spy, ctypes.c_void_p).value
    for n_rows in range(1, 66):
        record = np.zeros((1, RECORD), np.int64)
        record[0, 0] = kernels.kernel(f"driver_{max(sizes)}", lambda _: matmul.driver(sizes))
        record[0, 7:12] = 1, 4, n_rows, 4, table.ctypes.data
        called.clear()
        kernels.executor.run(record)
        assert called == matmul.cut(n_rows, sizes) and sum(called) == n_rows


def test_the_read_loop_reads_everything(tmp_path: Path) -> None:
    """Sums of words that are all one count the words."""
    from ds4py.kernels.cpu.measure import STEP, read_loop

    kernels = CpuKernels(threads=2)
    n_words = 6 * STEP
    memory, sums, record = np.ones(n_words, np.int64), np.zeros((2, 8), np.int64), np.zeros((1, RECORD), np.int64)
    record[0, 0] = kernels.kernel("read_loop", read_loop)
    record[0, 2:5] = memory.ctypes.data, memory.nbytes, sums.ctypes.data
    kernels.executor.run(record)
    assert sums.sum() == n_words
    assert 0.1 < read_limit(kernels, 8 << 20, 2) < 5000
