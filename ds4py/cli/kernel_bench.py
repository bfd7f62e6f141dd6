"""`ds4-bench --kernels`: every product of the CPU backend, with the code that makes it and its speed.

The idea: a line for each tensor type, hardware path and number of rows, beside what the machine's memory gives at most. What is
not computed by a kernel of its own is said in words under the table, so that nobody takes a fallback for the best there is.
No model is needed: matrices are random. Only lines are made here; the measuring is in kernels/cpu/measure.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ds4py.cli.parsing import Values
from ds4py.errors import UsageError
from ds4py.gguf import GgmlType
from ds4py.kernels.cpu import CpuKernels
from ds4py.kernels.cpu.measure import Figure, planned, products, read_limit
from ds4py.kernels.cpu.target import PATHS, candidates, host_paths, needs
from ds4py.quants import QUANTS

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
N_BYTES = 64 << 20  # of weights per type: more than an L3 cache leaves a core
LEAST = 0.15  # seconds of passes per line
AMX = "amx"  # has the bits of avx512, so it is no path of `host_paths`
CSV_HEADER = "path,type,rows,us_per_matrix,gb_per_s,of_limit,implementation"
_COLUMNS = f"{'path':8}{'type':9}{'rows':>5}{'us/matrix':>12}{'x 1 row':>9}{'GB/s':>8}{'of limit':>10}   implementation"


def kernel_bench(values: Values, n_bytes: int = N_BYTES, least: float = LEAST, rows: Sequence[int] = ROWS) -> int:
    """Measure all types on the paths that --backend allows; lines to standard output, and to --csv."""
    from ds4py.cli.files import result_file

    n_threads = values.integer("threads") if values.has("threads") else None
    lines: list[str] = []
    for path in wanted_paths(values):
        kernels = CpuKernels(n_threads, max_rows=max(rows), path=path)
        limit = read_limit(kernels, 4 * n_bytes)
        print(f"cpu:{path}, {kernels.n_threads} threads; memory is read at {limit:.1f} GB/s\n{_COLUMNS}", flush=True)
        first, refused = 0.0, []
        for figure in products(kernels, list(QUANTS), rows, n_bytes, least):
            if figure.refusal:
                refused.append(figure)
                continue
            first = figure.seconds if figure.rows == rows[0] else first
            print(shown(figure, first, limit), flush=True)
            lines.append(csv_line(figure, limit))
        kernels.executor.close()
        print("\n".join(fallbacks(path, refused)) + "\n")
    if ":" not in values.text("backend") and AMX not in candidates():
        print(f"cpu:{AMX}: not available, it needs {', '.join(needs(AMX))}; up to 8 rows it is cpu:avx512\n{_COLUMNS}")
        for figure in planned(AMX, list(QUANTS), rows):
            print(f"{figure.path:8}{figure.type:9}{figure.rows:5}{figure.refusal:>39}   {figure.implementation}")
            lines.append(f'{figure.path},{figure.type},{figure.rows},,,,"{figure.implementation} ({figure.refusal})"')
    if values.has("csv"):
        with result_file(values.text("csv")) as out:
            out.write("\n".join([CSV_HEADER, *lines, ""]))
    return 0


def wanted_paths(values: Values) -> tuple[str, ...]:
    """Every path of this processor, best first, or the one that --backend cpu:PATH forces. UsageError for another backend."""
    kind, _, path = values.text("backend").partition(":")
    if kind not in ("auto", "cpu"):
        raise UsageError(f"--kernels measures the CPU backend: --backend must be cpu or cpu:PATH, not {values.text('backend')}")
    return (path,) if path else candidates()


def shown(figure: Figure, first: float, limit: float) -> str:
    """A line of the table; `first`: seconds of the first number of rows."""
    return (
        f"{figure.path:8}{figure.type:9}{figure.rows:5}{1e6 * figure.seconds:12.1f}{figure.seconds / first:9.2f}"
        f"{figure.gb_per_s:8.1f}{figure.gb_per_s / limit:10.0%}   {figure.implementation}"
    )


def csv_line(figure: Figure, limit: float) -> str:
    numbers = f"{1e6 * figure.seconds:.2f},{figure.gb_per_s:.3f},{figure.gb_per_s / limit:.4f}"
    return f'{figure.path},{figure.type},{figure.rows},{numbers},"{figure.implementation}"'


def fallbacks(path: str, refused: Sequence[Figure]) -> Iterator[str]:
    """What does not run as fast as it could, or not at all, in words."""
    for figure in refused:
        yield f"no kernel: {figure.type} ({figure.refusal})"
    unknown = [kind.name for kind in GgmlType if kind not in QUANTS]
    yield f"no kernel and no decoder, files with such a matrix are refused: {', '.join(unknown)}"
    if path == "plain":
        yield "fallback: no int8 dot product on this path"
    elif path != "avx2":
        yield "fallback: IQ2_XXS uses 256-bit vectors"
    for better in PATHS[: PATHS.index(path) if path in PATHS else 0]:
        if better not in host_paths():
            yield f"fallback: cpu:{better} would be used on a processor with {', '.join(needs(better))}"
