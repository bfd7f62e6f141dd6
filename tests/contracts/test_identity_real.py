"""The suite's share of the identity runs, of which tests/scripts/identity_long.py is the whole.

Every drafter, greedy and sampled exactly, with penalties and under a grammar, gives plain decoding's tokens, logits and caches,
and enough of its proposals are accepted and rejected to say so. The best path of this processor runs every case, the lesser ones
(forced) at least one of each test."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deepseek4_reference import mtp_weights, spark_weights
from identity import DEPTH, MODES, SCHEMA, SCRIPTED, Counts, Plain, Subject, run
from tiny_drafts import KINDS, random_draft
from tiny_models import ARCHITECTURES, tiny_gguf
from tiny_v4 import TinyV4, make_tiny, spark_keys, write_support

from ds4py.chat.grammar import GrammarCompiler
from ds4py.cli.bench import own_text
from ds4py.drafters import ModSizes, NgramSizes, SpecConfig, open_drafters
from ds4py.engine import Engine, EngineOptions, SessionOptions
from ds4py.engine.speculation import target_of
from ds4py.gguf import GgmlType, GgufFile, open_gguf
from ds4py.kernels.cpu.target import host_paths
from ds4py.protocols import SamplingParams
from ds4py.tokenizer import load_tokenizer

OWN = ("draft-mtp", "deepseek4-dspark")  # of DeepSeek V4 alone
DRAFTERS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache", "draft-simple", *KINDS)
LEAST = 50
PAIR = Path(__file__).parents[1] / "golden/pair"
BEST, *LESSER = (f"cpu:{path}" for path in host_paths())


def everywhere(every: Iterable[tuple[str, ...]], some: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Cases of a test with the backend before them: `every` one on the best path, `some` on each of the others."""
    some = list(some)
    return [(BEST, *case) for case in every] + [(path, *case) for path in LESSER for case in some]


def subject_of(path: Path, words: str, backend: str) -> tuple[Subject, GgufFile]:
    g = open_gguf(path)
    tokenizer = load_tokenizer(g)
    engine = open_engine(g, backend)
    ids = tokenizer.encode(words)
    grammar = GrammarCompiler(tokenizer).compile("json_schema", SCHEMA)
    text = tokenizer.encode(own_text()[:4000])
    return Subject(path.stem, engine, ids[:5], text, grammar.schedule, tokenizer.encode), g


def open_engine(g: GgufFile, backend: str) -> Engine:
    return Engine.open(g, EngineOptions(n_ctx=320, threads=1, kernels=backend))


def config_of(name: str, g: GgufFile, draft: Path) -> SpecConfig:
    """`draft` drafts for `g` if it is a model; random drafts of the other kinds are made beside it."""
    sizes = NgramSizes(key=2, value=DEPTH)
    return SpecConfig(
        types=(name,),
        draft_model=_drafting(name, g, draft),
        n_max=DEPTH,
        ngram_simple=NgramSizes(key=1, value=DEPTH),
        ngram_map_k=sizes,
        ngram_map_k4v=NgramSizes(key=3, value=2),
        ngram_mod=ModSizes(n_match=2, n_min=1, n_max=DEPTH),
        accept="exact",
    )


def _drafting(name: str, g: GgufFile, draft: Path) -> Path | None:
    if name not in KINDS:
        return draft if name == "draft-simple" else None
    path = draft.with_name(f"{name}.gguf")
    return path if path.exists() else random_draft(name, g.path, path)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(architecture, backend) -> (plain decoding, the file, a draft model: the same weights, fewer layers)."""
    made: dict[tuple[str, str], tuple[Plain, GgufFile, Path]] = {}

    def get(name: str, backend: str) -> tuple[Plain, GgufFile, Path]:
        if (name, backend) not in made:
            folder = tmp_path_factory.mktemp(name)
            subject, g = subject_of(tiny_gguf(name, folder / f"{name}.gguf"), "abcd", backend)
            draft = tiny_gguf(name, folder / "draft.gguf", num_hidden_layers=_less(name))
            made[name, backend] = Plain(subject, 120), g, draft
        return made[name, backend]

    return get


def _less(architecture: str) -> int:
    return 6 if architecture == "gemma3" else 2


def check(counts: Counts, drafter: str, least: int = LEAST) -> None:
    print(f"{drafter}: drafted {counts.drafted}, accepted {counts.accepted}, rejected {counts.rejected}, {counts.tokens} tokens")
    assert counts.enough(least, drafter), counts


@pytest.mark.parametrize(
    ("backend", "architecture", "mode", "drafter"),
    everywhere(
        product(["llama", "gemma3"], MODES, [*DRAFTERS, *SCRIPTED]),
        [*product(["gemma3"], ["T 1.3"], [*DRAFTERS, *SCRIPTED]), *product(["llama"], ["greedy"], ["ngram-mod", *SCRIPTED])],
    ),
)
def test_tiny_models(backend: str, architecture: str, mode: str, drafter: str, tiny: Any) -> None:
    plain, g, draft = tiny(architecture, backend)
    drafters = None if drafter in SCRIPTED else open_drafters(config_of(drafter, g, draft), target_of(plain.subject.engine, g))
    check(run(plain, drafter, drafters, mode, "base", LEAST, 48), drafter)


@pytest.mark.parametrize(
    ("backend", "architecture", "drafter"),
    everywhere(product(sorted({*ARCHITECTURES} - {"llama", "gemma3"}), KINDS), product(["qwen3moe"], KINDS)),
)
def test_drafts_that_listen_to_every_other_architecture(backend: str, architecture: str, drafter: str, tiny: Any) -> None:
    plain, g, draft = tiny(architecture, backend)
    drafters = open_drafters(config_of(drafter, g, draft), target_of(plain.subject.engine, g))
    check(run(plain, drafter, drafters, "T 1.3", "base", LEAST, 48), drafter)


@pytest.mark.parametrize(("backend", "drafter"), everywhere(product((*KINDS, *OWN)), product(["draft-dspark"])))
def test_drafts_that_listen_to_deepseek_v4(backend: str, drafter: str, tmp_path: Path) -> None:
    """What they hear of a layer there is the mean of its four streams; its own drafts, or all streams."""
    tiny = make_tiny(hca=32)
    tiny.write(tmp_path / "target.gguf", GgmlType.Q8_0)
    g = open_gguf(tmp_path / "target.gguf")
    engine = open_engine(g, backend)
    plain = Plain(Subject("deepseek4", engine, range(40, 45), [i % 200 + 10 for i in range(400)]), 100)
    own = drafter in OWN
    config = own_draft(drafter, tiny, tmp_path / "own.gguf") if own else config_of(drafter, g, tmp_path / "none.gguf")
    drafters = open_drafters(config, target_of(engine, g))
    check(run(plain, drafter, drafters, "T 1.3", "base", LEAST, 24), drafter)


def own_draft(drafter: str, tiny: TinyV4, path: Path) -> SpecConfig:
    """One of DeepSeek V4's own, with random weights."""
    if drafter == "draft-mtp":
        weights, keys = mtp_weights(tiny.config), {"general.architecture": "deepseek4-mtp"}
    else:
        weights, keys = spark_weights(tiny.config, 32, 3), spark_keys([1, 2, 3], 32, 319)
    write_support(path, weights, tiny.config, keys, GgmlType.Q8_0)
    return SpecConfig(draft_model=path, accept="exact", conf_min=0.0)


@pytest.mark.parametrize(
    ("backend", "variation", "mode", "drafter"),
    everywhere(
        product(["penalty", "grammar"], ["greedy", "T 1.3"], ["ngram-map-k", "ngram-cache", "second-choice", *KINDS]),
        product(["penalty", "grammar"], ["T 1.3"], ["ngram-map-k", "draft-dspark"]),
    ),
)
def test_penalties_and_grammars(backend: str, variation: str, mode: str, drafter: str, tiny: Any) -> None:
    plain, g, draft = tiny("llama", backend)
    drafters = None if drafter in SCRIPTED else open_drafters(config_of(drafter, g, draft), target_of(plain.subject.engine, g))
    check(run(plain, drafter, drafters, mode, variation, LEAST, 24), drafter)


@pytest.fixture(scope="module")
def real(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """backend -> (plain decoding, the file, where no draft model is)."""
    made: dict[str, tuple[Plain, GgufFile]] = {}
    draft = tmp_path_factory.mktemp("real") / "no-draft-model.gguf"

    def get(backend: str) -> tuple[Plain, GgufFile, Path]:
        if backend not in made:
            subject, g = subject_of(smollm2_path, " one two red blue sun", backend)
            made[backend] = Plain(subject, 48), g
        return (*made[backend], draft)

    return get


@pytest.mark.parametrize(
    ("backend", "mode", "variation", "drafter"),
    everywhere(
        [
            ("greedy", "base", "ngram-mod"),
            ("T 1.3", "base", "ngram-cache"),
            ("T 0.7", "penalty", "ngram-map-k"),
            ("T 0.7", "grammar", "ngram-simple"),
            ("T 0.7", "base", "second-choice"),
            ("T 1.3", "base", "draft-dspark"),
            ("T 1.3", "base", "draft-dflash"),
            ("T 1.3", "base", "draft-eagle3"),
        ],
        [("T 1.3", "base", "ngram-cache")],
    ),
)
def test_a_real_model(backend: str, mode: str, variation: str, drafter: str, real: Any) -> None:
    plain, g, draft = real(backend)
    drafters = None if drafter in SCRIPTED else open_drafters(config_of(drafter, g, draft), target_of(plain.subject.engine, g))
    least = LEAST if backend == BEST else 15  # the plain path decodes this model at a tenth of the speed
    check(run(plain, drafter, drafters, mode, variation, least, 24), drafter, least)


@pytest.fixture(scope="module")
def fitting() -> Any:
    """The trained pair: a tiny target, and drafts of each kind that are right most of the time in its language. backend ->
    (plain decoding, the target's file)."""
    g = open_gguf(PAIR / "target.gguf")
    made: dict[str, Plain] = {}

    def get(backend: str) -> tuple[Plain, GgufFile]:
        if backend not in made:
            engine = open_engine(g, backend)
            start = engine.session(SessionOptions(SamplingParams(0.8), seed=3))
            start.sync([1])
            for _ in start.generate(200):
                pass
            made[backend] = Plain(Subject("pair", engine, start.tokens[40:45], start.tokens), 100)
        return made[backend], g

    return get


@pytest.mark.parametrize(("backend", "mode", "drafter"), everywhere(product(MODES, KINDS), product(["T 0.7"], KINDS)))
def test_drafts_that_fit(backend: str, mode: str, drafter: str, fitting: Any) -> None:
    plain, g = fitting(backend)
    config = SpecConfig(draft_model=PAIR / f"{drafter.removeprefix('draft-')}.gguf", n_max=DEPTH, accept="exact")
    check(run(plain, drafter, open_drafters(config, target_of(plain.subject.engine, g)), mode, "base", LEAST, 24), drafter)


@pytest.mark.parametrize(("backend", "mode", "drafter"), everywhere(product(MODES, KINDS), [("greedy", "draft-dflash")]))
def test_drafts_turned_against_the_target(backend: str, mode: str, drafter: str, fitting: Any, tmp_path: Path) -> None:
    """The same files with the last norm negated: what they took for likeliest is now the least likely, so they are wrong with
    the confidence of having been right."""
    plain, g = fitting(backend)
    config = SpecConfig(draft_model=turned(drafter.removeprefix("draft-"), tmp_path), n_max=DEPTH, accept="exact")
    counts = run(plain, drafter, open_drafters(config, target_of(plain.subject.engine, g)), mode, "base", LEAST, 6)
    assert counts.rejected >= LEAST and counts.accepted < counts.drafted / 3, counts


def turned(kind: str, folder: Path) -> Path:
    """A copy of the pair's draft with the signs of `output_norm.weight` (float32) flipped."""
    norm = open_gguf(PAIR / f"{kind}.gguf").tensors["output_norm.weight"]
    assert norm.type.name == "F32"
    content, raw = (PAIR / f"{kind}.gguf").read_bytes(), bytes(norm.data)
    assert content.count(raw) == 1
    path = folder / f"{kind}.gguf"
    path.write_bytes(content.replace(raw, (-np.frombuffer(raw, np.float32)).tobytes()))
    return path
