"""A session of DeepSeek V4 in a file, with each of the drafts that are made for it: pools, rings and compressed rows come back,
and the draft goes on where it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from deepseek4_reference import mtp_weights, spark_weights
from identity import cache_hashes
from numpy.testing import assert_array_equal
from tiny_v4 import make_tiny, spark_keys, write_support

from ds4py.drafters import SpecConfig, open_drafters
from ds4py.engine import Engine, EngineOptions, FixedDepth, Session, SessionOptions
from ds4py.engine.speculation import target_of
from ds4py.errors import FormatError
from ds4py.gguf import GgmlType, open_gguf
from ds4py.protocols import SamplingParams

FEW = (3, 11, 19, 40, 77)
OPTIONS = SessionOptions(SamplingParams(1.0), bias=dict.fromkeys(FEW, 100.0), seed=5)
PROMPT = np.random.default_rng(6).choice(FEW, 90).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, tiny = tmp_path_factory.mktemp("flash"), make_tiny(hca=32)
    tiny.write(made / "flash.gguf", GgmlType.Q8_0)
    stages, keys = spark_weights(tiny.config, 32, 3), spark_keys([1, 2, 3], 32, 319)
    write_support(made / "dspark.gguf", stages, tiny.config, keys, GgmlType.Q8_0)
    named = {"general.architecture": "deepseek4-mtp", "general.name": "DeepSeek V4 Flash MTP support"}
    write_support(made / "mtp.gguf", mtp_weights(tiny.config), tiny.config, named, GgmlType.Q8_0)
    return made


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return Engine.open(open_gguf(folder / "flash.gguf"), EngineOptions(n_ctx=400, threads=1, max_rows=32))


def drafting(engine: Engine, folder: Path, kind: str) -> SessionOptions:
    assert engine.gguf is not None
    config = SpecConfig((f"draft-{kind}",), folder / f"{kind}.gguf", n_max=3, conf_min=0.0, accept="exact")
    made = open_drafters(config, target_of(engine, engine.gguf))
    return replace(OPTIONS, drafter=made.new(False), depth=FixedDepth(3))


def go_on(session: Session, n: int) -> list[int]:
    for _ in session.generate(n):
        pass
    return session.tokens


@pytest.mark.parametrize("kind", ["dspark", "mtp"])
def test_it_goes_on_as_if_it_had_never_been_away(kind: str, engine: Engine, folder: Path, tmp_path: Path) -> None:
    session = engine.session(drafting(engine, folder, kind))
    session.sync(PROMPT)
    go_on(session, 30)
    engine.save_session(session, tmp_path / "s")
    plain = engine.session(OPTIONS)
    plain.sync(PROMPT)
    go_on(plain, 70)
    loaded = engine.load_session(tmp_path / "s", drafting(engine, folder, kind))
    assert cache_hashes(loaded) == cache_hashes(session) and loaded.tokens == session.tokens
    drafted, accepted = session.stats.drafted, session.stats.accepted
    assert go_on(session, 40) == go_on(loaded, 40) == plain.tokens
    assert loaded.stats.drafted == session.stats.drafted - drafted
    assert loaded.stats.accepted == session.stats.accepted - accepted
    assert loaded.stats.drafted > 20 and cache_hashes(loaded) == cache_hashes(plain)
    loaded.rewind(100)  # back behind what was saved, where windows and pools have to be made again
    again = engine.session(OPTIONS)
    again.sync(plain.tokens[:100])
    assert_array_equal(loaded.next_logits(), again.next_logits())


def test_the_other_kind_s_draft_is_not_taken_and_the_text_goes_on(engine: Engine, folder: Path, tmp_path: Path) -> None:
    session = engine.session(drafting(engine, folder, "dspark"))
    session.sync(PROMPT)
    engine.save_session(session, tmp_path / "s")
    other = engine.load_session(tmp_path / "s", drafting(engine, folder, "mtp"))
    assert go_on(other, 30) == go_on(session, 30) and other.stats.drafted > 10
    data = (tmp_path / "s").read_bytes()
    (tmp_path / "s").write_bytes(data[: len(data) // 2])
    with pytest.raises(FormatError, match="damaged or cut short"):
        engine.load_session(tmp_path / "s")
