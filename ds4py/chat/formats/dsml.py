"""DSML, DeepSeek's way to write tool calls: tags around a special mark, parameters of raw text or of JSON.

    <|DSML|tool_calls>
    <|DSML|invoke name="f">
    <|DSML|parameter name="path" string="true">a b</|DSML|parameter>
    <|DSML|parameter name="n" string="false">5</|DSML|parameter>
    </|DSML|invoke>
    </|DSML|tool_calls>

(with full-width bars). A string stands as it is up to its closing tag. So the one text that it cannot hold is that tag, which is
written with `&lt;` for its first character, and what looks like that already gets one more `amp;`: reading takes one level off,
and any text survives. Anything else is JSON, in which the tag begins with \\u003c. The invariant: what is written here is read
back by dsml_parser.py as the same arguments. Where there is nothing to escape, it is the vendor's text, byte for byte.

This module is the family's side for rendering, forcing and finding; `Dialect` holds the names, which later models change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ds4py.chat.calls import CallParser, function_of, quoted, schema_of
from ds4py.chat.messages import ToolCall

MARK: Final = "｜DSML｜"
_IN_NAMES: Final = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"))


@dataclass(frozen=True)
class Dialect:
    """Names of the tags, as they stand behind the mark."""

    calls: str = "tool_calls"
    invoke: str = "invoke"
    parameter: str = "parameter"

    @property
    def end_parameter(self) -> str:
        return f"</{MARK}{self.parameter}>"


V4: Final = Dialect()


# --- writing ---------------------------------------------------------------------------------------------------------------


Part = tuple[str, bool]  # text, and whether it is the syntax's own (else a name or a value)


def block(calls: Sequence[ToolCall], dialect: Dialect) -> str:
    """The calls of a turn, without what stands before them."""
    return "".join(text for text, _ in block_parts(calls, dialect))


def block_parts(calls: Sequence[ToolCall], dialect: Dialect) -> Iterator[Part]:
    """`block` in parts."""
    yield f"<{MARK}{dialect.calls}>\n", True
    for call in calls:
        yield from _invoke(call, dialect)
        yield "\n", True
    yield f"</{MARK}{dialect.calls}>", True


def _invoke(call: ToolCall, dialect: Dialect) -> Iterator[Part]:
    """One call; arguments that are no JSON object, as a broken history may have them, become one string. A call without any has
    an empty line, as the vendor writes it."""
    parsed = call.parsed()
    arguments = parsed if isinstance(parsed, dict) else {"arguments": parsed}
    yield from ((f'<{MARK}{dialect.invoke} name="', True), (escaped_name(call.name), False), ('">\n', True))
    for i, (name, value) in enumerate(arguments.items()):
        yield ("\n" if i else "") + f'<{MARK}{dialect.parameter} name="', True
        yield escaped_name(name), False
        yield f'" string="{"true" if isinstance(value, str) else "false"}">', True
        yield _value(value, dialect.end_parameter), False
        yield dialect.end_parameter, True
    yield f"\n</{MARK}{dialect.invoke}>", True


def _value(value: Any, end: str) -> str:
    if isinstance(value, str):
        return escaped(value, end)
    return json.dumps(value, ensure_ascii=False).replace(end, "\\u003c" + end[1:])


def escaped(text: str, closing: str) -> str:
    """`text` without the closing tag in it."""
    pattern = re.compile(rf"<{re.escape(closing[1:])}|&(?:amp;)*lt;{re.escape(closing[1:])}")
    return pattern.sub(lambda found: "&lt;" + closing[1:] if found[0] == closing else "&amp;" + found[0][1:], text)


def unescaped(text: str, closing: str) -> str:
    """`escaped` undone."""
    pattern = re.compile(rf"&((?:amp;)*)lt;{re.escape(closing[1:])}")
    return pattern.sub(lambda found: f"&{found[1][4:]}lt;{closing[1:]}" if found[1] else closing, text)


def escaped_name(name: str) -> str:
    for char, entity in _IN_NAMES:
        name = name.replace(char, entity)
    return name


def unescaped_name(name: str) -> str:
    for char, entity in reversed(_IN_NAMES):
        name = name.replace(entity, char)
    return name


# --- the family's syntax ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DsmlCalls:
    """The `CallSyntax`."""

    dialect: Dialect = V4
    markers: tuple[str, ...] = (MARK,)
    opener: str | None = f"<{MARK}"

    def parser(self, tools: Sequence[Mapping[str, Any]]) -> CallParser:
        from ds4py.chat.formats.dsml_parser import DsmlParser

        return DsmlParser(self.dialect, tools)

    def begun(self, text: str) -> int | None:
        found = re.search(rf'<{MARK}(?:{self.dialect.calls}>|{self.dialect.invoke} name=")', text)
        return found.start() if found else None

    def find(self, rendered: str, at: int) -> tuple[int, int] | None:
        """The whole block, since one turn's calls are never apart."""
        opening, closing = f"<{MARK}{self.dialect.calls}>", f"</{MARK}{self.dialect.calls}>"
        start, end = rendered.rfind(opening, 0, at), rendered.find(closing, at)
        return (start, end + len(closing)) if 0 <= start and end >= 0 else None

    def grammar(self, tools: Sequence[Mapping[str, Any]], parallel: bool, tokens: Mapping[str, int]) -> str:
        """The parameters of a tool in their schema's order; those that are not required may be left out. Line breaks belong to
        the tags before them: the lexer takes the longest word it can, so no two words may begin with one. The mark is spelled,
        since a value has to end at a spelling; files give the mark a type that masks do offer for its spelling."""
        d = self.dialect
        lead, end = quoted(f"\n\n<{MARK}{d.calls}>\n"), quoted(f"</{MARK}{d.calls}>")
        rules = [f"start: {lead} call{'+' if parallel else ''} {end}", "call: " + " | ".join(f"f{i}" for i in range(len(tools)))]
        for i, tool in enumerate(tools):
            rules += self._tool_rules(i, tool)
        return "\n".join(rules)

    def _tool_rules(self, i: int, tool: Mapping[str, Any]) -> Iterator[str]:
        d, schema = self.dialect, schema_of(tool)
        properties, required = schema.get("properties"), schema.get("required")
        name = escaped_name(str(function_of(tool).get("name", "")))
        uses = ""
        for j, (key, kind) in enumerate(properties.items() if isinstance(properties, Mapping) else ()):
            needed = isinstance(required, list) and key in required
            uses += f" p{i}_{j}{'' if needed else '?'}"
            yield from self._parameter_rules(f"p{i}_{j}", str(key), kind)
        opening, closing = quoted(f'<{MARK}{d.invoke} name="{name}">\n'), quoted(f"</{MARK}{d.invoke}>\n")
        yield f"f{i}: {opening}{uses} {closing}"

    def _parameter_rules(self, rule: str, key: str, kind: Any) -> Iterator[str]:
        end = quoted(self.dialect.end_parameter + "\n")
        is_text = is_string(kind)
        word = "true" if is_text else "false"
        lead = quoted(f'<{MARK}{self.dialect.parameter} name="{escaped_name(key)}" string="{word}">')
        choices = kind.get("enum") if isinstance(kind, Mapping) else None
        if not is_text:
            yield f"{rule}: {lead} v{rule} {end}"
            yield f"v{rule}: %json {json.dumps(kind)}"
        elif isinstance(choices, list) and choices and all(isinstance(choice, str) for choice in choices):
            texts = " | ".join(quoted(escaped(choice, self.dialect.end_parameter)) for choice in choices)
            yield f"{rule}: {lead} ({texts}) {end}"
        else:
            yield f"{rule}: {lead} v{rule}"
            yield f"v{rule}[suffix={end}]: /(.|\\n)*/"


def is_string(kind: Any) -> bool:
    """Whether a parameter's schema says that it is a string."""
    return isinstance(kind, Mapping) and kind.get("type") == "string"
