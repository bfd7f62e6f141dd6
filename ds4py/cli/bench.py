"""`ds4-bench`: prefill and decode speed at context frontiers as CSV, a picture of it, or a comparison with llama.cpp.

The idea: the command line becomes a `Plan` (every number decided, every conflict refused) before any weight is loaded; then one
session walks through it and rows are printed as they come, so that an interrupted run has its rows. The measuring itself is in
`frontier.py`, the comparison in `compare.py`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ds4py.cli.argv import Scan
from ds4py.cli.entry import run_command
from ds4py.cli.parsing import Values, finish
from ds4py.cli.terminal import open_terminal
from ds4py.errors import ContextError, ResourceError, UsageError

if TYPE_CHECKING:
    from ds4py.cli.frontier import Listener, Row
    from ds4py.engine import Session
    from ds4py.gguf import GgufFile
    from ds4py.protocols import F32
    from ds4py.tokenizer import Tokenizer

COMMAND = "ds4-bench"
CTX_START, CTX_MAX, STEP_INCR = 2048, 32768, 2048
WARMUP_PROMPT, WARMUP_GEN = 96, 8


@dataclass(frozen=True)
class Plan:
    """What will be measured."""

    frontiers: tuple[int, ...]
    n_gen: int
    n_ctx: int
    teacher: bool

    @property
    def n_text(self) -> int:
        """Tokens of text the run reads."""
        return self.frontiers[-1] + (self.n_gen if self.teacher else 0)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ds4-bench; returns the exit code."""
    return run_command(COMMAND, argv, _run)


def _run(found: Scan) -> int:
    values = finish(COMMAND, found)
    if values.flag("kernels"):
        from ds4py.cli.kernel_bench import kernel_bench

        return kernel_bench(values)
    from ds4py.cli.opening import open_file

    model = open_file(values, open_terminal(sys.stderr))
    if values.flag("compare_llama_cpp"):
        from ds4py.cli.compare import compare

        return compare(model, values)
    if values.has("spec"):
        from ds4py.cli.opening import open_tokenizer
        from ds4py.cli.spec_bench import spec_bench

        return spec_bench(model, open_tokenizer(model, open_terminal(sys.stderr)), values)
    return sweep(model, make_plan(values, int(model.get("context_length", CTX_MAX, int))), values)


def make_plan(values: Values, trained: int) -> Plan:
    """Numbers for a model trained for `trained` positions. Defaults stay within them; what the user asks for is taken as it is.
    UsageError for frontiers that cannot be."""
    from ds4py.cli.frontier import frontiers

    n_gen = values.integer("gen_tokens")
    last = values.integer("ctx_max") if values.has("ctx_max") else max(1, min(CTX_MAX, trained - n_gen))
    start = values.integer("ctx_start") if values.has("ctx_start") else min(CTX_START, last)
    factor = values.number("step_mul")
    increment = values.integer("step_incr") if values.has("step_incr") else STEP_INCR if factor == 1 else 0
    need = last + n_gen
    n_ctx = values.integer("ctx_alloc") if values.has("ctx_alloc") else need
    if n_ctx < need:
        raise UsageError(f"--ctx-alloc {n_ctx} is too small: --ctx-max {last} and --gen-tokens {n_gen} need {need}")
    return Plan(tuple(frontiers(start, last, factor, increment)), n_gen, n_ctx, values.flag("teacher_forced_decode"))


def sweep(model: GgufFile, plan: Plan, values: Values) -> int:
    """Measure every frontier; rows to standard output or --csv, words to standard error."""
    from ds4py.cli.files import result_file
    from ds4py.cli.opening import open_tokenizer
    from ds4py.cli.plot import draw, require_matplotlib
    from ds4py.cli.streaming import preloaded, streaming_of
    from ds4py.engine import Engine, EngineOptions, SessionOptions
    from ds4py.protocols import SamplingParams

    if values.has("plot"):
        require_matplotlib()
    trained = int(model.get("context_length", plan.n_ctx, int))
    if plan.n_ctx > trained:
        _say(f"note: {plan.n_ctx} positions, and the model was trained for {trained}: the speed is real, the text is not")
    tokenizer = open_tokenizer(model, open_terminal(sys.stderr))
    ids = bench_ids(values, model, tokenizer, plan.n_text)
    rows: list[Row] = []
    with result_file(values.text("csv") if values.has("csv") else "-") as table:
        log = open_terminal(sys.stderr)
        options = EngineOptions(plan.n_ctx, threads(values), kernels(values), streaming=streaming_of(values, model, log))
        engine = Engine.open(model, options)
        for note in engine.notes:
            _say(note)
        preloaded(engine, log)
        # A stop token does not stop: a speed needs a fixed count.
        session = engine.session(SessionOptions(params=SamplingParams(temperature=0.0)))
        for row in _measured(session, ids, plan, values, tokenizer):
            table.write((row.header() + "\n" if not rows else "") + row.csv() + "\n")
            table.flush()
            rows.append(row)
    if values.has("plot"):
        draw(rows, Path(values.text("plot")), title=str(model.kv.get("general.name", model.path.name)))
    return 0


def _measured(session: Session, ids: Sequence[int], plan: Plan, values: Values, tokenizer: Tokenizer) -> Iterator[Row]:
    from ds4py.cli.frontier import measure

    folder = _logits_folder(values)
    if values.flag("warmup"):
        measure(session, ids, min(WARMUP_PROMPT, plan.frontiers[0]), min(WARMUP_GEN, plan.n_gen))
        session.rewind(0)
    for frontier in plan.frontiers:
        listener = _logits_writer(folder / f"frontier_{frontier}.json", frontier) if folder else None
        row, decoded = measure(session, ids, frontier, plan.n_gen, plan.teacher, listener)
        if values.flag("show_output"):
            _say(f"at {frontier}: {tokenizer.decode(decoded)!r}")
        yield row


def bench_ids(values: Values, model: GgufFile, tokenizer: Tokenizer, n_tokens: int) -> list[int]:
    """At least `n_tokens` token ids of the text to read. A plain text is repeated until it is long enough; a chat is what it is:
    ContextError when it is too short."""
    from ds4py.cli.files import read_text

    if values.has("chat_prompt_file"):
        ids = chat_ids(read_text(values.text("chat_prompt_file")), values.text("system"), model, tokenizer)
        if len(ids) < n_tokens:
            raise ContextError(f"--chat-prompt-file has {len(ids)} tokens and this run reads {n_tokens}; lower --ctx-max")
        return ids[:n_tokens]
    text = read_text(values.text("prompt_file")) if values.has("prompt_file") else own_text()
    once = tokenizer.encode(text, add_bos=False)
    if not once:
        raise UsageError("--prompt-file is empty; there is nothing to measure with")
    ids = ([tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []) + once
    if len(ids) < n_tokens and values.has("prompt_file"):
        _say(f"note: {values.text('prompt_file')} has {len(ids)} tokens and is repeated up to {n_tokens}")
    while len(ids) < n_tokens:
        ids += once
    return ids[:n_tokens]


def chat_ids(text: str, system: str, model: GgufFile, tokenizer: Tokenizer) -> list[int]:
    """The prompt of one user turn in the model's chat format."""
    from ds4py.chat import Message, open_format

    turns = ([Message("system", system)] if system else []) + [Message("user", text)]
    return tokenizer.encode_prompt(open_format(model, tokenizer).render(turns))


def own_text() -> str:
    """The text that ships with ds4py."""
    from importlib.resources import files

    return files("ds4py.cli").joinpath("bench_text.txt").read_text(encoding="utf-8")


def threads(values: Values) -> int | None:
    return values.integer("threads") if values.has("threads") else None


def kernels(values: Values) -> str:
    return "cpu" if values.flag("cpu") else values.text("backend")


def _logits_folder(values: Values) -> Path | None:
    if not values.has("dump_frontier_logits_dir"):
        return None
    folder = Path(values.text("dump_frontier_logits_dir"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"cannot make the folder {folder}: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise ResourceError(f"cannot write in the folder {folder}")
    return folder


def _logits_writer(path: Path, frontier: int) -> Listener:
    def write(logits: F32) -> None:
        from ds4py.cli.files import result_file

        values = [float(f"{value:.9g}") if abs(value) < float("inf") else None for value in logits.tolist()]
        content = {"source": "ds4", "ctx_tokens": frontier, "argmax_token": int(logits.argmax()), "logits": values}
        with result_file(str(path)) as out:
            json.dump(content, out)

    return write


def _say(sentence: str) -> None:
    print(f"{COMMAND}: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
