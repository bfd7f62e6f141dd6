"""Mistral's calls, behind the mark `[TOOL_CALLS]`: a list of objects, or a name and its arguments for each mark.

    [TOOL_CALLS] [{"name": "f", "arguments": {...}}, ...]           tokenizers up to version 7
    [TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{...}[TOOL_CALLS]g...      version 11; later ones have no id, some models no [ARGS]

The parser takes either, whichever a template writes. Ids that a model makes up are not told: the server gives better ones. The
answer may begin with text; what stands behind a mark and is no call comes out as text, the mark too.
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
    beginnings,
    function_of,
    joined,
    literal,
    quoted,
    schema_of,
)
from ds4py.chat.events import CallArguments, CallEnd, CallEvent, CallStart
from ds4py.chat.formats.stepwise import Phase, Step, StepState, Stepwise
from ds4py.chat.json_scan import WHITE, JsonState, advance

MARK: Final = "[TOOL_CALLS]"
ARGS: Final = "[ARGS]"
CALL_ID: Final = "[CALL_ID]"
_NAME: Final = r"[^\s\[\]{}\"]{1,200}"
_AN_ID: Final = r"[^\s\[\]{}]{0,80}"
_HEAD = re.compile(rf"(?P<name>{_NAME})\s*(?:\[CALL_ID\]{_AN_ID}\s*)?(?:\[ARGS\]\s*)?(?={{)")
_TO_ARGS: Final = (*map(re.escape, ARGS), r"\s*")
# A text that may yet become one.
_MAYBE_HEAD = re.compile(
    rf"{_NAME}\s*(?:{beginnings(*_TO_ARGS)}|{beginnings(*map(re.escape, CALL_ID), _AN_ID, chr(92) + 's*', *_TO_ARGS)})\Z"
)


@dataclass(frozen=True)
class MistralState(StepState):
    """in_list: the object at hand stands in a list; ended: where the last object of a list ended, if its CallEnd is due; json:
    where the scan of arguments is."""

    in_list: bool = False
    ended: int | None = None
    json: JsonState = JsonState()


class MistralParser(Stepwise[MistralState]):
    """A `CallParser`."""

    mark = MARK

    def __init__(self) -> None:
        self.state = MistralState()

    @property
    def is_syntax(self) -> bool:
        state = self.state
        match state.phase:
            case Phase.TEXT:
                return len(state.held.lstrip()) >= 2
            case Phase.OBJECT:
                return not state.object.in_payload
            case Phase.ARGS:
                return not state.json.in_text
        return True

    def steps(self) -> Mapping[Phase, Step]:
        return {
            Phase.TEXT: self.text,
            Phase.OPENED: self._opened,
            Phase.LIST: self._list,
            Phase.OBJECT: self._object,
            Phase.ARGS: self._args,
        }

    def flush(self) -> list[CallPart]:
        state, parts = self.state, list[CallPart]()
        self.state = replace(state, held="", raw="", phase=Phase.TEXT)
        self._end_due(parts, state.n_seen)
        if state.phase is Phase.ARGS:
            parts.append(CallEnd(state.index, False, state.n_seen))
        elif state.phase is Phase.OBJECT and state.object.name is not None:
            parts += [*CallObject(state.index, state.object).cut(), CallEnd(state.index, False, state.n_seen)]
        elif state.raw or (state.phase is Phase.TEXT and not (state.after_call and state.held.isspace())):
            self.plain(state.raw + state.held, 0, parts)
        return joined(parts)

    def _opened(self, text: str, parts: list[CallPart]) -> tuple[str, bool]:
        body = text.lstrip(WHITE)
        raw = self.state.raw + text[: len(text) - len(body)]
        if body.startswith("{"):
            self.state = replace(self.state, phase=Phase.OBJECT, raw=raw, in_list=False, object=ObjectState())
            return body, False
        if body.startswith("["):
            self.state = replace(self.state, phase=Phase.LIST, raw=raw + "[", in_list=True)
            return body[1:], False
        if head := _HEAD.match(body):
            parts.append(CallStart(self.state.index, head["name"]))
            self.state = replace(self.state, phase=Phase.ARGS, raw="", json=JsonState())
            return body[head.end() :], False
        if not body or _MAYBE_HEAD.match(body):
            return text, True
        return self.no_call(text, parts)

    def _list(self, text: str, parts: list[CallPart]) -> tuple[str, bool]:
        """Between the objects of a list, or after its bracket."""
        body = text.lstrip(WHITE + ",")
        if not body:
            return text, True
        fresh = bool(self.state.raw)  # no call has come yet
        closed = body.startswith("]") and not fresh
        self._end_due(parts, self.state.n_seen - len(body) + 1 if closed else self.state.ended or 0)
        if body.startswith("{"):
            raw = self.state.raw + text[: len(text) - len(body)]
            self.state = replace(self.state, phase=Phase.OBJECT, raw=raw, object=ObjectState())
            return body, False
        if fresh:
            return self.no_call(text, parts)
        self.state = replace(self.state, phase=Phase.TEXT, after_call=True)
        return body[1:] if closed else text, False

    def _end_due(self, parts: list[CallPart], end: int) -> None:
        """The last object of a list is over; its markup ended at `end`."""
        if self.state.ended is not None:
            parts.append(CallEnd(self.state.index, True, end))
            self.state = replace(self.state, index=self.state.index + 1, ended=None, after_call=True)

    def _object(self, text: str, parts: list[CallPart]) -> tuple[str, bool]:
        body = CallObject(self.state.index, self.state.object)
        events, n = body.feed(text)
        parts += events
        named = body.state.name is not None
        raw = "" if named else self.state.raw + text[:n]
        self.state = replace(self.state, object=body.state, raw=raw)
        if not body.state.done:
            return text[n:], False
        if not named:
            return self.no_call(text[n:], parts)
        if not self.state.in_list:
            return self._called(text[n:], parts)
        self.state = replace(self.state, phase=Phase.LIST, raw="", ended=self.state.n_seen - len(text) + n)
        return text[n:], False

    def _args(self, text: str, parts: list[CallPart]) -> tuple[str, bool]:
        """Arguments as they come, up to the brace that ends them."""
        scan, at = self.state.json, 0
        while at < len(text):
            scan = advance(scan, text[at])
            at += 1
            if not scan.depth:
                break
        event: CallEvent = CallArguments(self.state.index, text[:at])
        parts.append(event)
        self.state = replace(self.state, json=scan)
        return (text[at:], False) if scan.depth else self._called(text[at:], parts)

    def _called(self, rest: str, parts: list[CallPart]) -> tuple[str, bool]:
        """A call is complete; `rest` was fed behind it."""
        parts.append(CallEnd(self.state.index, True, self.state.n_seen - len(rest)))
        self.state = replace(self.state, phase=Phase.TEXT, index=self.state.index + 1, raw="", after_call=True)
        return rest, False


@dataclass(frozen=True)
class MistralCalls:
    """The `CallSyntax`. named: calls are forced as a name and arguments; call_id: with an id between them."""

    named: bool = False
    call_id: bool = False
    markers: tuple[str, ...] = (MARK, ARGS, CALL_ID)
    opener: str | None = MARK

    def parser(self, tools: Sequence[Mapping[str, Any]]) -> CallParser:
        return MistralParser()

    def begun(self, text: str) -> int | None:
        found = re.search(rf'\[TOOL_CALLS\]\s*(?:\[?\s*{{\s*"(?:name|arguments|id|type)"|{_NAME}\s*\[(?:ARGS|CALL_ID)\])', text)
        return found.start() if found else None

    def find(self, rendered: str, at: int) -> tuple[int, int] | None:
        """From the mark before `at` to the end of the list, or of the arguments behind the name."""
        start = rendered.rfind(MARK, 0, at)
        opening = re.compile(rf"{re.escape(MARK)}\s*(?=\[\s*{{)").match(rendered, start) if start >= 0 else None
        brace = opening.end() if opening else rendered.find("{", at)
        try:
            _, end = json.JSONDecoder().raw_decode(rendered, brace) if start >= 0 and brace >= 0 else (None, -1)
        except (ValueError, RecursionError):
            return None
        return (start, end) if end > at else None

    def grammar(self, tools: Sequence[Mapping[str, Any]], parallel: bool, tokens: Mapping[str, int]) -> str:
        mark = literal(MARK, tokens)
        more = f" ({mark} call)*" if self.named else ' (", " call)*'
        inside = f"call{more if parallel else ''}"
        rules = [f"start: {mark} {inside}" if self.named else f'start: {mark} "[" {inside} "]"']
        rules.append("call: " + " | ".join(f"f{i}" for i in range(len(tools))))
        for i, tool in enumerate(tools):
            name = str(function_of(tool).get("name", ""))
            if self.named:
                an_id = f"{literal(CALL_ID, tokens)} /[a-zA-Z0-9]{{9}}/ " if self.call_id else ""
                rules.append(f"f{i}: {quoted(name)} {an_id}{literal(ARGS, tokens)} a{i}")
            else:
                lead = quoted(f'{{"name": {quoted(name)}, "arguments": ')
                rules.append(f'f{i}: {lead} a{i} "}}"')
            rules.append(f"a{i}: %json {json.dumps(dict(schema_of(tool)))}")
        return "\n".join(rules)
