"""What drafting costs in units of one token of the target, and how often it must be right to pay. Run it on a quiet machine.

    python tests/scripts/draft_cost.py                targets shaped like SmolLM2-135M and Qwen2.5-0.5B, random weights
    python tests/scripts/draft_cost.py --target MODEL.gguf [--draft DRAFT.gguf ...] [--depths 1,2,3,5,7] [--candidates 64]

Times depend on shapes and not on values, so random weights do: Q4_0 for the target, Q8_0 for drafts, which have a seventh of
its layers as published ones do (EAGLE-3 has one, and 32,000 tokens). Sessions run the real loop with made-up acceptance (0.7 a
token), depths in turn, so that proposals find the rows of a pass to take in. Medians over passes; the first ones of each depth
are left out. `pays at` is the chance with which each guess must be right, if those before it are, for drafts to equal plain
decoding, and `1.5 x at` for half as many tokens per second more; never: not even if all were right.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from tiny_drafts import KINDS, tiny_dflash, tiny_eagle3

from ds4py.drafters import SpecConfig, open_drafters
from ds4py.engine import Engine, EngineOptions, FixedDepth, SessionOptions
from ds4py.engine.accept import Synthetic
from ds4py.engine.speculation import target_of
from ds4py.gguf import GgmlType, GgufFile, NewTensor, open_gguf, write_gguf
from ds4py.protocols import Pass, SamplingParams

ACCEPTED = 0.7
WARM_UP = 4  # passes of a depth that are left out


@dataclass(frozen=True)
class Shape:
    n_embd: int
    n_layers: int
    n_head: int
    n_head_kv: int
    n_ff: int
    vocab_size: int


SHAPES = {
    "smollm2": Shape(576, 30, 9, 3, 1536, 49152),
    "qwen": Shape(896, 24, 14, 2, 4864, 151936),
}


def random_target(path: Path, s: Shape) -> Path:
    """A llama of this shape, matrices in Q4_0 of random bits."""
    rng = np.random.default_rng(0)
    head_len = s.n_embd // s.n_head
    kv_len = s.n_head_kv * head_len
    tensors = [NewTensor.of("output_norm.weight", np.ones(s.n_embd, np.float32))]

    def matrix(name: str, n_out: int, n_in: int) -> None:
        blocks = np.zeros(n_out * n_in // 32, np.dtype([("d", "<f2"), ("qs", "u1", 16)]))
        blocks["d"] = 0.2 / n_in**0.5
        blocks["qs"] = rng.integers(0, 256, (len(blocks), 16), np.uint8)
        tensors.append(NewTensor(name, (n_in, n_out), GgmlType.Q4_0, blocks.view(np.uint8)))

    matrix("token_embd.weight", s.vocab_size, s.n_embd)
    for i in range(s.n_layers):
        for norm in ("attn_norm", "ffn_norm"):
            tensors.append(NewTensor.of(f"blk.{i}.{norm}.weight", np.ones(s.n_embd, np.float32)))
        for name, n_out, n_in in (
            ("attn_q", s.n_embd, s.n_embd),
            ("attn_k", kv_len, s.n_embd),
            ("attn_v", kv_len, s.n_embd),
            ("attn_output", s.n_embd, s.n_embd),
            ("ffn_gate", s.n_ff, s.n_embd),
            ("ffn_up", s.n_ff, s.n_embd),
            ("ffn_down", s.n_embd, s.n_ff),
        ):
            matrix(f"blk.{i}.{name}.weight", n_out, n_in)
    own = {
        "block_count": s.n_layers,
        "context_length": 4096,
        "embedding_length": s.n_embd,
        "feed_forward_length": s.n_ff,
        "attention.head_count": s.n_head,
        "attention.head_count_kv": s.n_head_kv,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    write_gguf(path, {"general.architecture": "llama", **{f"llama.{key}": value for key, value in own.items()}}, tensors)
    return path


def random_drafts(g: GgufFile, folder: Path) -> Iterator[Path]:
    """A draft of each kind in the proportions of published ones."""
    heads = g.require("attention.head_count")
    n_embd, n_layers = g.require("embedding_length"), g.require("block_count")
    shape: dict[str, Any] = {
        "n_embd": n_embd,
        "target_embd": n_embd,
        "n_ff": g.require("feed_forward_length"),
        "n_head": heads,
        "n_head_kv": g.get("attention.head_count_kv", heads),
        "head_len": g.get("attention.key_length", n_embd // heads),
        "vocab_size": g.tensors["token_embd.weight"].n_rows,
        "mask_token": 3,
    }
    few = max(1, round(n_layers / 7))
    taps = tuple(int(i) for i in np.linspace(2, n_layers - 2, 5))
    for kind in KINDS:
        path = folder / f"{g.path.stem}-{kind}.gguf"
        if kind == "draft-eagle3":
            layers, some = (2, n_layers // 2, n_layers - 3), min(32000, shape["vocab_size"])
            yield tiny_eagle3(path, None, GgmlType.Q8_0, **shape, layers=layers, draft_vocab=some).path
        elif kind == "draft-dflash":
            yield tiny_dflash(path, None, GgmlType.Q8_0, **shape, layers=taps, n_layers=few, block_size=16).path
        else:
            spark = {"markov_rank": 256, "confidence": True, "block_size": 7}
            yield tiny_dflash(path, None, GgmlType.Q8_0, **shape, layers=taps, n_layers=few, **spark).path


def measure(engine: Engine, g: GgufFile, config: SpecConfig | None, depths: Sequence[int], passes: int) -> dict[int, list[Pass]]:
    """Passes by depth, in turns of a few."""
    found: dict[int, list[Pass]] = {depth: [] for depth in depths}
    drafters = open_drafters(config, target_of(engine, g)) if config else None
    rule = Synthetic([ACCEPTED**i for i in range(1, max(depths) + 2)], seed=1)
    session = engine.session(SessionOptions(SamplingParams(0), drafter=drafters.new(False) if drafters else None, rule=rule))
    session.sync(np.random.default_rng(1).integers(0, engine.model.vocab_size, 256).tolist())
    while min(map(len, found.values())) < passes + WARM_UP:
        for depth in depths:
            session.depth, session.trace = FixedDepth(depth), found[depth].append
            for _ in session.generate(4 * (depth + 1)):
                pass
    return {depth: done[WARM_UP:] for depth, done in found.items()}


def needed(tokens: float, k: int) -> str:
    """The chance p at which drafts of k tokens commit `tokens` a pass: 1 + p + ... + p^k."""
    if tokens > k + 1:
        return "never"
    low, high = 0.0, 1.0
    for _ in range(40):
        p = (low + high) / 2
        low, high = (p, high) if sum(p**i for i in range(k + 1)) < tokens else (low, p)
    return f"{high:.2f}"


def report(path: Path, drafts: Sequence[Path], args: argparse.Namespace, folder: Path) -> None:
    g = open_gguf(path)
    engine = Engine.open(g, EngineOptions(n_ctx=4096, threads=args.threads))
    depths = [int(depth) for depth in args.depths.split(",")]
    plain = measure(engine, g, None, [0], 2 * args.passes)[0]
    unit = median(done.verify_seconds for done in plain)
    print(f"\n{path.name}: a token takes {unit * 1e3:.2f} ms on {engine.kernels.n_threads} threads, after 256 of prompt")
    print("| drafter | ahead | draft, tokens | verify, tokens | pays at | 1.5 x at |\n|---|---|---|---|---|---|")
    for draft in drafts or random_drafts(g, folder):
        config = SpecConfig(draft_model=draft, n_max=max(depths), accept="exact", candidates=args.candidates)
        longest = open_drafters(config, target_of(engine, g)).n_max
        found = measure(engine, g, config, [depth for depth in depths if depth <= longest], args.passes)
        for depth, done in found.items():
            whole = [one for one in done if one.drafted == depth]
            drafting = median(one.draft_seconds for one in whole) / unit
            verify = median(one.verify_seconds for one in whole) / unit
            cost = drafting + verify
            figures = f"{drafting:.2f} | {verify:.2f} | {needed(cost, depth)} | {needed(1.5 * cost, depth)}"
            print(f"| {whole[0].draft.source} | {depth} | {figures} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path)
    parser.add_argument("--draft", type=Path, action="append", default=[])
    parser.add_argument("--shape", choices=(*SHAPES, "all"), default="all")
    parser.add_argument("--depths", default="1,2,3,5,7")
    parser.add_argument("--passes", type=int, default=40)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--candidates", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.target:
            report(args.target, args.draft, args, folder)
            return 0
        for shape in SHAPES if args.shape == "all" else (args.shape,):
            report(random_target(folder / f"{shape}-shaped.gguf", SHAPES[shape]), [], args, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
