"""What drafts are trained on: texts of the target's own, with its residuals at every position.

A draft has to guess what the target says, not what is true or well put; so the target writes the texts itself, many side by side
in one forward call, at several temperatures. Residuals are kept as float16, which is finer than the noise of a quantised target.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ds4py.chat import Message, open_format
from ds4py.engine import Engine
from ds4py.engine.noise import Noise
from ds4py.engine.sampling import draw
from ds4py.gguf import GgufFile
from ds4py.protocols import SamplingParams, Span, StateView
from ds4py.quants import decode
from ds4py.tokenizer import load_tokenizer

TOPICS = (
    "the moon", "bread", "sorting algorithms", "the French Revolution", "volcanoes", "chess", "honey bees", "databases",
    "the violin", "photosynthesis", "running a marathon", "recursion", "the Roman empire", "coffee", "electric cars", "dreams",
    "the Pacific ocean", "HTML forms", "gardening", "vaccines", "the stock market", "origami", "penguins", "linear regression",
    "a rainy day", "job interviews", "steam engines", "the human heart", "Japanese cuisine", "regular expressions", "glaciers",
    "friendship", "the printing press", "black holes", "yoga", "a lost dog", "prime numbers", "bridges", "saving money", "jazz",
    "unit tests", "whales", "the desert", "learning a language", "binary search trees", "castles",
)  # fmt: skip
FORMS = (
    "Tell me about {}.", "Explain {} to a child.", "Write a short story about {}.", "What should everyone know about {}?",
    "Give me five facts about {}.", "Write a Python example that has to do with {}.", "Summarise the history of {}.",
    "Write a letter to a friend about {}.", "Why is {} important?", "Describe the steps to get started with {}.",
)  # fmt: skip
TEMPERATURES = (0.0, 0.7, 1.0)
AT_ONCE = 32  # texts made side by side


@dataclass(frozen=True)
class Text:
    """Token ids and the residuals after some of the target's layers: taps float16 [n_taps, len(ids), D]. Positions from `n_asked`
    on are the target's own words."""

    ids: Sequence[int]
    taps: np.ndarray
    n_asked: int = 0
    temperature: float = 0.0


def prompts(n: int) -> list[str]:
    """`n` prompts, every topic before any topic again."""
    return [FORMS[(i + i // len(TOPICS)) % len(FORMS)].format(TOPICS[i % len(TOPICS)]) for i in range(n)]


def answers(engine: Engine, g: GgufFile, taps: Sequence[int], n: int, n_tokens: int) -> Iterator[Text]:
    """What the target says to `n` chat prompts, `n_tokens` of each at most."""
    tokenizer = load_tokenizer(g)
    chat = open_format(g, tokenizer)
    asked = [tokenizer.encode_prompt(chat.render([Message("user", text)])) for text in prompts(n)]
    yield from continued(engine, asked, taps, n_tokens, tokenizer.stop_ids)


def continued(
    engine: Engine, asked: Sequence[Sequence[int]], taps: Sequence[int], n_tokens: int, stops: frozenset[int] = frozenset()
) -> Iterator[Text]:
    """The texts `asked`, each written on by the target for `n_tokens` or up to a stop id. Text i has temperature i modulo
    three."""
    at_once = min(AT_ONCE, engine.kernels.max_rows)
    for first in range(0, len(asked), at_once):
        yield from _side_by_side(engine, asked[first : first + at_once], taps, n_tokens, first, stops)
        print(f"\r{min(len(asked), first + at_once)} of {len(asked)} texts", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def _side_by_side(
    engine: Engine, asked: Sequence[Sequence[int]], taps: Sequence[int], n_tokens: int, first: int, stops: frozenset[int]
) -> list[Text]:
    states = [engine.model.new_state(len(ids) + n_tokens + 1, slack=0) for ids in asked]
    warmth = [TEMPERATURES[(first + i) % len(TEMPERATURES)] for i in range(len(asked))]
    texts: list[list[int]] = [list(ids) for ids in asked]
    kept: list[list[np.ndarray]] = []  # [n_taps, n, D] for every call
    rows: list[np.ndarray] = []
    for ids, state in zip(asked, states, strict=True):
        parts, row = _read(engine, state, ids, taps)
        kept.append(parts)
        rows.append(row)
    going = list(range(len(asked)))
    while going:
        for i, row in zip(going, rows, strict=True):
            texts[i].append(draw(row, SamplingParams(warmth[i]), Noise(first + i), len(texts[i])))
        going = [i for i in going if texts[i][-1] not in stops and len(texts[i]) < len(asked[i]) + n_tokens]
        if going:
            out = engine.model.forward([Span(states[i], texts[i][-1:], n_logits=1) for i in going], taps=taps)
            stacked = np.stack([out.taps[layer] for layer in taps]).astype(np.float16)
            rows = [out.of(j)[0].copy() for j in range(len(going))]
            for j, i in enumerate(going):
                kept[i].append(stacked[:, j : j + 1])
    done = [np.concatenate(parts, axis=1) for parts in kept]
    return [
        Text(ids[: both.shape[1]], both, len(start), t) for ids, both, start, t in zip(texts, done, asked, warmth, strict=True)
    ]


def _read(engine: Engine, state: StateView, ids: Sequence[int], taps: Sequence[int]) -> tuple[list[np.ndarray], np.ndarray]:
    """Evaluate a prompt: its residuals, call by call, and the logits of its last token."""
    kept = []
    for at in range(0, len(ids), engine.kernels.max_rows):
        out = engine.model.forward([Span(state, ids[at : at + engine.kernels.max_rows], n_logits=1)], taps=taps)
        kept.append(np.stack([out.taps[layer] for layer in taps]).astype(np.float16))
    return kept, out.logits[-1].copy()


def values(g: GgufFile, name: str) -> np.ndarray:
    """A tensor of the file as float32, rows first."""
    tensor = g.tensors[name]
    return decode(tensor.type, tensor.data, math.prod(tensor.shape)).reshape(tensor.shape[::-1])


def padded(texts: Sequence[Text]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A batch: ids [B, T], residuals float32 [n_taps, B, T, D], lengths [B]. Beyond its length a text is zeros."""
    lengths = torch.tensor([len(text.ids) for text in texts])
    n = int(lengths.max())
    ids = torch.zeros(len(texts), n, dtype=torch.long)
    n_taps, _, width = texts[0].taps.shape
    taps = torch.zeros(n_taps, len(texts), n, width)
    for i, text in enumerate(texts):
        ids[i, : len(text.ids)] = torch.tensor(list(text.ids))
        taps[:, i, : len(text.ids)] = torch.from_numpy(text.taps)
    return ids, taps, lengths
