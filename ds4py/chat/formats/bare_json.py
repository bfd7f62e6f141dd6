"""Calls that are bare JSON objects: Llama 3.1, 3.2 and 3.3, which write `{"name": ..., "parameters": {...}}` as a whole answer.

Nothing marks such a call, so an answer that begins with a brace (or a fence of code around one) is held until its name is known,
and it counts as a call only if that is the name of a tool that was given; anything else comes out as the text it is, as soon as
its first key is none that calls have. Several calls follow each other, separated by a semicolon, a comma or a line break. An
answer that begins otherwise has no calls in it. Until the name is known nothing is drawn greedily: it may be just an answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ds4py.chat.calls import (
    CallObject,
    CallParser,
    CallPart,
    ObjectState,
    Plain,
    function_of,
    joined,
    names_of,
    quoted,
    schema_of,
)
from ds4py.chat.events import CallEnd, CallStart
from ds4py.chat.formats.stepwise import Phase, Step, StepState, Stepwise

TAG: Final = "<|python_tag|>"
_BETWEEN: Final = " \t\r\n;,}"
_FENCE = re.compile(r"```(?:json|tool_call|tool_code)?[ \t]*\n\s*")
_MAYBE_FENCE = re.compile(r"`{1,3}\Z|```[a-z_]{0,9}[ \t]*\Z|```(?:json|tool_call|tool_code)?[ \t]*\n\s*\Z")
_KEYS: Final = frozenset({"name", "type", "function", "tool_call", "arguments", "parameters"})


@dataclass(frozen=True)
class BareState(StepState):
    """raw: an object whose name is not known yet, with what stands before it."""

    phase: Phase = Phase.START


class BareParser(Stepwise[BareState]):
    """A `CallParser`."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._names = frozenset(names_of(tools))
        self.state = BareState()

    @property
    def is_syntax(self) -> bool:
        state = self.state
        if state.phase is Phase.OBJECT:
            return not state.raw and not state.object.in_payload
        return state.phase is Phase.START and TAG.startswith(state.held) and len(state.held) >= 2

    def steps(self) -> Mapping[Phase, Step]:
        return {Phase.START: self._start, Phase.OBJECT: self._object, Phase.BETWEEN: self._between, Phase.TEXT: self._text}

    def flush(self) -> list[CallPart]:
        state, parts = self.state, list[CallPart]()
        self.state = replace(state, held="", raw="", phase=Phase.TEXT)
        if state.phase is Phase.OBJECT and not state.raw:
            body = CallObject(state.index, state.object)
            parts += [*body.cut(), CallEnd(state.index, False, state.n_seen)]
        elif state.phase is not Phase.BETWEEN and state.raw + state.held:  # behind a call only blanks and a fence are held
            parts.append(Plain(state.raw + state.held, state.n_seen - len(state.raw + state.held)))
        return joined(parts)

    def _start(self, text: str, parts: list[CallPart]) -> tuple[str, bool]:
        body = text.lstrip()
        tag = body.startswith(TAG)
        body = body.removeprefix(TAG).lstrip()
        if not body or (not tag and TAG.startswith(body)) or _MAYBE_FENCE.match(body):
            return text, True
        if fence := _FENCE.match(body):
            body = body[fence.end() :]
        if not body.startswith("{"):
            self.state = replace(self.state, phase=Phase.TEXT)
            return text, False
        self.state = replace(self.state, phase=Phase.OBJECT, raw=text[: len(text) - len(body)], object=ObjectState())
        return body, False

    def _object(self, text: str, parts: list[CallPart]) -> tuple[str, bool]:
        """One object, as a call once its name is one of the tools'; `raw` is never empty before."""
        body = CallObject(self.state.index, self.state.object)
        is_call = self.state.object.name is not None
        at = 0
        while at < len(text) and not body.state.done:
            events, n = body.feed(text[at:] if is_call else text[at])
            at += n
            if not is_call:
                self.state = replace(self.state, raw=self.state.raw + text[at - n : at])
                if body.state.is_value and body.state.key not in _KEYS:
                    return self.no_call(text[at:], parts)
            if events and isinstance(events[0], CallStart):
                if events[0].name not in self._names:
                    return self.no_call(text[at:], parts)
                is_call = True
                self.state = replace(self.state, raw="")
            parts += events
        self.state = replace(self.state, object=body.state)
        if not body.state.done:
            return "", False
        if not is_call:
            return self.no_call(text[at:], parts)
        end = self.state.n_seen - len(text) + at
        parts.append(CallEnd(self.state.index, True, end))
        self.state = replace(self.state, phase=Phase.BETWEEN, index=self.state.index + 1)
        return text[at:], False

    def _between(self, text: str, parts: list[CallPart]) -> tuple[str, bool]:
        body = text.lstrip(_BETWEEN)
        if not body or "```".startswith(body):
            return text, True
        if body.startswith("```"):
            body = body[3:].lstrip(_BETWEEN)
            if not body:
                return text, True
        if body.startswith("{"):
            self.state = replace(self.state, phase=Phase.OBJECT, raw=text[: len(text) - len(body)], object=ObjectState())
            return body, False
        self.state = replace(self.state, phase=Phase.TEXT)
        return text, False

    def _text(self, text: str, parts: list[CallPart]) -> tuple[str, bool]:
        parts.append(Plain(text, self.state.n_seen - len(text)))
        return "", False


@dataclass(frozen=True)
class BareCalls:
    """The `CallSyntax`."""

    markers: tuple[str, ...] = (TAG,)
    opener: str | None = None

    def parser(self, tools: Sequence[Mapping[str, Any]]) -> CallParser:
        return BareParser(tools)

    def begun(self, text: str) -> int | None:
        return None  # JSON in the middle of reasoning is just JSON

    def find(self, rendered: str, at: int) -> tuple[int, int] | None:
        """From the brace before `at` to the one that matches it."""
        start = rendered.rfind("{", 0, at)
        try:
            _, end = json.JSONDecoder().raw_decode(rendered, start) if start >= 0 else (None, -1)
        except (ValueError, RecursionError):
            return None
        return (start, end) if end > at else None

    def grammar(self, tools: Sequence[Mapping[str, Any]], parallel: bool, tokens: Mapping[str, int]) -> str:
        more = ' ("; " call)*' if parallel else ""
        rules = [f"start: call{more}", "call: " + " | ".join(f"f{i}" for i in range(len(tools)))]
        for i, tool in enumerate(tools):
            name = quoted(str(function_of(tool).get("name", "")))
            lead = quoted(f'{{"name": {name}, "parameters": ')
            rules += [f'f{i}: {lead} a{i} "}}"', f"a{i}: %json {json.dumps(dict(schema_of(tool)))}"]
        return "\n".join(rules)
