"""A saved session goes on as if it had never been away; a file that is not sound is refused and costs nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numpy.testing import assert_array_equal
from scripted_drafters import Scripted, right_with
from toy_model import remembered, toy_engine

from ds4py.engine import Engine, FixedDepth, Penalties, Session, SessionOptions, savefile
from ds4py.errors import Ds4Error, FormatError, ResourceError
from ds4py.protocols import F32, SamplingParams

PROMPT = [int(t) for t in np.random.default_rng(3).integers(0, 48, 70)]
OPTIONS = SessionOptions(SamplingParams(0.9, top_p=0.95), Penalties(1.3, last_n=20), seed=5, choice=2)


def session_of(engine: Engine, options: SessionOptions = OPTIONS, n: int = 40) -> Session:
    session = engine.session(options)
    session.sync(PROMPT)
    for _ in session.generate(n):
        pass
    return session


def rest(session: Session, n: int = 30) -> tuple[list[int], list[F32]]:
    steps = [(step.tokens, step.rows.copy()) for step in session.generate(n)]
    return [t for tokens, _ in steps for t in tokens], [row for _, rows in steps for row in rows]


@pytest.mark.parametrize("tile", [0, 16])
@pytest.mark.parametrize("window", [0, 24])
def test_the_next_tokens_and_logits_are_the_same(tmp_path: Path, window: int, tile: int) -> None:
    engine = toy_engine(window=window, prefill_tile=tile)
    session = session_of(engine)
    session.regenerate(90)  # an epoch of its own
    engine.save_session(session, tmp_path / "s")
    again = engine.load_session(tmp_path / "s", replace(OPTIONS, seed=99, choice=0))
    assert again.tokens == session.tokens and again.sampler.noise == session.sampler.noise
    for a, b in zip(remembered(session.state), remembered(again.state), strict=True):  # type: ignore[arg-type]
        assert_array_equal(a, b)
    first, second = rest(session), rest(again)
    assert first[0] == second[0]
    assert_array_equal(first[1], second[1])
    again.rewind(100)
    session.rewind(100)
    assert rest(session)[0] == rest(again)[0]


def test_a_drafter_is_told_the_tokens_and_drafting_goes_on(tmp_path: Path) -> None:
    engine = toy_engine()
    plain = session_of(engine, n=80)
    engine.save_session(session_of(engine), tmp_path / "s")
    drafter = Scripted(plain.tokens, right_with(0.6))
    again = engine.load_session(tmp_path / "s", replace(OPTIONS, drafter=drafter, depth=FixedDepth(4)))
    assert drafter.seen == plain.tokens[:109]
    rest(again, 40)
    assert again.tokens == plain.tokens
    assert again.stats.accepted > 5 and again.stats.drafted > again.stats.accepted


def test_an_empty_session_can_be_saved(tmp_path: Path) -> None:
    engine = toy_engine()
    engine.save_session(engine.session(), tmp_path / "s")
    again = engine.load_session(tmp_path / "s", OPTIONS)
    assert again.tokens == [] and again.sync(PROMPT).fed == len(PROMPT) - 1


class Keeper(Scripted):
    """A drafter with something to save."""

    def __init__(self, identity: str) -> None:
        super().__init__([], lambda pos, token, call: token)
        self.identity = identity
        self.loaded: dict[str, npt.NDArray[Any]] = {}

    def payload(self) -> dict[str, npt.NDArray[Any]]:
        return {"x": np.arange(5, dtype=np.float16), "y": np.zeros((2, 0), np.int64)}

    def load(self, payload: Mapping[str, npt.NDArray[Any]]) -> None:
        self.loaded = {name: array.copy() for name, array in payload.items()}


@pytest.mark.parametrize(("identity", "loads"), [("a", True), ("b", False)])
def test_a_drafters_own_state_comes_back_to_the_same_drafter(tmp_path: Path, identity: str, loads: bool) -> None:
    engine = toy_engine()
    engine.save_session(session_of(engine, replace(OPTIONS, drafter=Keeper("a"))), tmp_path / "s")
    keeper = Keeper(identity)
    engine.load_session(tmp_path / "s", replace(OPTIONS, drafter=keeper))
    assert keeper.pos == 109
    assert set(keeper.loaded) == ({"x", "y"} if loads else set())
    if loads:
        assert_array_equal(keeper.loaded["x"], np.arange(5, dtype=np.float16))
        assert keeper.loaded["y"].shape == (2, 0)


# --- what is refused ---------------------------------------------------------------------------------------------------------


def test_every_truncation_and_every_damaged_byte_is_refused(tmp_path: Path) -> None:
    engine = toy_engine(n_ctx=64)
    session = engine.session(OPTIONS)
    session.sync([1, 2, 3])
    path = tmp_path / "s"
    engine.save_session(session, path)
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    for n in [0, 1, 8, 16, 20, len(data) - 1, *rng.integers(0, len(data), 30)]:
        path.write_bytes(data[:n])
        with pytest.raises(FormatError):
            engine.load_session(path)
    for at in [*range(0, 400, 7), *rng.integers(0, len(data), 60)]:
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        with pytest.raises(FormatError):
            engine.load_session(path)
    path.write_bytes(data + b"x")
    with pytest.raises(FormatError):
        engine.load_session(path)
    path.write_bytes(data)
    assert engine.load_session(path).tokens == [1, 2, 3]


def forge(path: Path, change: Mapping[str, Any]) -> None:
    """Rewrite the header and make the checksum fit, as an attacker would."""
    import hashlib

    data = path.read_bytes()
    n = int.from_bytes(data[8:16], "little")
    header = {**json.loads(data[16 : 16 + n]), **change}
    text = json.dumps(header).encode()
    body = data[:8] + len(text).to_bytes(8, "little") + text + data[16 + n : -32]
    path.write_bytes(body + hashlib.blake2b(body, digest_size=32).digest())


ARRAYS: Sequence[Any] = ([["tokens", "<i8", [10**12]]], [["tokens", "O", [3]]], [["tokens", "<i8", [-3]]], [7], "x", [])


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"model": "another"},
        {"kernels": "others"},
        {"pos": 1},
        {"pos": "2"},
        {"seed": None},
        {"drafters": 3},
        *({"arrays": arrays} for arrays in ARRAYS),
    ],
)
def test_a_forged_header_is_refused(tmp_path: Path, change: Mapping[str, Any]) -> None:
    engine = toy_engine(n_ctx=64)
    session = engine.session(OPTIONS)
    session.sync([1, 2, 3])
    engine.save_session(session, tmp_path / "s")
    forge(tmp_path / "s", {})
    assert engine.load_session(tmp_path / "s").tokens == [1, 2, 3]
    forge(tmp_path / "s", change)
    with pytest.raises(FormatError) as caught:
        engine.load_session(tmp_path / "s")
    assert "\n" not in str(caught.value)


def test_a_session_of_another_kind_of_model_or_a_larger_context_is_refused(tmp_path: Path) -> None:
    toy_engine().save_session(session_of(toy_engine()), tmp_path / "s")
    for other in (toy_engine(n_ctx=64), toy_engine(vocab_size=30), toy_engine(name="other")):
        with pytest.raises(FormatError):
            other.load_session(tmp_path / "s")


def test_other_kernels_are_told_the_way_out_and_nothing_is_lost(tmp_path: Path) -> None:
    """Refused, since numbers differ in the last bits; the tokens can be read again, and the file serves its own kernels still."""
    path, here, there = tmp_path / "s", toy_engine(), toy_engine(name="cpu-avx512")
    session = session_of(there)
    there.save_session(session, path)
    stored = path.read_bytes()
    with pytest.raises(FormatError) as caught:
        here.load_session(path, OPTIONS)
    told = str(caught.value)
    assert "--backend cpu:avx512" in told and f"{len(session.tokens)} tokens read again" in told and "\n" not in told
    again = here.load_session(path, replace(OPTIONS, seed=99), read_again=True)
    assert again.tokens == session.tokens and again.sampler.noise == session.sampler.noise
    assert again.state.pos == len(session.tokens) - 1 and path.read_bytes() == stored
    exact = there.load_session(path, OPTIONS, read_again=True)  # on its own kernels nothing is read
    first, second, third = rest(session), rest(exact), rest(again)
    assert first[0] == second[0] == third[0], "the toy's numbers do not depend on its name"
    there.save_session(there.session(), path)
    assert here.load_session(path, read_again=True).tokens == []


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = toy_engine()
    session = session_of(engine)
    engine.save_session(session, tmp_path / "s")
    old = (tmp_path / "s").read_bytes()

    def broken(*_: Any) -> Any:
        yield b"DS4SESS1"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(savefile, "_pieces", broken)
    with pytest.raises(ResourceError):
        engine.save_session(session, tmp_path / "s")
    assert (tmp_path / "s").read_bytes() == old
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_missing_files_and_folders_are_one_sentence(tmp_path: Path) -> None:
    engine = toy_engine()
    with pytest.raises(Ds4Error, match="cannot read"):
        engine.load_session(tmp_path / "none")
    with pytest.raises(Ds4Error, match="cannot read"):
        engine.load_session(tmp_path)
    with pytest.raises(Ds4Error, match="cannot write"):
        engine.save_session(session_of(engine), tmp_path / "no folder" / "s")
