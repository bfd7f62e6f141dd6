"""Make the small target and the three drafts that fit it: tests/golden/pair/{target,eagle3,dflash,dspark}.gguf.

    python tests/scripts/fitting_pair.py [--out FOLDER] [--steps 1200] [--draft-steps 420]

What they are: a llama of four layers and 220,000 weights, trained on a language of logs and little functions that this script
makes up, and one draft of each kind that llama.cpp knows, trained on what that target writes. The language has rules that reach
back a line (who was met goes on to meet; parameters come back) and places where anything may follow, so drafts are mostly right
and sometimes wrong: commit, reject and rewind happen for real, in files of a few hundred kilobytes. They can say nothing else and
their speed means nothing.

The same seed gives the same files with the same torch on the same kind of processor; the tests use the stored ones.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent), str(HERE.parents[1] / "gguf-tools")]

from drafts.block import Block  # noqa: E402
from drafts.eagle3 import Eagle3  # noqa: E402
from drafts.saving import load, save  # noqa: E402
from drafts.target import Target, draft_vocabulary, shape_of  # noqa: E402
from drafts.texts import Text, continued  # noqa: E402
from drafts.training import Schedule, acceptance, train  # noqa: E402
from hf_folders import QWEN2  # noqa: E402
from tiny_models import write_tiny  # noqa: E402

from ds4py.engine import Engine, EngineOptions  # noqa: E402
from ds4py.gguf import GgmlType, GgufFile, GgufType, Value, open_gguf  # noqa: E402
from ds4py.tokenizer import load_tokenizer  # noqa: E402

N_VOCAB, N_EMBD, N_FF, N_LAYERS, N_CTX = 384, 64, 160, 4, 1024
TAPS = (0, 1, 2)
END, MASK = "<|endoftext|>", "<|mask|>"
ANIMALS = ("fox", "owl", "hare", "frog", "bear", "crow", "mole", "toad", "wolf", "duck", "lynx", "swan")
VERBS = ("met", "saw", "called", "followed", "helped", "painted")
PLACES = ("lake", "hill", "barn", "mill", "wood", "road", "gate", "bridge")
SIGNS = ("+", "-", "*", "%")
SNIPPETS = 360  # beginnings that the target writes on


def log(rng: random.Random) -> str:
    """Days in a row. Who was met meets the next animal after the one that met it; a verb comes after the last one, mostly; each
    verb has two places."""
    day, who, whom, verb = rng.randrange(1, 60), *rng.sample(range(len(ANIMALS)), 2), rng.randrange(len(VERBS))
    lines = []
    for n in range(day, min(day + rng.randrange(5, 14), 100)):
        place = PLACES[(2 * verb + (rng.random() < 0.3)) % len(PLACES)]
        lines.append(f"day {n}: the {ANIMALS[who]} {VERBS[verb]} the {ANIMALS[whom]} near the {place}.\n")
        who, whom = whom, (who + 1) % len(ANIMALS)
        if who == whom:
            whom = (whom + 1) % len(ANIMALS)
        verb = (verb + 1) % len(VERBS) if rng.random() < 0.85 else rng.randrange(len(VERBS))
    return "".join(lines)


def code(rng: random.Random) -> str:
    """Functions whose parameters come back in their bodies."""
    out = []
    for _ in range(rng.randrange(2, 5)):
        a, b = rng.sample(ANIMALS, 2)
        verb, sign = rng.choice(VERBS), rng.choice(SIGNS)
        out.append(f"def {verb}_{a}({a}, {b}):\n    {rng.choice(PLACES)} = {a} {sign} {b}\n    return {b} {sign} {a}\n\n")
    return "".join(out)


def document(rng: random.Random) -> str:
    return (log if rng.random() < 0.65 else code)(rng)


def make_tokenizer(rng: random.Random) -> Tokenizer:
    """Byte-level BPE on the language: most words are one token."""
    tokenizer = Tokenizer(models.BPE())
    bare = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"), bare])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=N_VOCAB - 2, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([document(rng) for _ in range(400)], trainer)
    tokenizer.add_special_tokens([END, MASK])
    return tokenizer


def tokenizer_keys(tokenizer: Tokenizer) -> dict[str, Any]:
    """The metadata of the vocabulary; ids that no merge took are unused."""
    ids = tokenizer.get_vocab()
    tokens = [f"<unused{i}>" for i in range(N_VOCAB)]
    for text, i in ids.items():
        tokens[i] = text
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    control = {ids[END], ids[MASK]}
    used = set(ids.values())
    types = [3 if i in control else 1 if i in used else 5 for i in range(N_VOCAB)]
    return {
        "general.name": "fitting pair target",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": Value(GgufType.ARRAY, types, GgufType.INT32),
        "tokenizer.ggml.merges": [" ".join(pair) if isinstance(pair, list) else pair for pair in merges],
        "tokenizer.ggml.eos_token_id": ids[END],
        "tokenizer.ggml.mask_token_id": ids[MASK],
        "tokenizer.ggml.add_bos_token": False,
    }


def train_target(tokenizer: Tokenizer, rng: random.Random, steps: int, rows: int = 16, length: int = 160) -> Any:
    """A llama that has read `steps` batches of documents, one after another with the end token between them."""
    config = transformers.LlamaConfig(
        vocab_size=N_VOCAB,
        hidden_size=N_EMBD,
        intermediate_size=N_FF,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=N_EMBD // 4,
        max_position_embeddings=N_CTX,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, steps, pct_start=0.1)
    end = tokenizer.token_to_id(END)
    stream: list[int] = []
    for step in range(steps):
        while len(stream) < rows * length:
            stream += [*tokenizer.encode(document(rng)).ids, end]
        batch = torch.tensor(stream[: rows * length]).view(rows, length)
        stream = stream[rows * length :]
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            print(f"target: step {step}, loss {loss.item():.3f}", flush=True)
    return model.eval()


def writings(g: GgufFile, tokenizer: Tokenizer, rng: random.Random, n: int, n_tokens: int = 120) -> list[Text]:
    """`n` texts of the target: a few tokens of a document, written on."""
    ours = load_tokenizer(g)
    beginnings = []
    for _ in range(n):
        text = document(rng)
        ids = tokenizer.encode(text).ids
        assert ours.encode(text, add_bos=False) == ids, "the file's tokenizer is not the one that was trained"
        beginnings.append(ids[: rng.randrange(6, 40)])
    engine = Engine.open(g, EngineOptions(n_ctx=N_CTX, threads=1))
    return list(continued(engine, beginnings, (*TAPS, N_LAYERS - 1), n_tokens))


def make_draft(kind: str, g: GgufFile, texts: Sequence[Text]) -> Eagle3 | Block:
    """EAGLE-3 has a head of its own with two thirds of the vocabulary; the others borrow the target's."""
    target, rng = Target.of(g), torch.Generator().manual_seed(0)
    every = torch.arange(N_VOCAB)
    if kind == "eagle3":
        return Eagle3(shape_of(g, 1, len(TAPS)), target, draft_vocabulary(texts, N_VOCAB, 2 * N_VOCAB // 3), rng)
    mask = int(g.kv["tokenizer.ggml.mask_token_id"])
    width, rank = (8, 0) if kind == "dflash" else (7, 32)
    return Block(shape_of(g, 2, len(TAPS)), target, every, rng, width, mask, rank)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE.parent / "golden" / "pair")
    parser.add_argument("--steps", type=int, default=1200, help="of the target's training")
    parser.add_argument("--draft-steps", type=int, default=420)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep-target", action="store_true", help="train drafts for the target that is there already")
    parser.add_argument("--measure", action="store_true", help="only measure the acceptance of what is there")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    tokenizer = make_tokenizer(random.Random(args.seed))
    path = args.out / "target.gguf"
    if not args.keep_target and not args.measure:
        model = train_target(tokenizer, random.Random(args.seed + 1), args.steps)
        write_tiny(model, path, tokenizer_keys(tokenizer), GgmlType.Q8_0)
    g = open_gguf(path)
    texts = writings(g, tokenizer, random.Random(args.seed + 2), SNIPPETS)
    unseen = [text for text in texts if text.temperature == 0][-16:]
    trained = [text for text in texts if all(text is not one for one in unseen)]
    for kind in ("eagle3", "dflash", "dspark"):
        if not args.measure:
            draft = make_draft(kind, g, trained)
            plan = Schedule(steps=args.draft_steps, rate=3e-3, rows=8)
            train(draft, trained, plan, lambda line, kind=kind: print(f"{kind}: {line}", flush=True))
            save(draft, g, TAPS, args.out / f"{kind}.gguf", GgmlType.Q8_0, {})
        rates = acceptance(load(args.out / f"{kind}.gguf", g), unseen)
        print(f"{kind}: accepted {', '.join(f'{rate:.3f}' for rate in rates)}; {1 + sum(rates):.2f} tokens a pass", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
