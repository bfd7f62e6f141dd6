"""Carrying out a plan: read a slab of rows, encode it, write it, forget it.

The idea: the memory of a quantisation is that of a few slabs, whatever the tensor: rows are decoded, encoded and handed to the
streaming writer some megabytes at a time, in order, by a pool of threads that is never more than a few slabs ahead; the
pages of the source that a slab came from are given back to the system as soon as it is written. Slabs never cross the border
between two experts, so each has one row of importance.

The output appears whole or not at all. Shards are first written under temporary names and take their own when all are complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ds4py.editing.shards import shard_keys, shard_path, without_shards
from ds4py.editing.together import OutFile, stored, write_together
from ds4py.errors import UsageError
from ds4py.gguf import GgmlType, GgufFile, NewTensor, Tensor, gguf_size, is_written, write_resumable
from ds4py.quantize.encoding import Slab, encode_rows, read_rows
from ds4py.quantize.imatrix import Imatrix
from ds4py.quantize.plan import FLOATS, Plan, Planned

SLAB_VALUES = 1 << 20  # 4 MB as float32
Progress = Callable[[int, int, str], None]  # source bytes done, of, tensor


@dataclass(frozen=True, eq=False)
class Job:
    """A plan with everything it needs. `kv`: the metadata of the new file (see provenance.py); one file or, with `keep_split`,
    as many as the source has. `unweighted` collects the tensors that were encoded without an entry in `imatrix`."""

    g: GgufFile
    plan: Plan
    kv: Mapping[str, Any]
    imatrix: Imatrix | None = None
    threads: int = 1
    keep_split: bool = False
    unweighted: list[str] = field(default_factory=list)

    @property
    def n_shards(self) -> int:
        return len(self.g.shards) if self.keep_split else 1


def output_size(job: Job, out: Path) -> int:
    """Bytes of the file or files that `run` would write."""
    return sum(gguf_size(kv, tensors) for _, kv, tensors in _files(job, out, _nothing))


def output_paths(job: Job, out: Path) -> Sequence[Path]:
    """The files that `run` would write."""
    return [path for path, _, _ in _files(job, out, _nothing)]


def is_finished(job: Job, out: Path) -> bool:
    """Whether an earlier run has written `out`, as far as its metadata, its list of tensors and its length tell."""
    return all(is_written(path, kv, tensors) for path, kv, tensors in _files(job, out, _nothing))


def run(job: Job, out: Path, progress: Progress, resume: bool = False) -> Sequence[Path]:
    """Write the file (or shards) and return the names. resume: keep what an interrupted run has written, and go on from there.
    Raises FormatError (damaged weights, or a partial file of something else), ResourceError (disk)."""
    *begins, total = accumulate((item.tensor.nbytes for item in job.plan.tensors), initial=0)
    before_each = {item.tensor.name: begin for item, begin in zip(job.plan.tensors, begins, strict=True)}
    done = 0

    def data(item: Planned, start: int = 0) -> Iterator[Any]:
        nonlocal done
        before = before_each[item.tensor.name]
        for piece, n_source in _pieces(job, item, pool, start):
            done = min(before + item.tensor.nbytes, max(before, done) + n_source)
            progress(done, total, item.tensor.name)
            yield piece
        done = before + item.tensor.nbytes

    with ThreadPoolExecutor(job.threads, "ds4-quantize") as pool:
        files = _files(job, out, data)
        if not resume:
            return write_together(files)
        if len(files) > 1:
            raise UsageError("--resume writes one file: leave --keep-split out")
        write_resumable(*files[0], identity=_identity(job))
        return [out]


def _identity(job: Job) -> str:
    """What the weights come from, so that a run is only taken up with the same input."""
    paths = [*job.g.shards, *([Path(job.imatrix.path)] if job.imatrix is not None else [])]
    return "\n".join(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in paths)


def _nothing(item: Planned, start: int = 0) -> Iterator[Any]:
    """In place of the data, where only sizes matter."""
    return iter(())


def _files(job: Job, out: Path, data: Callable[[Planned, int], Iterator[Any]]) -> Sequence[OutFile]:
    """What goes into each output file: its name, its metadata, its tensors."""
    items = job.plan.tensors
    tensors = [
        NewTensor(item.tensor.name, item.tensor.shape, item.type, partial(data, item, 0), partial(data, item)) for item in items
    ]
    if job.n_shards == 1:
        return [(out, without_shards(job.kv), tensors)]
    files = []
    for no in range(job.n_shards):
        inside = [new for new, item in zip(tensors, items, strict=True) if item.tensor.shard == no]
        files.append((shard_path(out, no, job.n_shards), shard_keys(job.kv, no, job.n_shards, len(tensors)), inside))
    return files


def _pieces(job: Job, item: Planned, pool: ThreadPoolExecutor, start: int) -> Iterator[tuple[Any, int]]:
    """The stored bytes of one tensor from byte `start` on, each piece with the source bytes it came from."""
    if not item.changes:
        yield from _copy(item.tensor, str(job.g.path), start)
        return
    weights = _importance(job, item)
    where, tensor = str(job.g.path), item.tensor
    new_row_bytes = item.nbytes // tensor.n_rows

    def work(slab: Slab) -> npt.NDArray[np.uint8]:
        rows = read_rows(tensor, slab, where)
        return encode_rows(item.type, rows, None if weights is None else weights[slab.mat], tensor.name, where)

    row_bytes = tensor.nbytes // tensor.n_rows
    left = (slab for slab in slabs(tensor) if (slab.first + slab.n) * new_row_bytes > start)
    for slab, encoded in _ahead(pool, work, left, job.threads + 1):
        yield encoded[max(0, start - slab.first * new_row_bytes) :], slab.n * row_bytes
        tensor.release(slab.first * row_bytes, (slab.first + slab.n) * row_bytes)


def slabs(tensor: Tensor) -> Iterator[Slab]:
    """All rows of a tensor, in order, in slabs that stay within one matrix."""
    per_mat = tensor.shape[1] if len(tensor.shape) > 1 else 1
    step = max(1, SLAB_VALUES // tensor.row_len)
    for mat in range(tensor.n_rows // per_mat):
        for row in range(0, per_mat, step):
            yield Slab(mat * per_mat + row, min(step, per_mat - row), mat)


def _ahead(pool: ThreadPoolExecutor, work: Callable[[Slab], Any], items: Iterable[Slab], most: int) -> Iterator[tuple[Slab, Any]]:
    """`work` over `items` on the pool, results in order, at most `most` begun and not yet taken."""
    waiting: deque[tuple[Slab, Future[Any]]] = deque()
    try:
        for item in items:
            waiting.append((item, pool.submit(work, item)))
            if len(waiting) >= most:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    finally:
        for _, future in waiting:
            future.cancel()


def _copy(tensor: Tensor, where: str, start: int) -> Iterator[tuple[Any, int]]:
    """The tensor as it is stored; floats are looked at, since a NaN that is copied is as bad as one that is encoded."""
    if tensor.type in FLOATS:
        for slab in slabs(tensor):
            read_rows(tensor, slab, where)
            tensor.release()
    yield from ((piece, len(piece)) for piece in stored(tensor, start))


def _importance(job: Job, item: Planned) -> npt.NDArray[np.float32] | None:
    """float32 [n_mat, K], or None: all columns alike."""
    tensor = item.tensor
    if item.type in FLOATS:
        return None
    if job.imatrix is not None:
        found = job.imatrix.importance(tensor.name, item.n_mat, tensor.row_len)
        if found is not None:
            return np.ascontiguousarray(found)
        job.unweighted.append(tensor.name)
    return _energy(tensor, item.n_mat, str(job.g.path)) if item.type is GgmlType.IQ2_XXS else None


def _energy(tensor: Tensor, n_mat: int, where: str) -> npt.NDArray[np.float32]:
    """Sum of w^2 over the rows, per column: what stands in for a missing importance at two bits."""
    sums = np.zeros((n_mat, tensor.row_len))
    for slab in slabs(tensor):
        rows = read_rows(tensor, slab, where)
        sums[slab.mat] += np.einsum("nk,nk->k", rows, rows, dtype=np.float64)
        tensor.release()
    peak = sums.max(axis=1, keepdims=True)
    return (sums / np.where(peak > 0, peak, 1)).astype(np.float32)
