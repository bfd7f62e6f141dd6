"""One engine measured in a process of its own: `python -m ds4py.cli.peers ds4py|llama.cpp JOB.json` prints one JSON object.

The idea: both engines do the same work on the same token ids, behind the same four calls (load, prefill, decode, describe), and
one function times them. A process each makes peak memory honest and lets one engine crash without the other.

What is timed. load: opening the file until the first token could be evaluated, imports excluded. first token: straight
after loading, a prompt of 32 tokens until the next token is known. pp N: N prompt tokens evaluated, no logits. tg N: N tokens
chosen greedily one by one after the 32-token prompt, or at a depth (that many tokens before it), evaluation and argmax included.
verify N: one forward call over N rows that gives all their logits, after 128 tokens; then the rows are taken back. llama.cpp is
driven through its C interface (llama_decode on a batch) and its argmax is numpy's over the logits in place, so that no Python
per-token work of a binding counts against it; ds4py is driven through `Session.sync` and `Session.generate`. Both have f16 keys
and values, the same number of threads, the same context. Token ids are the text's own, since speeds do not depend on them.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

N_FIRST = 32  # prompt tokens of the first-token and decode measurements
N_VERIFY = 128  # ... and of the verify measurements
LONG_PREFILL = 1024  # prompts from here on are read once; shorter ones REPEATS times, and the median counts
REPEATS = 3
VERIFY_REPEATS = 5


@dataclass(frozen=True)
class Job:
    """What to run. `ids` holds one token more than the longest of prefill, depths, N_FIRST and N_VERIFY + verify."""

    model: str
    ids: tuple[int, ...]
    threads: int
    n_ctx: int
    prefill: tuple[int, ...]
    decode: int
    backend: str = "auto"
    depths: tuple[int, ...] = ()  # ascending: tokens before a decode, beside the one after N_FIRST
    verify: tuple[int, ...] = ()  # rows of a forward call


@dataclass(frozen=True)
class Figures:
    """What one run gave. `info` says which build and which code path it was."""

    load_s: float
    first_token_ms: float
    prefill_tps: tuple[float, ...]  # in the order of Job.prefill
    decode_tps: tuple[float, ...]  # after N_FIRST tokens, then in the order of Job.depths
    verify_ms: tuple[float, ...]  # in the order of Job.verify
    peak_mb: float  # 10^6 bytes resident at most, of the whole process
    info: str


class Peer(Protocol):
    """One engine with one loaded model."""

    info: str

    def prefill(self, ids: Sequence[int], following: int) -> None:
        """From an empty context, evaluate all of `ids`; `following` is the token that comes after them."""
        ...

    def extend(self, ids: Sequence[int], following: int) -> None:
        """The same without emptying the context first: what stands there already of `ids` need not be evaluated again."""
        ...

    def decode(self, n: int) -> list[int]:
        """After a prefill: evaluate its following token, choose greedily, and so on until `n` tokens are chosen."""
        ...

    def verify(self, ids: Sequence[int]) -> None:
        """Evaluate `ids` after what stands there and have the logits of each; then take them back."""
        ...


class Ds4py:
    """Our own engine."""

    @staticmethod
    def prepare() -> None:
        """Import what will be used, outside of what is timed."""
        import ds4py.engine
        import ds4py.gguf  # noqa: F401

    def __init__(self, job: Job) -> None:
        from ds4py.engine import Engine, EngineOptions, SessionOptions
        from ds4py.gguf import open_gguf
        from ds4py.protocols import SamplingParams

        engine = Engine.open(open_gguf(job.model), EngineOptions(n_ctx=job.n_ctx, threads=job.threads, kernels=job.backend))
        self._session = engine.session(SessionOptions(params=SamplingParams(temperature=0.0), stop_ids=frozenset()))
        self.info = f"kernels {engine.kernels.name}"

    def prefill(self, ids: Sequence[int], following: int) -> None:
        self._session.rewind(0)
        self.extend(ids, following)

    def extend(self, ids: Sequence[int], following: int) -> None:
        self._session.sync([*ids, following])  # a session evaluates all but its last token

    def decode(self, n: int) -> list[int]:
        return [token for step in self._session.generate(n) for token in step.tokens]

    def verify(self, ids: Sequence[int]) -> None:
        from ds4py.protocols import Span

        state = self._session.state
        pos = state.pos
        self._session.model.forward([Span(state, ids, n_logits=len(ids))])
        state.truncate(pos)


class LlamaCpp:
    """llama.cpp of the installed llama-cpp-python, through its C functions."""

    @staticmethod
    def prepare() -> None:
        """Import what will be used, outside of what is timed."""
        import llama_cpp  # noqa: F401
        import numpy  # noqa: F401

    def __init__(self, job: Job) -> None:
        import llama_cpp
        import numpy as np

        self._c, self._np = llama_cpp, np
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        options.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(job.model.encode(), options)
        if not self._model:
            raise RuntimeError("llama.cpp could not load the model")
        context = llama_cpp.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch = job.n_ctx, job.n_ctx, 512
        context.n_threads = context.n_threads_batch = job.threads
        self._context = llama_cpp.llama_init_from_model(self._model, context)
        if not self._context:
            raise RuntimeError("llama.cpp could not make a context")
        self._batch = llama_cpp.llama_batch_init(job.n_ctx, 0, 1)
        self._n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._ids: list[int] = []  # that stand in the context
        self._last = 0
        self.info = f"llama-cpp-python {llama_cpp.__version__}: {llama_cpp.llama_print_system_info().decode().strip(' |')}"

    def prefill(self, ids: Sequence[int], following: int) -> None:
        self._c.llama_memory_clear(self._c.llama_get_memory(self._context), True)
        self._ids.clear()
        self.extend(ids, following)

    def extend(self, ids: Sequence[int], following: int) -> None:
        common = next((i for i, (a, b) in enumerate(zip(self._ids, ids, strict=False)) if a != b), min(len(self._ids), len(ids)))
        if not self._take_back(common):
            self.prefill(ids, following)
            return
        if common < len(ids):  # it refuses to evaluate nothing
            self._evaluate(ids[common:], n_logits=0)
        self._c.llama_synchronize(self._context)
        self._last = following

    def decode(self, n: int) -> list[int]:
        chosen: list[int] = []
        for _ in range(n):
            self._evaluate([self._last], n_logits=1)
            row = self._c.llama_get_logits_ith(self._context, -1)
            self._last = int(self._np.ctypeslib.as_array(row, (self._n_vocab,)).argmax())
            chosen.append(self._last)
        return chosen

    def verify(self, ids: Sequence[int]) -> None:
        n = len(self._ids)
        self._evaluate(ids, n_logits=len(ids))
        self._c.llama_get_logits_ith(self._context, -1)  # waits until they are there
        if not self._take_back(n):
            raise RuntimeError("llama.cpp could not take back the rows of a verify")

    def _take_back(self, n: int) -> bool:
        """Whether the context could be cut to its first `n` tokens."""
        if n < len(self._ids) and not self._c.llama_memory_seq_rm(self._c.llama_get_memory(self._context), 0, n, -1):
            return False
        del self._ids[n:]
        return True

    def _evaluate(self, ids: Sequence[int], n_logits: int) -> None:
        batch, pos = self._batch, len(self._ids)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, pos + i, 1, i >= len(ids) - n_logits
            batch.seq_id[i][0] = 0
        status = self._c.llama_decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode gave {status}")
        self._ids += ids


PEERS: dict[str, type[Ds4py] | type[LlamaCpp]] = {"ds4py": Ds4py, "llama.cpp": LlamaCpp}


def measure(kind: type[Ds4py] | type[LlamaCpp], job: Job) -> Figures:
    """Load and time one engine."""
    kind.prepare()
    begun = time.perf_counter()
    peer: Peer = kind(job)
    loaded = time.perf_counter()
    peer.prefill(job.ids[:N_FIRST], job.ids[N_FIRST])
    peer.decode(1)
    first = time.perf_counter() - loaded
    peer.prefill(job.ids[:N_VERIFY], job.ids[N_VERIFY])
    verify = tuple(_verify_ms(peer, job, n) for n in job.verify)
    speeds = tuple(_prefill_tps(peer, job, n) for n in job.prefill)
    peer.prefill(job.ids[:N_FIRST], job.ids[N_FIRST])
    decode = [_decode_tps(peer, job.decode)]
    for depth in job.depths:
        peer.extend(job.ids[:depth], job.ids[depth])
        decode.append(_decode_tps(peer, job.decode))
    return Figures(loaded - begun, 1000 * first, speeds, tuple(decode), verify, peak_mb(), peer.info)


def _prefill_tps(peer: Peer, job: Job, n: int) -> float:
    return n / statistics.median(
        _seconds(lambda: peer.prefill(job.ids[:n], job.ids[n])) for _ in range(REPEATS if n < LONG_PREFILL else 1)
    )


def _decode_tps(peer: Peer, n: int) -> float:
    before = time.perf_counter()
    n_chosen = len(peer.decode(n))
    return n_chosen / (time.perf_counter() - before)


def _verify_ms(peer: Peer, job: Job, n: int) -> float:
    """The first run, which may have to prepare for this number of rows, does not count."""
    rows = job.ids[N_VERIFY : N_VERIFY + n]
    peer.verify(rows)
    return 1000 * statistics.median(_seconds(lambda: peer.verify(rows)) for _ in range(VERIFY_REPEATS))


def _seconds(work: Callable[[], None]) -> float:
    before = time.perf_counter()
    work()
    return time.perf_counter() - before


def peak_mb() -> float:
    """Most memory this process had resident, in 10^6 bytes: VmHWM, which unlike ru_maxrss knows nothing of the parent."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def from_json(kind: type[T], text: str) -> T:
    """A Job or Figures as `json.dumps(asdict(...))` wrote it: lists become tuples again."""
    raw: dict[str, Any] = json.loads(text)
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()})


def main() -> int:
    name, path = sys.argv[1:3]
    figures = measure(PEERS[name], from_json(Job, Path(path).read_text()))
    print(json.dumps(asdict(figures)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
