"""Markup of calls greedily, payload as asked, at every row of a block, and at no extra cost."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_drafters import EveryLength, Guess, Scripted, always_right, always_wrong, right_with

from ds4py.chat import ReplyStream
from ds4py.chat.formats.tagged import TaggedCalls
from ds4py.chat.toolmode import ToolSchedule
from ds4py.engine import FixedDepth, FixedSchedule, Penalties, Session, SessionOptions
from ds4py.protocols import SamplingParams
from ds4py.server.scripted import Script, read_script

HEADER = ["<tool_call>", "\n", '{"name": ', '"f", "arguments": {"s": ', '"']
CALL = [*HEADER, "va", "lue", " of ", "it", '"', "}}", "\n", "</tool_call>"]
PIECES = ["Let", " me", " see", "\n", *CALL, "\n", *CALL, "\n", "do", "ne"]
SYNTAX = TaggedCalls()
TOOLS = [{"type": "function", "function": {"name": "f"}}]
N_PROMPT = 8


def script(sharp: float) -> Script:
    return read_script({"replies": [{"pieces": PIECES, "sharp": sharp}]}, "test", 256)


def session(made: Script, temperature: float = 1.5, tool_mode: bool = True, **options: Any) -> Session:
    inner = FixedSchedule(SamplingParams(temperature), Penalties(), {}, made.model.vocab_size)
    reader = ReplyStream(made.tokenizer, calls=SYNTAX.parser(TOOLS), syntax=SYNTAX, stop_ids=made.tokenizer.stop_ids)
    schedule = ToolSchedule(inner, reader, N_PROMPT) if tool_mode else inner
    made_session = made.engine.session(SessionOptions(schedule=schedule, seed=5, stop_ids=made.tokenizer.stop_ids, **options))
    made_session.sync(list(range(20, 20 + N_PROMPT)))
    made.begin(made_session.state, "", N_PROMPT, lambda: None)
    return made_session


def tokens_of(made: Session, n: int = 60) -> list[int]:
    for _ in made.generate(n):
        pass
    return made.tokens[N_PROMPT:]


def scripted_tokens(made: Script) -> list[int]:
    found = [made.model.scripted_token(made.replies[0], place) for place in range(len(PIECES))]
    return [token for token in found if token is not None]


def test_markup_is_greedy_and_payload_is_drawn() -> None:
    """The scripted token is the likeliest everywhere, yet at this temperature it is drawn only now and then."""
    made = script(sharp=3.0)
    want = scripted_tokens(made)
    drawn, call_at = set(), 4
    for seed in range(12):
        one = session(made)
        one.sampler.noise = type(one.sampler.noise)(seed, 0, 0)
        one.sync([*one.tokens, *want[:call_at]])  # up to the call, so that it is reached under every seed
        tokens_of(one, 13)
        got = one.tokens[N_PROMPT + call_at :]
        read = ReplyStream(made.tokenizer, calls=SYNTAX.parser(TOOLS), syntax=SYNTAX)
        for token in want[:call_at]:
            read.push(token)
        for place, token in enumerate(got):
            if read.is_syntax:
                assert token == want[call_at + place]
            drawn |= {"other"} if token != want[call_at + place] else {"same"}
            read.push(token)
            if token != want[call_at + place]:
                break  # the text has left the script
    assert drawn == {"other", "same"}


@pytest.mark.parametrize("guess", [always_right, always_wrong, right_with(0.6), EveryLength(5)])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_blocks_that_cross_the_border_cost_no_row_and_change_no_token(guess: Guess, temperature: float) -> None:
    made = script(sharp=11.0)
    plain = session(made, temperature)
    want = tokens_of(plain)
    crossed = 0
    for depth in (1, 3, 5):
        before = made.model.n_rows
        drafted = session(made, temperature, drafter=Scripted(plain.tokens, guess), depth=FixedDepth(depth))
        prompt_rows = made.model.n_rows - before
        assert tokens_of(drafted) == want
        stats = drafted.stats
        assert stats.rows == stats.passes + stats.drafted  # one row for each token asked about: nothing twice
        assert made.model.n_rows - before == prompt_rows + stats.rows
        assert stats.accepted + stats.passes == len(want)
        crossed += stats.accepted
    assert crossed > 0 or guess is always_wrong


def test_the_border_is_crossed_inside_a_block() -> None:
    """One block holds text, markup, payload and markup again, and every row of it is committed."""
    made = script(sharp=30.0)
    plain = session(made)
    want = tokens_of(plain)
    passes: list[tuple[int, int]] = []
    drafted = session(
        made,
        drafter=Scripted(plain.tokens, always_right),
        depth=FixedDepth(20),
        trace=lambda done: passes.append((done.pos, done.committed)),
    )
    assert tokens_of(drafted) == want and passes[0][1] == 21


def test_without_tool_mode_markup_is_drawn_too() -> None:
    made = script(sharp=3.0)
    want = scripted_tokens(made)
    plain = session(made, tool_mode=False)
    plain.sync([*plain.tokens, *want[:5]])
    assert tokens_of(plain, 8)[5:] != want[5:13]
