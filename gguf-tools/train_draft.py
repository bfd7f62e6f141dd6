#!/usr/bin/env python3
"""Train a draft that reads the target's residuals: EAGLE-3, DFlash or DSpark, written as llama.cpp's GGUF.

    train_draft.py --target MODEL.gguf --kind dspark --out DRAFT.gguf [--minutes 9] [--vocab 4096]

The target answers prompts (a few hundred, made of topics and forms) and keeps its residuals; the draft learns to guess what comes
next from them. Then it is measured on answers it has not seen, at temperature 0: the share of drafts whose first guess, first two
guesses ... are what the target wrote. A draft of a few minutes on a CPU is a demonstration; published drafts saw a million
answers.

--vocab N gives the draft a head of its own with the N ids that occur most often (tensor d2t), which is much of its cost; 0
borrows the target's whole head.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:] = [*(path for path in sys.path if Path(path).resolve() != HERE), str(HERE)]  # last, since inspect.py lies here too

import torch  # noqa: E402
from drafts.block import Block  # noqa: E402
from drafts.eagle3 import Eagle3  # noqa: E402
from drafts.saving import save  # noqa: E402
from drafts.target import Target, draft_vocabulary, shape_of, spread_taps  # noqa: E402
from drafts.texts import Text, answers  # noqa: E402
from drafts.training import Schedule, acceptance, train  # noqa: E402

from ds4py.engine import Engine, EngineOptions  # noqa: E402
from ds4py.errors import Ds4Error, UsageError  # noqa: E402
from ds4py.gguf import GgmlType, GgufFile, open_gguf  # noqa: E402

KINDS = ("eagle3", "dflash", "dspark")
HELD_OUT = 12  # answers of temperature 0 that are not trained on


def run(args: argparse.Namespace) -> None:
    g = open_gguf(args.target)
    n_layers = int(g.require("block_count"))
    taps = tuple(args.taps) if args.taps else spread_taps(n_layers, 3)
    if list(taps) != sorted(set(taps)) or not 0 <= taps[0] <= taps[-1] < n_layers - 1:
        raise UsageError(f"--taps must ascend from 0 to {n_layers - 2}, not {' '.join(map(str, taps))}")
    texts = list(answers(Engine.open(g, EngineOptions(n_ctx=1024)), g, (*taps, n_layers - 1), args.prompts, args.tokens))
    trained, unseen = held_out([text for text in texts if len(text.ids) > text.n_asked + args.block + 2])
    torch.set_num_threads(args.threads)
    model = make(args, g, taps, trained)
    n_weights = sum(p.numel() for p in model.parameters())
    n_tokens = sum(len(text.ids) for text in trained)
    print(f"{n_tokens:,} tokens of {len(trained)} answers; training {n_weights:,} weights", flush=True)
    plan = Schedule(steps=args.steps, minutes=args.minutes, rate=args.rate)
    train(model, trained, plan, lambda line: print(line, flush=True))
    rates = acceptance(model, unseen)
    shares = ", ".join(f"{rate:.3f}" for rate in rates)
    print(f"accepted on {len(unseen)} answers not seen: {shares}; {1 + sum(rates):.2f} tokens a pass")
    save(model, g, taps, args.out, GgmlType[args.type], {"ds4.trained.tokens": n_tokens})
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB")


def held_out(texts: Sequence[Text]) -> tuple[list[Text], list[Text]]:
    """Texts to train on, and the last few of temperature 0."""
    greedy = [i for i, text in enumerate(texts) if text.temperature == 0][-HELD_OUT:]
    if len(greedy) * 2 > len(texts):
        raise UsageError(f"{len(texts)} answers are too few to train on; raise --prompts")
    return [text for i, text in enumerate(texts) if i not in set(greedy)], [texts[i] for i in greedy]


def make(args: argparse.Namespace, g: GgufFile, taps: Sequence[int], texts: Sequence[Text]) -> Eagle3 | Block:
    """An untrained draft."""
    target, rng = Target.of(g), torch.Generator().manual_seed(args.seed)
    rows = draft_vocabulary(texts, len(target.head), args.vocab)
    shape = shape_of(g, 1 if args.kind == "eagle3" else args.layers, len(taps), args.ff)
    if args.kind == "eagle3":
        return Eagle3(shape, target, rows, rng)
    mask = args.mask if args.mask is not None else int(g.get("tokenizer.ggml.padding_token_id", 0))
    return Block(shape, target, rows, rng, args.block, mask, args.rank if args.kind == "dspark" else 0)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="train_draft.py", description="Train a draft that reads a model's residuals.")
    parser.add_argument("--target", type=Path, required=True, help="the model to draft for")
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--taps", type=int, nargs="*", help="layers whose residual is read (default: three, spread)")
    parser.add_argument("--layers", type=int, default=1, help="of a DFlash or DSpark draft")
    parser.add_argument("--ff", type=int, help="width of the MLP (default: the target's)")
    parser.add_argument("--block", type=int, default=7, help="rows of a DFlash or DSpark block")
    parser.add_argument("--rank", type=int, default=64, help="of DSpark's Markov head")
    parser.add_argument("--mask", type=int, help="token id of the block's empty rows (default: the padding token's)")
    parser.add_argument("--vocab", type=int, default=4096, metavar="N", help="rows of the draft's own head; 0 = the target's")
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=80, help="of each answer")
    parser.add_argument("--minutes", type=float, default=9, help="of training, after the answers are made")
    parser.add_argument("--steps", type=int, default=0, help="... or a number of steps, which gives the same file every time")
    parser.add_argument("--rate", type=float, default=1e-3, help="highest learning rate")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--type", default="Q8_0", choices=["F32", "F16", "Q8_0", "Q4_0"], help="how matrices are stored")
    args = parser.parse_args(argv)
    try:
        run(args)
    except Ds4Error as error:
        print(f"train_draft.py: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
