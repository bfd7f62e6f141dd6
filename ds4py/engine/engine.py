"""An opened model on a backend, ready to make sessions.

Immutable after `open`: weights, kernels and limits. All that changes while tokens are made lies in sessions, so any number of
them share one engine, and a forward call may serve several at once (generate.step). Rejected: an engine that owns a current
session, which makes every second user a special case.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np

from ds4py.engine import savefile
from ds4py.engine.session import Limits, Progress, Session, SessionOptions
from ds4py.engine.snapshots import CHECKPOINT_STEP
from ds4py.errors import ResourceError, UsageError
from ds4py.gguf import GgufFile, NumberArray
from ds4py.gguf.identity import identity
from ds4py.kernels.streaming import ExpertCounts, Streaming, Streams
from ds4py.protocols import Draws, Kernels, Model

DEFAULT_CTX = 32768
UNUSED = 5  # a token type of the format


@dataclass(frozen=True)
class EngineOptions:
    """None: the default context or what the model was trained for, whichever is less; as many threads as the backend likes."""

    n_ctx: int | None = None
    threads: int | None = None
    kernels: str = "auto"
    max_rows: int = 64  # most rows of one forward call
    checkpoint_step: int = CHECKPOINT_STEP  # positions between checkpoints, from which a session goes back further than a window
    streaming: Streaming | None = None  # bounds the experts that are held


@dataclass(frozen=True)
class EngineInfo:
    """For the lines that tell the user what was opened."""

    kernels: str
    n_threads: int
    n_ctx: int
    n_ctx_train: int
    n_layers: int
    vocab_size: int
    kv_bytes: int  # of one session with a full context
    pooled_bytes: int  # the part of them that pools of compressed entries take
    pooled_rows: int  # entries of the largest pool
    max_rows: int
    prefill_tile: int


@dataclass(frozen=True)
class Engine:
    """A model, the kernels that hold its weights, and what a session may use of them."""

    model: Model
    kernels: Kernels
    n_ctx: int
    gguf: GgufFile | None = None  # what it was opened from; saved sessions belong to it
    n_tokens: int | None = None  # ids that may be drawn; the rest pads the vocabulary
    checkpoint_step: int = CHECKPOINT_STEP

    @classmethod
    def open(cls, gguf_file: GgufFile, options: EngineOptions | None = None, progress: Progress | None = None) -> Engine:
        """Load the model in `gguf_file`; progress(done, total) reports kernels that a first start has to compile,
        (0, 0) that it checks the processor's path.

        Raises UsageError for options out of range, and what loader and backend raise."""
        from ds4py.kernels import open_kernels
        from ds4py.models import load_model

        options = options or EngineOptions()
        counts = {
            "context": options.n_ctx,
            "number of threads": options.threads,
            "rows of a forward": options.max_rows,
            "checkpoint step": options.checkpoint_step,
        }
        for name, value in counts.items():
            if value is not None and value < 1:
                raise UsageError(f"the {name} must be at least 1, not {value}")
        kernels = open_kernels(options.kernels, options.threads, options.max_rows, progress, options.streaming)
        model = load_model(gguf_file, kernels)
        n_ctx = options.n_ctx or min(DEFAULT_CTX, model.n_ctx_train)
        return cls(model, kernels, n_ctx, gguf_file, drawable(gguf_file), options.checkpoint_step)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user about the kernels: a path of the processor that had to be left out."""
        return tuple(getattr(self.kernels, "notes", ()))

    @property
    def limits(self) -> Limits:
        compiled = self.kernels if isinstance(self.kernels, Draws) else None
        return Limits(self.n_ctx, self.kernels.max_rows, self.kernels.prefill_tile, self.n_tokens, compiled, self.checkpoint_step)

    def session(self, options: SessionOptions | None = None) -> Session:
        """An empty session. Raises UsageError for settings that can never be obeyed, ResourceError if memory is short."""
        try:
            return Session(self.model, self.limits, options or SessionOptions())
        except (MemoryError, OSError) as error:
            raise ResourceError(f"not enough memory for a context of {self.n_ctx} tokens: lower --ctx") from error

    def save_session(self, session: Session, path: str | os.PathLike[str]) -> None:
        """Write a session of this engine to a file. Raises ResourceError, and leaves an old file, if that fails."""
        savefile.write(path, session, self._identity, self.kernels.name)

    def load_session(
        self, path: str | os.PathLike[str], options: SessionOptions | None = None, read_again: bool = False
    ) -> Session:
        """The session that was saved, to go on with `options`; seed, choice and epoch are those of the file. `read_again`: if it
        was saved on other kernels, evaluate its tokens on these instead of refusing it.

        Raises FormatError for a file that is damaged, cut short, or of another model, kernels or a larger context."""
        saved = savefile.read(path)
        numbers = {name: saved.header[name] for name in ("seed", "choice", "epoch")}
        session = self.session(replace(options or SessionOptions(), **numbers))
        savefile.restore(saved, session, self._identity, self.kernels.name, read_again)
        return session

    def preload(self) -> ExpertCounts | None:
        """Read experts ahead of the first token, if that was asked; drafters are open. None if experts are not bounded."""
        if isinstance(self.kernels, Streams):
            self.kernels.preload()
        return self.expert_counts()

    def expert_counts(self) -> ExpertCounts | None:
        """What the cache of experts did; None if experts are not bounded."""
        return self.kernels.expert_counts() if isinstance(self.kernels, Streams) else None

    @property
    def _identity(self) -> str:
        return identity(self.gguf) if self.gguf is not None else ""

    def info(self) -> EngineInfo:
        """What the memory and detail lines show. Costs address space for a moment, no memory."""
        state = self.model.new_state(self.n_ctx, slack=self.kernels.max_rows)
        pooled_bytes, pooled_rows = state.pooled
        return EngineInfo(
            kernels=self.kernels.name,
            n_threads=self.kernels.n_threads,
            n_ctx=self.n_ctx,
            n_ctx_train=self.model.n_ctx_train,
            n_layers=self.model.n_layers,
            vocab_size=self.model.vocab_size,
            kv_bytes=state.n_bytes,
            pooled_bytes=pooled_bytes,
            pooled_rows=pooled_rows,
            max_rows=self.kernels.max_rows,
            prefill_tile=self.kernels.prefill_tile,
        )


def drawable(g: GgufFile) -> int | None:
    """How many of the first ids a sampler may draw: those up to the last token that is not typed unused. The rows of a head that
    lie beyond only fill it up to a round number. None where the file does not say."""
    n_tokens = len(g.kv.get("tokenizer.ggml.tokens", ()))
    types = g.kv.get("tokenizer.ggml.token_type")
    if isinstance(types, NumberArray):
        used = np.flatnonzero(types.numpy()[:n_tokens] != UNUSED)
        n_tokens = int(used[-1]) + 1 if len(used) else 0
    return n_tokens or None
