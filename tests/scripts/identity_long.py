"""Every drafter x greedy, exact at T 0.7 and 1.3 x base, repetition penalty 1.5, JSON grammar, against plain decoding.

    python tests/scripts/identity_long.py MODEL.gguf [--draft DRAFT.gguf] [--least 1000] [--threads 2] [--only ngram-mod,...]
    python tests/scripts/identity_long.py MODEL.gguf --eagle3 E.gguf --dflash F.gguf --dspark S.gguf --only draft-dspark,...
    python tests/scripts/identity_long.py --tiny

Compares tokens, hashes of every row of logits, and hashes of every cache's content in position order; prints drafted, accepted
and rejected counts of each run and fails on the first difference, and at the end if a run had too few proposals of a kind.
Without --draft the model itself, quantised to Q2_K, drafts; without --eagle3, --dflash or --dspark a random draft of that kind,
which is right by chance only: often enough where five words are left, seldom in greedy decoding. tests/identity.py does the
comparing. Runs are printed as they end; --skip N --count K does K of them from the Nth on, to share a machine or go on where one
stopped. On real models --episode 48 is enough: later tokens tell little that is new, and cost more.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from identity import DEPTH, MODES, SCHEMA, SCRIPTED, VARIATIONS, Plain, Subject, run

from ds4py.chat.grammar import GrammarCompiler
from ds4py.cli.bench import own_text
from ds4py.drafters import Drafters, ModSizes, NgramSizes, SpecConfig, open_drafters
from ds4py.engine import Engine, EngineOptions
from ds4py.engine.speculation import target_of
from ds4py.gguf import GgufFile, open_gguf
from ds4py.tokenizer import load_tokenizer

WORDS = "one two red blue sun rain and or"
DRAFTERS: dict[str, tuple[str, ...]] = {
    "ngram-simple": ("ngram-simple",),
    "ngram-map-k": ("ngram-map-k",),
    "ngram-map-k4v": ("ngram-map-k4v",),
    "ngram-mod": ("ngram-mod",),
    "ngram-cache": ("ngram-cache",),
    "draft-simple": ("draft-simple",),
    "draft-eagle3": ("draft-eagle3",),
    "draft-dflash": ("draft-dflash",),
    "draft-dspark": ("draft-dspark",),
    "chain": ("ngram-map-k", "ngram-cache", "draft-simple"),
    "chain with dspark": ("ngram-map-k", "draft-dspark"),
}


def subject_of(path: Path, threads: int, n_ctx: int) -> tuple[Subject, GgufFile]:
    g = open_gguf(path)
    tokenizer = load_tokenizer(g)
    engine = Engine.open(g, EngineOptions(n_ctx=n_ctx, threads=threads))
    compiler = GrammarCompiler(tokenizer)
    grammar = compiler.compile("json_schema", SCHEMA)
    words = list(dict.fromkeys(token for word in WORDS.split() for token in tokenizer.encode(f" {word}")[:1]))
    if len(words) < 4:  # a vocabulary of bytes
        words = tokenizer.encode("abcde")
    text = tokenizer.encode(own_text())
    return Subject(path.stem, engine, words[:5], text, grammar.schedule, tokenizer.encode), g


def config_of(types: tuple[str, ...], files: Mapping[str, Path]) -> SpecConfig:
    """Short n-grams, so that drafts are many and often wrong. `files`: a type -> its draft model."""
    sizes = NgramSizes(key=2, value=DEPTH)
    return SpecConfig(
        types=types,
        draft_model=next((files[name] for name in types if name in files), None),
        n_max=DEPTH,
        ngram_simple=NgramSizes(key=1, value=DEPTH),
        ngram_map_k=sizes,
        ngram_map_k4v=NgramSizes(key=3, value=5),
        ngram_mod=ModSizes(n_match=2, n_min=1, n_max=DEPTH),
        accept="exact",
    )


def check(path: Path, files: Mapping[str, Path], args: argparse.Namespace) -> int:
    """The runs of one model; gives the number of runs with too few proposals."""
    subject, g = subject_of(path, args.threads, n_ctx=512)
    plain = Plain(subject, args.episode)
    opened: dict[str, Drafters] = {}
    n_short = n_tokens = 0
    for number, (variation, mode, name) in enumerate(_runs(args)):
        if not args.skip <= number < args.skip + args.count:
            continue
        if name in DRAFTERS and name not in opened:
            opened[name] = open_drafters(config_of(DRAFTERS[name], files), target_of(subject.engine, g))
        begun = time.monotonic()
        counts = run(plain, name, opened.get(name), mode, variation, args.least, args.most_episodes)
        n_tokens += counts.tokens
        short = not counts.enough(args.least, name)
        n_short += short
        print(
            f"{number:3d} {subject.name} {variation} {mode} {name}: {counts.episodes} episodes, {counts.tokens} tokens, "
            f"{counts.passes} passes, drafted {counts.drafted}, accepted {counts.accepted}, rejected {counts.rejected}, "
            f"0 differences, {time.monotonic() - begun:.0f} s{'  TOO FEW' if short else ''}",
            flush=True,
        )
    print(f"{subject.name}: {n_tokens} tokens compared, no difference; {n_short} runs with too few proposals", flush=True)
    return n_short


def _runs(args: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    names = args.only.split(",") if args.only else [*DRAFTERS, *SCRIPTED]
    for variation in args.variations.split(","):
        for mode in MODES:
            for name in names:
                yield variation, mode, name


def _requantised(path: Path, folder: Path) -> Path:
    out = folder / f"{path.stem}-Q2_K.gguf"
    command = [sys.executable, "-m", "ds4py.cli.quantize", str(path), str(out), "--type", "Q2_K", "--allow-requantize"]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return out


def _files(path: Path, draft: Path | None, args: argparse.Namespace, folder: Path) -> Mapping[str, Path]:
    """The draft model of each type for the target `path`."""
    from tiny_drafts import KINDS, random_draft

    files = {"draft-simple": draft or args.draft or _requantised(path, folder)}
    for kind in KINDS:
        given = getattr(args, kind.removeprefix("draft-"))
        files[kind] = given or random_draft(kind, path, folder / f"{path.stem}-{kind}.gguf")
    return files


def _tiny_pair(architecture: str, folder: Path) -> tuple[Path, Path]:
    """A tiny random model, and itself with a little noise to draft for it."""
    import torch
    from tiny_models import GgmlType, tiny_config, tiny_module, write_tiny

    module = tiny_module(tiny_config(architecture))
    target = write_tiny(module, folder / f"tiny-{architecture}.gguf", kind=GgmlType.Q8_0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(p.std() * 0.05 * torch.randn(p.shape, generator=generator))
    return target, write_tiny(module, folder / f"tiny-{architecture}-draft.gguf", kind=GgmlType.Q8_0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="*", type=Path)
    parser.add_argument("--draft", type=Path)
    for kind in ("eagle3", "dflash", "dspark"):
        parser.add_argument(f"--{kind}", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--least", type=int, default=1000)
    parser.add_argument("--episode", type=int, default=160)
    parser.add_argument("--most-episodes", type=int, default=400)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--variations", default=",".join(VARIATIONS))
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    args = parser.parse_args()
    n_short = 0
    with tempfile.TemporaryDirectory() as folder:
        for path, draft in _pairs(args, Path(folder)):
            n_short += check(path, _files(path, draft, args, Path(folder)), args)
    return 1 if n_short else 0


def _pairs(args: argparse.Namespace, folder: Path) -> Iterator[tuple[Path, Path | None]]:
    if args.tiny:
        from tiny_models import ARCHITECTURES

        for name in ARCHITECTURES:
            yield _tiny_pair(name, folder)
    for path in args.model:
        yield path, None


if __name__ == "__main__":
    sys.exit(main())
