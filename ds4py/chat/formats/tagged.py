"""Calls between `<tool_call>` and `</tool_call>`: Qwen, Hermes models, GLM, and formats that are described in the prompt.

Inside the tags stands a JSON object with a name and arguments, or the `<function=NAME>` dialect, or GLM's keys and values (both
in xml_call.py). Models drift from one into the other, so the parser takes any, whichever was described. It is lenient where the
meaning is plain: closing tags may be missing, braces doubled, several objects may share a pair of tags; an answer that begins
with the bare object, as small models write it, is read as bare_json.py does. Blank text around calls belongs to the markup. What
stands between tags and is no call comes out as text, tags and all.
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
    literal,
    names_of,
    quoted,
    schema_of,
)
from ds4py.chat.events import CallEnd, CallEvent
from ds4py.chat.formats.bare_json import BareParser, BareState
from ds4py.chat.formats.stepwise import Phase, Step, StepState, Stepwise
from ds4py.chat.formats.xml_call import ARG_KEY, ARGS, FUNCTION, MAYBE_ARGS, XML, Place, XmlBody, XmlState

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
_BEGUN = re.compile(rf'{OPEN}\s*(?:\{{\s*"(?:name|type|function|arguments)"|{FUNCTION}|[^\s<{{}}]+\s*{ARG_KEY})')


@dataclass(frozen=True)
class TagState(StepState):
    xml: XmlState = XmlState()


class TagParser(Stepwise[TagState]):
    """A `CallParser`."""

    mark = OPEN

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._tools = tools
        self.state = TagState()

    @property
    def is_syntax(self) -> bool:
        state = self.state
        match state.phase:
            case Phase.TEXT:
                return len(state.held.lstrip()) >= 2 and not state.held.isspace()
            case Phase.OBJECT:
                return not state.object.in_payload
            case Phase.XML | Phase.ARGS:
                return not self._xml_body().in_payload
        return state.phase is not Phase.OTHER

    def steps(self) -> Mapping[Phase, Step]:
        return {
            Phase.TEXT: self.text,
            Phase.OPENED: self._opened,
            Phase.OBJECT: self._object,
            Phase.XML: self._xml,
            Phase.ARGS: self._xml,
            Phase.OTHER: self._other,
            Phase.AFTER: self._after,
        }

    def flush(self) -> list[CallPart]:
        state, parts = self.state, list[CallPart]()
        self.state = replace(state, held="", raw="", phase=Phase.TEXT)
        if state.phase is Phase.TEXT:
            if not (state.after_call and state.held.isspace()):
                self.plain(state.held, 0, parts)
        elif state.phase is Phase.AFTER:
            parts.append(CallEnd(state.index, True, state.n_seen - len(state.held)))
        elif state.phase is Phase.OBJECT and state.object.name is not None:
            body = CallObject(state.index, state.object)
            parts += [*body.cut(), CallEnd(state.index, False, state.n_seen)]
        elif state.phase in (Phase.XML, Phase.ARGS) and state.xml.name is not None:
            xml = self._xml_body(state)
            parts += [*xml.cut(), CallEnd(state.index, xml.done, state.n_seen)]
        else:
            self.plain(state.raw + state.held, 0, parts)
        return joined(parts)

    def _opened(self, text: str, parts: list[CallPart]) -> tuple[str, bool]:
        body = text.lstrip()
        raw = self.state.raw + text[: len(text) - len(body)]
        self.state = replace(self.state, raw=raw)
        if body.startswith("{"):
            self.state = replace(self.state, phase=Phase.OBJECT, object=ObjectState())
        elif body.startswith(FUNCTION):
            self.state = replace(self.state, phase=Phase.XML, xml=XmlState())
        elif (head := ARGS.head.match(body)) and (body.startswith(ARG_KEY, head.end()) or head["name"] in names_of(self._tools)):
            self.state = replace(self.state, phase=Phase.ARGS, xml=XmlState())
        elif not body or FUNCTION.startswith(body) or (head is None and MAYBE_ARGS.match(body)):
            return body, True
        else:
            self.state = replace(self.state, phase=Phase.OTHER)
        return body, False

    def _xml_body(self, state: TagState | None = None) -> XmlBody:
        state = state or self.state
        return XmlBody(state.index, self._tools, state.xml, XML if state.phase is Phase.XML else ARGS)

    def _object(self, text: str, parts: list[CallPart]) -> tuple[str, bool]:
        body = CallObject(self.state.index, self.state.object)
        events, n = body.feed(text)
        self._take(events, text[:n], parts)
        self.state = replace(self.state, object=body.state)
        if body.state.done:
            self._body_ended(body.state.name is not None, parts, len(text) - n)
        return text[n:], False

    def _xml(self, text: str, parts: list[CallPart]) -> tuple[str, bool]:
        body = self._xml_body()
        events, n = body.feed(text)
        self._take(events, text[:n], parts)
        self.state = replace(self.state, xml=body.state)
        if body.done:
            self._body_ended(True, parts, len(text) - n)
        return text[n:], self.state.xml.place is not Place.DONE

    def _take(self, events: list[CallEvent], text: str, parts: list[CallPart]) -> None:
        parts += events
        named = bool(events) or not self.state.raw
        self.state = replace(self.state, raw="" if named else self.state.raw + text)

    def _body_ended(self, is_call: bool, parts: list[CallPart], n_left: int) -> None:
        """The object or function is complete; n_left characters were fed behind it."""
        if is_call:
            self.state = replace(self.state, phase=Phase.AFTER)
            return
        raw = self.state.raw
        self.state = replace(self.state, phase=Phase.TEXT, raw="")
        self.plain(raw, n_left + len(raw), parts)

    def _other(self, text: str, parts: list[CallPart]) -> tuple[str, bool]:
        at = text.find(CLOSE)
        if at < 0:
            n_tag = next((n for n in range(min(len(CLOSE) - 1, len(text)), 0, -1) if CLOSE.startswith(text[-n:])), 0)
            self.state = replace(self.state, raw=self.state.raw + text[: len(text) - n_tag])
            return text[len(text) - n_tag :], True
        end = at + len(CLOSE)
        self.state = replace(self.state, raw=self.state.raw + text[:end])
        self._body_ended(False, parts, len(text) - end)
        return text[end:], False

    def _after(self, text: str, parts: list[CallPart]) -> tuple[str, bool]:
        body = text.lstrip(" \t\r\n}],")
        if not body or (CLOSE.startswith(body) and body != CLOSE):
            return body, True
        closed = len(CLOSE) if body.startswith(CLOSE) else 0
        parts.append(CallEnd(self.state.index, True, self.state.n_seen - len(body) + closed))
        another = body.startswith("{")
        self.state = replace(
            self.state,
            phase=Phase.OBJECT if another else Phase.TEXT,
            index=self.state.index + 1,
            object=ObjectState(),
            after_call=True,
        )
        return body[closed:], False


class LenientParser:
    """A `CallParser`: bare objects at the start of an answer, tags behind them."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._bare, self._tags = BareParser(tools), TagParser(tools)

    @property
    def state(self) -> tuple[BareState, TagState]:
        return self._bare.state, self._tags.state

    @state.setter
    def state(self, state: tuple[BareState, TagState]) -> None:
        self._bare.state, self._tags.state = state

    @property
    def is_syntax(self) -> bool:
        return self._bare.is_syntax or self._tags.is_syntax

    def feed(self, text: str) -> list[CallPart]:
        return self._through(self._bare.feed(text))

    def flush(self) -> list[CallPart]:
        return joined([*self._through(self._bare.flush()), *self._tags.flush()])

    def _through(self, parts: list[CallPart]) -> list[CallPart]:
        """`parts`, with the texts among them searched for tags."""
        out: list[CallPart] = []
        for part in parts:
            if not isinstance(part, Plain):
                out.append(part)
                continue
            behind, index = self._bare.state.index, self._tags.state.index
            if self._tags.state.n_seen != part.at:  # the first text behind bare calls
                self._tags.state = replace(self._tags.state, n_seen=part.at, index=max(behind, index), after_call=behind > 0)
            out += self._tags.feed(part.text)
        return joined(out)


@dataclass(frozen=True)
class TaggedCalls:
    """The `CallSyntax`. xml: calls are described, and forced, in the `<function=` dialect; glm: in GLM's, with what stands
    between a call's tags ("\\n" in 4.5 and 4.6, nothing later)."""

    xml: bool = False
    glm: str | None = None
    markers: tuple[str, ...] = (OPEN, CLOSE)
    opener: str | None = OPEN

    def parser(self, tools: Sequence[Mapping[str, Any]]) -> CallParser:
        return LenientParser(tools)

    def begun(self, text: str) -> int | None:
        found = _BEGUN.search(text)
        return found.start() if found else None

    def find(self, rendered: str, at: int) -> tuple[int, int] | None:
        start, end = rendered.rfind(OPEN, 0, at), rendered.find(CLOSE, at)
        return (start, end + len(CLOSE)) if 0 <= start and end >= 0 else None

    def grammar(self, tools: Sequence[Mapping[str, Any]], parallel: bool, tokens: Mapping[str, int]) -> str:
        more = ' ("\\n" call)*' if parallel else ""
        rules = [f"start: call{more}", "call: " + " | ".join(f"f{i}" for i in range(len(tools)))]
        rules += [f"{name}: {literal(tag, tokens)}" for name, tag in (("open", OPEN), ("close", CLOSE))]
        for i, tool in enumerate(tools):
            rules += (
                _xml_rules(i, tool) if self.xml else _json_rules(i, tool) if self.glm is None else _glm_rules(i, tool, self.glm)
            )
        return "\n".join(rules)


def _json_rules(i: int, tool: Mapping[str, Any]) -> list[str]:
    name = quoted(str(function_of(tool).get("name", "")))
    lead = quoted(f'\n{{"name": {name}, "arguments": ')
    return [f'f{i}: open {lead} a{i} "}}\\n" close', f"a{i}: %json {json.dumps(dict(schema_of(tool)))}"]


def _xml_rules(i: int, tool: Mapping[str, Any]) -> list[str]:
    opening = quoted(f"\n{FUNCTION}{function_of(tool).get('name', '')}>\n")
    rules, uses = _parameter_rules(i, tool, "<parameter={}>\n", "\n</parameter>\n")
    return [f'f{i}: open {opening}{uses} "</function>\\n" close', *rules]


def _glm_rules(i: int, tool: Mapping[str, Any], gap: str) -> list[str]:
    opening = quoted(f"{function_of(tool).get('name', '')}{gap}")
    rules, uses = _parameter_rules(i, tool, f"{ARG_KEY}{{}}</arg_key>{gap}<arg_value>", f"</arg_value>{gap}")
    return [f"f{i}: open {opening}{uses} close", *rules]


def _parameter_rules(i: int, tool: Mapping[str, Any], lead: str, end: str) -> tuple[list[str], str]:
    """(rules of the parameters of tool i, their uses in its own rule). lead: what stands before a value, with a place for the
    key; end: what stands behind it. Those that are not required may be left out."""
    schema = schema_of(tool)
    properties = schema.get("properties")
    required = schema.get("required")
    needed = set(required) if isinstance(required, list) else set()
    rules, uses = list[str](), ""
    for j, (key, kind) in enumerate(properties.items() if isinstance(properties, Mapping) else ()):
        is_text = not isinstance(kind, Mapping) or kind.get("type", "string") == "string"
        before, value = quoted(lead.format(key)), f"v{i}_{j}"
        uses += f" p{i}_{j}{'' if key in needed else '?'}"
        if is_text:
            rules += [f"p{i}_{j}: {before} {value}", f"{value}[suffix={quoted(end)}]: /(.|\\n)*/"]
        else:
            rules += [f"p{i}_{j}: {before} {value} {quoted(end)}", f"{value}: %json {json.dumps(kind)}"]
    return rules, uses
