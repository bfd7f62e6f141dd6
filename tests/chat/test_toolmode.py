"""Markup of calls greedily, payload as asked, at every row of a block, in every syntax, and at no extra cost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from scripted_drafters import EveryLength, Guess, Scripted, always_right, always_wrong, right_with

from ds4py.chat import ReplyStream, collect
from ds4py.chat.calls import CallSyntax
from ds4py.chat.formats.bare_json import BareCalls
from ds4py.chat.formats.dsml import DsmlCalls
from ds4py.chat.formats.mistral import MistralCalls
from ds4py.chat.formats.tagged import TaggedCalls
from ds4py.chat.toolmode import ToolSchedule
from ds4py.engine import FixedDepth, FixedSchedule, Penalties, Session, SessionOptions
from ds4py.protocols import SamplingParams
from ds4py.server.scripted import Script, read_script

TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"s": {"type": "string"}}}}}
]
# Each syntax with a call in it, payload between two bars.
CALLS: dict[str, tuple[CallSyntax, str]] = {
    "tagged": (TaggedCalls(), '<tool_call>\n{"name": "f", "arguments": {"s": "|value of it|"}}\n</tool_call>'),
    "xml": (
        TaggedCalls(xml=True),
        "<tool_call>\n<function=f>\n<parameter=s>|\nvalue of it\n|</parameter>\n</function>\n</tool_call>",
    ),
    "glm": (TaggedCalls(glm=""), "<tool_call>f<arg_key>s</arg_key><arg_value>|value of it|</arg_value></tool_call>"),
    "bare": (BareCalls(), '{"name": "f", "parameters": {"s": "|value of it|"}}'),
    "mistral list": (MistralCalls(), '[TOOL_CALLS] [{"name": "f", "arguments": {"s": "|value of it|"}}]'),
    "mistral named": (MistralCalls(True), '[TOOL_CALLS]f[ARGS]{"s": "|value of it|"}'),
    "dsml": (
        DsmlCalls(),
        '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="s" string="true">|value of it|'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    ),
}
N_PROMPT = 8


def pieces_of(name: str) -> list[str]:
    """A reply in tokens of three characters, in which a token never holds both markup and payload."""
    lead = [] if name == "bare" else ["Let", " me", " see", "\n"]
    between = {"bare": ["; "], "mistral list": ["\n"], "dsml": []}.get(name, ["\n"])
    call = [part[at : at + 3] for part in CALLS[name][1].split("|") for at in range(0, len(part), 3)]
    return [*lead, *call, *between, *call] if name != "dsml" else [*lead, *call]


@dataclass
class Case:
    """One syntax on a scripted model."""

    made: Script
    syntax: CallSyntax
    pieces: list[str]

    def reader(self) -> ReplyStream:
        tokenizer = self.made.tokenizer
        return ReplyStream(tokenizer, calls=self.syntax.parser(TOOLS), syntax=self.syntax, stop_ids=tokenizer.stop_ids)

    def session(self, temperature: float = 1.5, tool_mode: bool = True, **options: Any) -> Session:
        made = self.made
        inner = FixedSchedule(SamplingParams(temperature), Penalties(), {}, made.model.vocab_size)
        schedule = ToolSchedule(inner, self.reader(), N_PROMPT) if tool_mode else inner
        found = made.engine.session(SessionOptions(schedule=schedule, seed=5, stop_ids=made.tokenizer.stop_ids, **options))
        found.sync(list(range(20, 20 + N_PROMPT)))
        made.begin(found.state, "", N_PROMPT, lambda: None)
        return found

    def tokens(self) -> list[int]:
        found = [self.made.model.scripted_token(self.made.replies[0], place) for place in range(len(self.pieces))]
        return [token for token in found if token is not None]


def case(name: str, sharp: float) -> Case:
    pieces = pieces_of(name)
    return Case(read_script({"replies": [{"pieces": pieces, "sharp": sharp}]}, "test", 512), CALLS[name][0], pieces)


def tokens_of(made: Session, n: int = 200) -> list[int]:
    for _ in made.generate(n):
        pass
    return made.tokens[N_PROMPT:]


@pytest.mark.parametrize("name", CALLS)
def test_which_tokens_are_greedy(name: str) -> None:
    """By position: markup but its first characters (nobody knows yet), no payload but what must be the closing tag."""
    found = case(name, sharp=3.0)
    reader, greedy = found.reader(), ""
    for piece, token in zip(found.pieces, found.tokens(), strict=True):
        greedy += piece if reader.is_syntax else "_"
        reader.push(token)
    header, payload, _ = CALLS[name][1].split("|")
    assert header[-9:] + "_" in greedy and greedy.count("_") < 2 * len(found.pieces) // 3
    payload = payload.strip()
    assert not any(piece in greedy for piece in ("ue ", "of "))
    calls = collect([event for stream in [found.reader()] for token in found.tokens() for event in stream.push(token)]).calls
    assert calls and all(json.loads(call.arguments) == {"s": payload} for call in calls)


@pytest.mark.parametrize("name", CALLS)
def test_markup_is_greedy_and_payload_is_drawn(name: str) -> None:
    """The scripted token is the likeliest everywhere, yet at this temperature it is drawn only now and then."""
    found = case(name, sharp=3.0)
    want = found.tokens()
    drawn = set()
    at = 4 * (name != "bare") + -(-len(CALLS[name][1].split("|")[0]) // 3)  # where payload begins
    for seed in range(12):
        one = found.session()
        one.sampler.noise = type(one.sampler.noise)(seed, 0, 0)
        one.sync([*one.tokens, *want[: at - 1]])  # up to the call's last token of markup, so that it is reached under every seed
        tokens_of(one, 13)
        got = one.tokens[N_PROMPT + at - 1 :]
        read = found.reader()
        for token in want[: at - 1]:
            read.push(token)
        for token, likeliest in zip(got, want[at - 1 :], strict=False):
            if read.is_syntax:
                assert token == likeliest
            drawn.add(token == likeliest)
            read.push(token)
            if token != likeliest:
                break  # the text has left the script
    assert drawn == {True, False}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("guess", [always_right, always_wrong, right_with(0.6), EveryLength(5)])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_blocks_that_cross_the_border_cost_no_row_and_change_no_token(name: str, guess: Guess, temperature: float) -> None:
    found = case(name, sharp=11.0)
    model = found.made.model
    plain = found.session(temperature)
    want = tokens_of(plain)
    crossed = 0
    for depth in (1, 3, 5):
        before = model.n_rows
        drafted = found.session(temperature, drafter=Scripted(plain.tokens, guess), depth=FixedDepth(depth))
        prompt_rows = model.n_rows - before
        assert prompt_rows == N_PROMPT - 1
        assert tokens_of(drafted) == want
        stats = drafted.stats
        assert stats.rows == stats.passes + stats.drafted  # one row for each token asked about: nothing twice
        assert model.n_rows - before == prompt_rows + stats.rows  # no replay, and the prompt was read once
        assert stats.accepted + stats.passes == len(want)
        crossed += stats.accepted
    assert crossed > 0 or guess is always_wrong


@pytest.mark.parametrize("name", CALLS)
def test_the_border_is_crossed_inside_a_block(name: str) -> None:
    """One block holds text, markup, payload and markup again, and every row of it is committed."""
    found = case(name, sharp=30.0)
    plain = found.session()
    want = tokens_of(plain)
    passes: list[tuple[int, int]] = []
    drafter = Scripted(plain.tokens, always_right)
    drafted = found.session(drafter=drafter, depth=FixedDepth(50), trace=lambda done: passes.append((done.pos, done.committed)))
    assert tokens_of(drafted) == want and passes[0][1] == min(51, len(want))


@pytest.mark.parametrize("name", CALLS)
def test_without_tool_mode_markup_is_drawn_too(name: str) -> None:
    found = case(name, sharp=3.0)
    want = found.tokens()
    plain = found.session(tool_mode=False)
    plain.sync([*plain.tokens, *want[:5]])
    assert tokens_of(plain, 8)[5:] != want[5:13]
