"""From the command line to an opened model: which file, how large a context, and the lines that say so on standard error.

The steps are apart because modes need different depths: `--inspect` an open file, `--dump-tokens` a tokenizer, an answer
everything. Nothing is loaded for a mode that does not need it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from ds4py.cli.draftable import named, support_kind
from ds4py.cli.parsing import Values
from ds4py.cli.placing import spreading
from ds4py.cli.speculating import Speculation
from ds4py.cli.streaming import expert_bytes, streaming_of
from ds4py.cli.terminal import Terminal
from ds4py.engine import Engine, EngineOptions, Session, SessionOptions
from ds4py.errors import ResourceError, UnsupportedError, UsageError
from ds4py.gguf import GgufFile, open_gguf
from ds4py.tokenizer import Tokenizer, load_tokenizer

_GIB = 1 << 30


@dataclass(frozen=True)
class Opened:
    """A model ready to make sessions, with the tokenizer of its file and what drafts for it."""

    g: GgufFile
    tokenizer: Tokenizer
    engine: Engine
    speculation: Speculation | None = None

    def session(self, options: SessionOptions) -> Session:
        """A session of its own with `options`, which drafts if something was opened that does."""
        return self.engine.session(options if self.speculation is None else self.speculation.options(options))

    def close(self) -> None:
        """End what was opened beside the model."""
        if self.speculation is not None:
            self.speculation.close()


def open_file(values: Values, log: Terminal) -> GgufFile:
    """The file of -m, or ds4flash.gguf here. ResourceError with advice when there is no model at all."""
    if values.has("hf_file") and not values.has("hf_repo"):
        raise UsageError("--hf-file needs -hf REPO: a file alone names no repository")
    path = Path(values.text("model")) if not values.has("hf_repo") else _from_hub(values, log)
    if not values.has("hf_repo") and not values.was_given("--model") and not path.exists():
        from ds4py.cli.advice import no_model

        raise ResourceError(no_model())
    g = open_gguf(path)
    for note in g.notes:
        log.say(f"ds4: {note}")
    return g


def _from_hub(values: Values, log: Terminal) -> Path:
    from ds4py.cli.obtaining import obtain
    from ds4py.hub.choosing import reference

    return obtain(values, reference(values.text("hf_repo"), values.text("hf_file") if values.has("hf_file") else None), log)


def open_tokenizer(g: GgufFile, log: Terminal) -> Tokenizer:
    """The file's tokenizer. UnsupportedError for a file that only drafts for another model, which would answer nothing, and for a
    network that only shares the name of one."""
    from ds4py.models.registry import refuse_other_network

    kind = support_kind(g)
    if kind is not None:
        raise UnsupportedError(f"{g.path} is {kind}, not a model: give the model it drafts for with -m")
    refuse_other_network(g)
    tokenizer = load_tokenizer(g)
    for note in tokenizer.notes:
        log.say(f"ds4: {note}")
    return tokenizer


def context_len(values: Values, g: GgufFile, log: Terminal) -> int:
    """Positions to allocate: what is asked, capped to what the model was trained for, with a note."""
    asked = values.integer("ctx")
    trained = g.get("context_length")
    if isinstance(trained, int) and 0 < trained < asked:
        log.say(f"ds4: context {asked} is more than the {trained} positions this model was trained for; using {trained}")
        return trained
    return asked


def open_engine(values: Values, g: GgufFile, n_ctx: int, log: Terminal, n_rows: int = 0, draft: GgufFile | None = None) -> Engine:
    """Load the weights, with the load, memory and detail lines. n_rows: what the longest draft takes; draft: the file that
    drafts, if it is another."""
    threads = values.integer("threads") if values.has("threads") else None
    max_rows = values.integer("prefill_chunk") if values.has("prefill_chunk") else max(EngineOptions().max_rows, n_rows)
    kernels = "cpu" if values.flag("cpu") else values.text("backend")
    options = EngineOptions(n_ctx, threads, kernels, max_rows, streaming=streaming_of(values, g, log))

    def compiling(done: int, total: int) -> None:
        # which kernels a model needs shows as it is loaded: the total is not known
        what = f"compiling kernels for this processor, once: {done}" if total else "checking this processor's sums, once"
        log.rewrite(f"ds4: {what}")

    log.rewrite(f"ds4: loading {g.path}")
    begun = time.monotonic()
    if values.has("checkpoint_min_step"):
        options = replace(options, checkpoint_step=values.integer("checkpoint_min_step"))
    with spreading(values):
        engine = Engine.open(g, options, compiling)
    log.rewrite("")
    for note in engine.notes:
        log.say(f"ds4: {note}")
    info = engine.info()
    log.say(f"ds4: {g.path.name}: {named(g)}, {info.n_layers} layers, loaded in {time.monotonic() - begun:.2f} s")
    held = engine.expert_counts()
    resident = g.nbytes if held is None else expert_bytes(g)[1] + held.seat_bytes
    guessing = 0 if draft is None else draft.nbytes if held is None else expert_bytes(draft)[1]  # its experts share the seats
    weights, pooled, raw = resident / _GIB, info.pooled_bytes / _GIB, (info.kv_bytes - info.pooled_bytes) / _GIB
    kv = f"KV {raw:.2f} GiB raw + {pooled:.2f} GiB compressed"
    drafting, total = f", draft {guessing / _GIB:.2f} GiB" if draft else "", raw + pooled + weights + guessing / _GIB
    log.say(f"ds4: memory: {kv}, weights {weights:.2f} GiB{drafting}, total {total:.2f} GiB")
    log.say(
        f"ds4: ctx={info.n_ctx} prefill_cap={info.max_rows} raw_kv_rows={info.n_ctx} "
        f"compressed_kv_rows={info.pooled_rows} backend={info.kernels} threads={info.n_threads}"
    )
    return engine
