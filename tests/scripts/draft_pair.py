"""How good is a draft model for a target? Acceptance at temperature 0 and 1, and what a draft token costs in target tokens.

    python tests/scripts/draft_pair.py TARGET DRAFT [DRAFT ...] [--tokens 64] [--time]

The target answers eight prompts, at temperature 0 and at temperature 1. Each answer is then given to both models, and at every
position of it the two draw the next token with the same noise, as a drafter does: what is printed is how often they draw the same
one. That is the acceptance of a drafted token whose predecessors were accepted. gguf-tools/distil_draft.py trains on other
prompts.

--time decodes token by token with both, in turns, and prints the median ratio; run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ds4py.chat import Message, open_format
from ds4py.engine import Engine, EngineOptions, SessionOptions
from ds4py.engine.noise import Noise
from ds4py.engine.sampling import draw
from ds4py.gguf import open_gguf
from ds4py.protocols import SamplingParams, Span
from ds4py.tokenizer import load_tokenizer

PROMPTS = (
    "Why is the sky blue?",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "Explain in three sentences how a bicycle stays upright.",
    "Give me a recipe for a simple tomato soup.",
    "Write a short story about a lighthouse keeper and a storm.",
    "What are the differences between TCP and UDP?",
    "Summarise the plot of Romeo and Juliet.",
    "List ten tips for sleeping better.",
)
SEED = 11


def logits_along(engine: Engine, ids: Sequence[int], first: int) -> npt.NDArray[np.float32]:
    """Logits after ids[i] for i >= first: [len(ids) - first, V]."""
    state = engine.model.new_state(len(ids), slack=0)
    rows = []
    for at in range(0, len(ids), engine.kernels.max_rows):
        part = ids[at : at + engine.kernels.max_rows]
        n = max(0, min(len(part), at + len(part) - first))
        out = engine.model.forward([Span(state, part, n_logits=n)])
        rows.append(out.logits.copy())
    return np.concatenate(rows)


def answer(engine: Engine, prompt: Sequence[int], temperature: float, n: int, stop: frozenset[int]) -> list[int]:
    session = engine.session(SessionOptions(params=SamplingParams(temperature=temperature), seed=SEED, stop_ids=stop))
    session.sync(list(prompt))
    for _ in session.generate(n):
        pass
    return list(session.tokens)


def acceptance(target: Engine, draft: Engine, texts: Sequence[tuple[Sequence[int], int]], temperature: float) -> list[bool]:
    """At every position of the answers: do both draw the same token with the same noise?"""
    params, noise = SamplingParams(temperature=temperature), Noise(SEED)
    same = []
    for ids, n_prompt in texts:
        ours, theirs = (logits_along(engine, ids[:-1], n_prompt - 1) for engine in (target, draft))
        for i in range(len(ours)):
            pos = n_prompt + i
            same.append(draw(ours[i], params, noise, pos) == draw(theirs[i], params, noise, pos))
    return same


def seconds_per_token(engine: Engine, ids: Sequence[int], n: int) -> float:
    state = engine.model.new_state(len(ids) + n + 1, slack=0)
    engine.model.forward([Span(state, ids[: engine.kernels.max_rows])])
    engine.model.forward([Span(state, ids[:1], n_logits=1)])
    began = time.perf_counter()
    for i in range(n):
        engine.model.forward([Span(state, [ids[i % len(ids)]], n_logits=1)])
    return (time.perf_counter() - began) / n


def cost(target: Engine, draft: Engine, ids: Sequence[int], rounds: int = 7, n: int = 24) -> float:
    """Time of a draft token over time of a target token, the median of rounds in which both run."""
    pairs = [(seconds_per_token(draft, ids, n), seconds_per_token(target, ids, n)) for _ in range(rounds)]
    return statistics.median(theirs / ours for theirs, ours in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--time", action="store_true", help="also measure the cost of a draft token")
    args = parser.parse_args()
    g = open_gguf(args.target)
    tokenizer = load_tokenizer(g)
    chat = open_format(g, tokenizer)
    prompts = [tokenizer.encode_prompt(chat.render([Message("user", text)])) for text in PROMPTS]
    target = Engine.open(g, EngineOptions(n_ctx=1024))
    stops = tokenizer.stop_ids
    texts = {t: [(answer(target, p, t, args.tokens, stops), len(p)) for p in prompts] for t in (0.0, 1.0)}
    print("draft | MB | layers | accepted at temperature 0 | at 1 | positions | cost in target tokens")
    for path in args.draft:
        draft = Engine.open(open_gguf(path), EngineOptions(n_ctx=1024))
        same = {t: acceptance(target, draft, texts[t], t) for t in texts}
        ratio = f"{cost(target, draft, texts[0.0][0][0]):.2f}" if args.time else "-"
        size = path.stat().st_size / 1e6
        rates = " | ".join(f"{np.mean(same[t]):.3f}" for t in texts)
        count = f"{len(same[0.0])} + {len(same[1.0])}"
        print(f"{path.name} | {size:.1f} | {draft.model.n_layers} | {rates} | {count} | {ratio}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
