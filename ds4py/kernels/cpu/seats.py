"""Which seat each expert of a call takes, and bringing it there (ds4py/kernels/streaming.py tells what seats are).

`plan` is done by one thread before a layer's products: experts that are held keep their seats; the others take those that were
used longest ago. Where a call takes more experts than there are seats, the rest go through one seat one after the other, so that
what a batch needs once does not drive out what is needed often.

`bring` is done by every thread in moe.each, for one expert and one of its three matrices. A thread notes for itself what its
share of a seat holds, and reads and packs its share anew if that is something else. So a plan is only ever good or bad, never
right or wrong: a seat that was given to two experts of one call is filled twice, and no thread waits for another or reads what
another brought.

With a plan, shares are read with pread: into the seat, or into a buffer from which they are packed. Rejected: copying from the
mapped file, whose pages the system maps by up to two megabytes at a touch, so that what is in memory is not what the seats hold.
Without a plan every expert has a seat of its own, packed from the mapped file, whose pages are handed back once all threads have
packed; what is multiplied as it lies in the file needs neither.
"""

from __future__ import annotations

import sys

from llvmlite import ir

from ds4py.kernels.cpu.compile import Builder
from ds4py.kernels.cpu.ir import I32, I64, Fn, Val, vec
from ds4py.kernels.cpu.packed import GROUP
from ds4py.kernels.cpu.streams import start
from ds4py.kernels.cpu.target import Target

RECORD = 16  # words of an op record (executor.py)
SEGMENT = 32  # bytes: see moe.group
PARTS = 3  # gate, up, down
AHEAD = 4  # experts that are asked for before they are needed
DONT_NEED, WILL_NEED = 4, 3  # of madvise, of posix_fadvise

# words of a matrix's table (one for each tensor of experts). FILE: its address; OFFSET: its place in the file FD
(PACKING, FILE, FILE_STRIDE, SEATS, SEAT_STRIDE, HELD, COUNTERS, BASE, PAGES, CLEAR, N_GROUPS, N_ROWS, ROW_BYTES) = range(13)
(FD, OFFSET, BUFFER, FAILED, TABLE_WORDS) = range(13, 18)
# words of a layer's table; from LAYER_PARTS on the addresses of its matrices' tables
(N_SEATS, OWNERS, USED, WHERE, COUNTS, FILE_BYTES, LAYER_PARTS) = range(7)
HITS, MISSES, BYTES, CLOCK, FAILURES = range(5)  # words of the counts


def _word(f: Fn, table: Val, i: int | Val) -> Val:
    return f.load(table + i * 8, I64, 8)


def _expert(f: Fn, segments: Val, s: Val) -> Val:
    return f.load(segments + s * SEGMENT + 8, I64, 8)


def plan(t: Target) -> Builder:
    """args: [2] segments (moe.group) [3] table of the layer [4] out, words: the seat of each segment, then whether it is a miss
    [5] for at most so many segments. Done by thread 0."""

    def build(module: ir.Module, name: str) -> None:
        f, (segments, table, out, n_max), tid, _ = start(module, name, 4)
        with f.when(tid.eq(0)):
            n, counts = f.load(segments, I64, 8), _word(f, table, COUNTS)
            owners, used, where = (_word(f, table, i) for i in (OWNERS, USED, WHERE))
            parts = [_word(f, table, LAYER_PARTS + p) for p in range(PARTS)]
            base, now = _word(f, parts[0], BASE), _word(f, counts, CLOCK) + 1
            f.store(counts + 8 * CLOCK, now, 8)
            with f.loop(0, n) as s:  # what is held and needed now is not given away
                mine = _word(f, where, base + _expert(f, segments, s) + 1)
                with f.when(mine.ne(0)):
                    f.store(used + (mine - 1) * 8, now, 8)
            last, n_missed = f.var(f.i64(-1)), f.var(f.i64(0))
            with f.loop(0, n) as s:
                number = base + _expert(f, segments, s) + 1
                seat, missed = f.var(_word(f, where, number) - 1), f.var(f.i64(0))
                with f.when(seat.get() < 0):
                    missed.set(f.i64(1))
                    seat.set(_victim(f, used, _word(f, table, N_SEATS), now, last.get()))
                    at = owners + seat.get() * 8
                    f.store(where + f.load(at, I64, 8) * 8, f.i64(0), 8)  # number 0 is nobody
                    f.store(at, number, 8)
                    f.store(where + number * 8, seat.get() + 1, 8)
                    f.store(used + seat.get() * 8, now, 8)
                    last.set(seat.get())
                    with f.when(n_missed.get() < AHEAD):
                        for part in parts:
                            _ask(f, part, _expert(f, segments, s))
                    n_missed.set(n_missed.get() + 1)
                f.store(out + s * 8, seat.get(), 8)
                f.store(out + (n_max + s) * 8, missed.get(), 8)
            for which, more in ((HITS, n - n_missed.get()), (MISSES, n_missed.get())):
                f.store(counts + 8 * which, _word(f, counts, which) + more, 8)
            f.store(counts + 8 * BYTES, _word(f, counts, BYTES) + n_missed.get() * _word(f, table, FILE_BYTES), 8)
        f.ret()

    return build


def _victim(f: Fn, used: Val, n_seats: Val, now: Val, last: Val) -> Val:
    """The seat that was used longest ago; if all are in use now, the last one that was given away, or else the last of all."""
    best, oldest = f.var(f.select(last < 0, n_seats - 1, last)), f.var(now)
    with f.loop(0, n_seats) as i:
        at = f.load(used + i * 8, I64, 8)
        better = at < oldest.get()
        best.set(f.select(better, i, best.get()))
        oldest.set(f.select(better, at, oldest.get()))
    return best.get()


def _ask(f: Fn, table: Val, expert: Val) -> None:
    """Tell the system that a matrix will be read soon."""
    if sys.platform == "linux":
        advise = f.declare("posix_fadvise", I32, [I32, I64, I64, I32])
        fd, n_bytes = f.trunc(_word(f, table, FD), I32), _word(f, table, FILE_STRIDE)
        f.call(advise, fd, _word(f, table, OFFSET) + expert * n_bytes, n_bytes, f.c(I32, WILL_NEED))


def bring(f: Fn, table: Val, plan: Val, n_max: Val, segments: Val, s: Val, record: Val, tid: Val, nt: Val) -> Val:
    """Address of the weights of segment s, by which this thread may now multiply. `plan` is 0 where every expert has a seat of
    its own; `record` is memory for a call of the packing kernel."""
    expert, packing = _expert(f, segments, s), _word(f, table, PACKING)
    seat = f.var(expert)
    with f.when(plan.ne(0)):
        seat.set(f.load(plan + s * 8, I64, 8))
        later = s + AHEAD
        with f.when(tid.eq(0) & (later < f.load(segments, I64, 8))), f.when(_word(f, plan, n_max + later).ne(0)):
            _ask(f, table, _expert(f, segments, later))
    file = _word(f, table, FILE) + expert * _word(f, table, FILE_STRIDE)
    seats, held, number = _word(f, table, SEATS), _word(f, table, HELD), _word(f, table, BASE) + expert + 1
    weights = f.select(seats.ne(0), seats + seat.get() * _word(f, table, SEAT_STRIDE), file)
    with f.when(held.ne(0)):
        at = held + (seat.get() * nt + tid) * 8
        with f.when(f.load(at, I64, 8).ne(number)):
            done, source = f.var(number), f.select(plan.ne(0), _word(f, table, BUFFER), file)
            with f.when(plan.ne(0)):
                _read(f, table, expert, f.select(packing.ne(0), source, weights), done, tid, nt)
            with f.when(packing.ne(0)):
                _pack(f, table, source, weights, record, tid, nt)
            f.store(at, done.get(), 8)
            with f.when(_word(f, table, COUNTERS).ne(0)):
                _release(f, _word(f, table, PAGES) + expert * 16, _word(f, table, COUNTERS) + expert * 8, nt)
    return weights


def _read(f: Fn, table: Val, expert: Val, to: Val, done, tid: Val, nt: Val) -> None:
    """Read this thread's rows of an expert to their place from `to` on; a failure is counted, and sets `done` to nobody."""
    n_rows, row_bytes, n_groups = (_word(f, table, i) for i in (N_ROWS, ROW_BYTES, N_GROUPS))
    by_groups = n_groups > 0  # packed ones are split by groups of rows, as their packing and product are
    unit = f.select(by_groups, f.i64(GROUP), f.i64(1))
    n = f.select(by_groups, n_groups, n_rows)
    lo, hi = n * tid / nt * unit * row_bytes, f.min(n * (tid + 1) / nt * unit, n_rows) * row_bytes
    at = f.var(lo)
    fd, place = f.trunc(_word(f, table, FD), I32), _word(f, table, OFFSET) + expert * _word(f, table, FILE_STRIDE)
    pread = f.declare("pread", I64, [I32, I64, I64, I64])
    with f.spin(lambda: at.get() < hi):
        got = f.call(pread, fd, to + at.get(), hi - at.get(), place + at.get())
        with f.when(got <= 0):
            f.store(_word(f, table, FAILED), f.i64(1), 8)
            done.set(f.i64(0))
        at.set(f.select(got <= 0, hi, at.get() + got))


def _pack(f: Fn, table: Val, source: Val, weights: Val, record: Val, tid: Val, nt: Val) -> None:
    """This thread's groups, on zeros where packing leaves gaps and another layer may have left something (CLEAR: bytes of a
    group, or 0)."""
    group_bytes, n = _word(f, table, CLEAR), _word(f, table, N_GROUPS)
    with f.when(group_bytes > 0), f.loop(n * tid / nt * group_bytes, n * (tid + 1) / nt * group_bytes, 64) as i:
        f.store(weights + i, f.c(vec(I32, 16), 0), 4)
    copy(f, _word(f, table, PACKING), record)
    f.store(record + 16, source, 8)
    f.store(record + 24, weights, 8)
    f.call_address(f.load(record, I64, 8), record, tid, nt)


def _release(f: Fn, pages: Val, counter: Val, nt: Val) -> None:
    """The last thread that has packed hands the mapped file's pages back to the system."""
    arrived = Val(f, f.b.atomic_rmw("add", f.b.inttoptr(counter.v, ir.PointerType(I64)), ir.Constant(I64, 1), "acq_rel"))
    n_bytes = _word(f, pages, 1)
    with f.when((arrived + 1).eq(nt) & (n_bytes > 0)):
        f.call(f.declare("madvise", I32, [I64, I64, I32]), _word(f, pages, 0), n_bytes, f.c(I32, DONT_NEED))


def copy(f: Fn, src: Val, dst: Val) -> None:
    """One op record."""
    for i in range(RECORD):
        f.store(dst + 8 * i, f.load(src + 8 * i, I64, 8), 8)
