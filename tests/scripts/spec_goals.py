"""Three figures about speculation, each beside its goal. Run it on a quiet machine.

    python tests/scripts/spec_goals.py wrong MODEL.gguf [--pairs 30]       always-wrong drafts: at most 3 % slower than plain
    python tests/scripts/spec_goals.py edit MODEL.gguf [--rounds 3]        a code edit: 1.3 x plain, 2.5 x llama.cpp with lookup
    python tests/scripts/spec_goals.py pair MODEL.gguf --draft DRAFT.gguf  exact at T 1 commits 85 % of greedy's tokens per pass

Everything in one run is interleaved; ratios are formed inside a pair or round. `wrong` also prints a bound that no clock decides:
extra rows x the cost of a row + the drafter's time, as a share of the time of plain decoding.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from draft_pair import logits_along

from ds4py.cli.bench import own_text
from ds4py.cli.spec_bench import TEXTS
from ds4py.drafters import Drafters, ModSizes, NgramSizes, SpecConfig, open_drafters
from ds4py.engine import Engine, EngineOptions, FixedDepth, Session, SessionOptions
from ds4py.engine.cost import CostAware
from ds4py.engine.speculation import speculating, target_of
from ds4py.engine.statistics import tokens_per_pass
from ds4py.gguf import open_gguf
from ds4py.protocols import F32, Draft, Needs, Pass, SamplerView, SamplingParams
from ds4py.tokenizer import Tokenizer, load_tokenizer

GREEDY = SamplingParams(0)


class AlwaysWrong:
    """Proposes another token than the one that will be drawn, as long as anybody asks.

    Not one that is banned: the loop takes what cannot be drawn out of a draft, and would verify nothing."""

    def __init__(self, right: Sequence[int], vocab_size: int) -> None:
        """`right`: all tokens of the plain run, prompt included."""
        self.needs = Needs()
        self._wrong = [(token + 1) % vocab_size for token in right]
        self._pos = 0

    @property
    def pos(self) -> int:
        return self._pos

    @property
    def floor(self) -> int:
        return 0

    def truncate(self, pos: int) -> None:
        self._pos = pos

    def observe(self, tokens: Sequence[int], taps: Mapping[int, F32]) -> None:
        self._pos += len(tokens)

    def propose(self, k: int, last: int, view: SamplerView) -> Draft:
        return Draft(self._wrong[view.pos : view.pos + k], source="always-wrong")


def timed(session: Session, n: int) -> tuple[list[int], float]:
    begun = time.perf_counter()
    tokens = [token for step in session.generate(n) for token in step.tokens]
    return tokens, time.perf_counter() - begun


def read(engine: Engine, ids: Sequence[int]) -> Session:
    session = engine.session()
    session.sync(ids)
    return session


def wrong(engine: Engine, tokenizer: Tokenizer, args: argparse.Namespace) -> None:
    """Pairs of a plain and an always-wrong generation, who goes first changing, with the default policy."""
    base = read(engine, tokenizer.encode(own_text(), add_bos=True)[:64])
    plain = SessionOptions(GREEDY)
    tokens, _ = timed(base.fork(plain), args.tokens)
    right = [*base.tokens, *tokens]
    ratios: list[float] = []
    bounds: list[float] = []
    for pair in range(args.pairs + 1):
        passes: list[Pass] = []
        drafting = replace(plain, drafter=AlwaysWrong(right, tokenizer.vocab_size), depth=CostAware(8), trace=passes.append)
        seconds = {}
        for name in ("plain", "wrong") if pair % 2 else ("wrong", "plain"):
            found, seconds[name] = timed(base.fork(drafting if name == "wrong" else plain), args.tokens)
            assert found == tokens, "drafts changed the text"
        if pair:  # the first one compiles
            ratios.append(seconds["wrong"] / seconds["plain"] - 1)
            bounds.append(_bound(passes) / seconds["plain"])
    ordered = sorted(ratios)
    cut = max(0, round(len(ordered) / 2 - 0.98 * len(ordered) ** 0.5) - 1)  # 95 % interval of a median, by ranks
    drafts = [done for done in passes if done.drafted]
    print(f"always wrong, {args.pairs} pairs of {args.tokens} tokens: slower by {100 * statistics.median(ratios):.2f} % (median)")
    print(f"  95 % interval {100 * ordered[cut]:.2f} to {100 * ordered[-1 - cut]:.2f} %; goal: at most 3 %")
    print(f"  last run: {len(drafts)} drafts, {sum(done.drafted for done in drafts)} extra rows in {len(passes)} passes")
    print(f"  counted bound, extra rows x row cost + drafter time: {100 * statistics.median(bounds):.2f} %")


def _bound(passes: Sequence[Pass]) -> float:
    """Seconds of the extra rows at the median cost of a row, and of the drafter."""
    one = statistics.median(done.verify_seconds for done in passes if not done.drafted)
    drafts = [done for done in passes if done.drafted]
    if not drafts:
        return 0.0
    row = statistics.median(max(done.verify_seconds - one, 0.0) / done.drafted for done in drafts)
    return row * sum(done.drafted for done in drafts) + sum(done.draft_seconds for done in passes)


def edit(engine: Engine, tokenizer: Tokenizer, args: argparse.Namespace) -> None:
    """Plain, two n-gram drafters with the default policy, and llama.cpp plain and with prompt lookup; greedy."""
    ids = tokenizer.encode(TEXTS["code edit"], add_bos=True)
    base = read(engine, ids)
    target = target_of(engine, open_gguf(args.model))
    configs = {
        "ngram-map-k 4/32": SpecConfig(types=("ngram-map-k",), ngram_map_k=NgramSizes(4, 32)),
        "ngram-mod 6/2-32": SpecConfig(types=("ngram-mod",), ngram_mod=ModSizes(6, 2, 32)),
    }
    names = ["plain", *configs]
    theirs = {} if args.without_llama else {f"llama.cpp {how}": _llama(args, how) for how in ("plain", "prompt lookup")}
    speeds: dict[str, list[float]] = {name: [] for name in [*names, *theirs]}
    texts: dict[str, list[int]] = {}
    for number in range(args.rounds + 1):
        for name in names if number % 2 else reversed(names):
            options = SessionOptions(GREEDY)
            if name in configs:
                options = speculating(options, open_drafters(configs[name], target))
            texts[name], seconds = timed(base.fork(options), args.tokens)
            if number:
                speeds[name].append(len(texts[name]) / seconds)
        for name, llama in theirs.items():
            tps = _llama_run(llama, ids, args.tokens)
            if number:
                speeds[name].append(tps)
    assert all(text == texts["plain"] for text in texts.values()), "a drafter changed the text"
    print(f"code edit, {args.rounds} rounds of {args.tokens} tokens, {args.threads} threads, greedy:")
    for name, found in speeds.items():
        own = [a / b for a, b in zip(found, speeds["plain"], strict=True)]
        more = f", {statistics.median(own):.2f} x plain ({min(own):.2f}-{max(own):.2f})"
        lookup = speeds.get("llama.cpp prompt lookup")
        if lookup:
            other = [a / b for a, b in zip(found, lookup, strict=True)]
            more += f", {statistics.median(other):.2f} x llama.cpp with prompt lookup ({min(other):.2f}-{max(other):.2f})"
        print(f"  {name}: {statistics.median(found):.1f} t/s{more}")
    print("  goals: 1.3 x plain, 2.5 x llama.cpp with prompt lookup")


def _llama(args: argparse.Namespace, how: str) -> Any:
    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    lookup = LlamaPromptLookupDecoding(num_pred_tokens=10) if how == "prompt lookup" else None
    options: dict[str, Any] = dict(n_ctx=args.ctx, n_threads=args.threads, n_threads_batch=args.threads, verbose=False)
    return llama_cpp.Llama(str(args.model), draft_model=lookup, **options)


def _llama_run(llama: Any, ids: Sequence[int], n: int) -> float:
    """Tokens per second after the first token, which reads the prompt."""
    llama.reset()
    stream = llama.generate(list(ids), top_k=1, temp=0.0, repeat_penalty=1.0, reset=True)
    next(stream)
    begun = time.perf_counter()
    for _ in range(n):
        next(stream)
    return n / (time.perf_counter() - begun)


def pair(engine: Engine, tokenizer: Tokenizer, args: argparse.Namespace) -> None:
    """Tokens per pass at a fixed depth: counts, so a busy machine does not matter.

    Beside them stands what could be reached at most: two draws of distributions p and q are the same token in at most
    sum(min(p, q)) of cases, however they are coupled (the coupling lemma), whether or not the text stays that of the seed."""
    config = SpecConfig(types=("draft-simple",), draft_model=args.draft, n_max=args.depth, accept="exact")
    drafters: Drafters = open_drafters(config, target_of(engine, open_gguf(args.model)))
    draft = Engine.open(open_gguf(args.draft), EngineOptions(n_ctx=args.ctx, threads=args.threads))
    text = tokenizer.encode(own_text())
    settings = {"T 0": GREEDY, "T 1, min-p 0.05": SamplingParams(1.0, min_p=0.05), "T 1, no filter": SamplingParams(1.0)}
    found = {}
    for name, params in settings.items():
        passes = accepted = drafted = 0
        chances: list[list[float]] = []
        for number in range(args.rounds):
            options = SessionOptions(params, seed=number + 1, drafter=drafters.new(False), depth=FixedDepth(args.depth))
            session = engine.session(options)
            session.sync(text[90 * number : 90 * number + 80])
            for _ in session.generate(args.tokens):
                pass
            passes += session.stats.passes
            accepted += session.stats.accepted
            drafted += session.stats.drafted
            if params.temperature > 0:
                chances.append(overlaps(engine, draft, session.tokens, 80, params))
        session.stats.passes, session.stats.accepted = passes, accepted
        found[name] = tokens_per_pass(session.stats)
        counts = f"{found[name]:.3f} tokens a pass ({accepted}/{drafted} accepted)"
        print(f"draft pair, {name}: {counts}, {100 * found[name] / found['T 0']:.1f} % of T 0", flush=True)
        if chances:
            share = statistics.mean(chance for text_chances in chances for chance in text_chances)
            most = tokens_at_best(chances, args.depth)
            words = f"two draws of theirs can be the same token in {share:.3f} of cases: {most:.3f} tokens a pass"
            print(f"  at most: {words}, {100 * most / found['T 0']:.1f} % of T 0", flush=True)
    print("  goal: exact at temperature 1 at least 85 % of temperature 0")


def overlaps(target: Engine, draft: Engine, ids: Sequence[int], n_prompt: int, params: SamplingParams) -> list[float]:
    """sum(min(p, q)) at each position of an answer, p and q being what is left of both models' distributions by min-p."""
    found = []
    for ours, theirs in zip(*(logits_along(engine, ids[:-1], n_prompt - 1) for engine in (target, draft)), strict=True):
        shares = []
        for row in (ours, theirs):
            weights = np.exp((row.astype(np.float64) - row.max()) / params.temperature)
            weights[weights < params.min_p] = 0.0
            shares.append(weights / weights.sum())
        found.append(float(np.minimum(*shares).sum()))
    return found


def tokens_at_best(texts: Sequence[Sequence[float]], depth: int) -> float:
    """Expected tokens per pass of drafts of `depth` tokens that are right with the given chances at their positions."""
    n_tokens = n_passes = 0.0
    for chances in texts:
        starts = [1.0, *[0.0] * len(chances)]  # the chance that a pass starts at a position
        for at in range(len(chances)):
            reached = starts[at]
            n_passes += reached
            n_drafted = min(depth, len(chances) - at - 1)
            for i in range(n_drafted):
                starts[at + i + 1] += reached * (1 - chances[at + i])
                reached *= chances[at + i]
            starts[at + n_drafted + 1] += reached
        n_tokens += len(chances)
    return n_tokens / n_passes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("wrong", "edit", "pair"))
    parser.add_argument("model", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--ctx", type=int, default=1024)
    parser.add_argument("--without-llama", action="store_true")
    args = parser.parse_args()
    if args.part == "pair" and args.draft is None:
        parser.error("pair needs --draft")
    g = open_gguf(args.model)
    engine = Engine.open(g, EngineOptions(n_ctx=args.ctx, threads=args.threads))
    {"wrong": wrong, "edit": edit, "pair": pair}[args.part](engine, load_tokenizer(g), args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
