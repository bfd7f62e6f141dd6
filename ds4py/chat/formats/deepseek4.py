"""DeepSeek V4's own format: the vendor's prompts byte for byte, and token for token.

The release has no Jinja template but a program, so this is written against its published tests (tests/golden). The rules:

* Turns have no separators. An assistant's turn is its header, then `</think>` if it did not think, or `<think>reasoning</think>`,
  then text and calls, then EOS.
* Thinking is on unless it is switched off. Where no tools are in play, reasoning of turns before the user's last is dropped, and
  those turns look as if they had not thought; with tools everything stays.
* Messages and results of tools in a row are one user turn, parted by blank lines, results in the order of the calls.
* The description of tools, and the schema of the answer, follow the system text (or that of the message that brings them).
* A prefix for effort comes first of all. There are two revisions of the model with the same architecture and other words for
  effort; the file's name, its `checkpoint_variant`, or the number of drafting blocks in its metadata tells which it is.

Text from messages never becomes a marker (FC-13). Two spellings in it would break the frame although they are no tokens: the tag
that ends a parameter (dsml.py) and the one that ends a result; they are written with `&lt;`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ds4py.chat.calls import CallSyntax, function_of
from ds4py.chat.formats.base import ThinkTags
from ds4py.chat.formats.deepseek4_text import (
    ASSISTANT,
    BOS,
    EFFORTS,
    END_THINK,
    EOS,
    REMINDER,
    RESPONSE,
    RESULT,
    TASKS,
    THINK,
    USER,
    around_tools,
)
from ds4py.chat.formats.dsml import MARK, V4, DsmlCalls, block_parts, escaped
from ds4py.chat.messages import Message, ToolCall, separated
from ds4py.errors import UsageError
from ds4py.tokenizer import Matcher, PromptText, Tokenizer
from ds4py.tokenizer.vocab import MetadataFile

ARCHITECTURE: Final = "deepseek4"
_WORDS: Final = ("minimal", "low", "medium", "high", "xhigh", "max")


def open_deepseek4(file: MetadataFile, tokenizer: Tokenizer) -> DeepSeek4Format | None:
    """The format of a DeepSeek V4 file, None for another; a vocabulary without the turn markers is none of its own."""
    if file.kv.get("general.architecture") != ARCHITECTURE:
        return None
    if not {BOS, EOS, USER, ASSISTANT, THINK, END_THINK} <= tokenizer.vocab.markers.keys():
        return None
    return DeepSeek4Format(tokenizer, revision(file))


def revision(file: MetadataFile) -> str:
    """Which model it is, "preview" (April) or "0731": a word in the file or its name, or one drafting block against three."""
    names = [str(file.kv.get(key, "")) for key in (f"{ARCHITECTURE}.checkpoint_variant", "general.name", "general.version")]
    told = " ".join([*names, Path(file.path).name, Path(file.path).resolve().name]).lower()
    if "0731" in told or "vision" in told:
        return "0731"
    ratios, n_layers = (file.kv.get(f"{ARCHITECTURE}.{key}") for key in ("attention.compress_ratios", "block_count"))
    n_drafting = len(ratios) - n_layers if isinstance(n_layers, int) and isinstance(ratios, Sequence) else 0
    return "0731" if n_drafting == 3 else "preview"


@dataclass(frozen=True)
class _Turn:
    """Messages that are written together: several of the user's side, or one of another role. thought: an assistant's turn shows
    its reasoning."""

    messages: tuple[Message, ...]
    thought: bool

    @property
    def role(self) -> str:
        return self.messages[0].role

    @property
    def task(self) -> str | None:
        return self.messages[-1].task


class DeepSeek4Format:
    """A `ChatFormat`; immutable."""

    name = "deepseek-v4"
    note: str | None = None
    think_tags: ThinkTags | None = ThinkTags(THINK, END_THINK, trims=False)
    call_syntax: CallSyntax = DsmlCalls()
    stop_strings: tuple[str, ...] = ()
    max_effort_ctx = 393_216  # ds4's rule

    def __init__(self, tokenizer: Tokenizer, revision: str) -> None:
        self.revision = revision
        self.stop_ids = tokenizer.stop_ids
        self._markers = tokenizer.markers

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        think: bool | None = None,
        effort: str | None = None,
        response_schema: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> PromptText:
        """See ChatFormat.render. effort: one of minimal, low, medium, high, xhigh, max."""
        thinks = think is not False
        given = [separated(message, THINK, END_THINK) for message in messages]
        if tools or response_schema:
            given = _with_extras(given, tuple(tools), response_schema)
        out = _Writer(self._markers)
        out.control(BOS)
        if thinks:
            out.plain(self._prefix(effort))
        before: _Turn | None = None
        for turn in _turns(given, thinks):
            if turn.role == "assistant":
                _write_answer(out, turn, header=before is None or before.task is None)
            else:
                _write_asking(out, turn, thinks)
            before = turn
        if add_generation_prompt and (before is None or before.task is None):
            out.control(ASSISTANT)
            out.control(THINK if thinks else END_THINK)
        return out.text()

    def effort_for(self, asked: str | None, n_ctx: int) -> str | None:
        """See ChatFormat.effort_for: only the highest is more than usual thinking, and only where there is room for it."""
        return "max" if asked == "max" and n_ctx >= self.max_effort_ctx else None

    def opens_thinking(self, prompt: PromptText) -> bool:
        """See ChatFormat.opens_thinking."""
        return str(prompt).endswith(THINK)

    def _prefix(self, effort: str | None) -> str:
        if effort is not None and effort not in _WORDS:
            raise UsageError(f"this model knows no effort {effort!r:.40}; it knows {', '.join(_WORDS)}")
        return EFFORTS[self.revision].get(effort or "", "")


# --- which turns there are -------------------------------------------------------------------------------------------------


def _with_extras(
    messages: Sequence[Message], tools: tuple[Mapping[str, Any], ...], schema: Mapping[str, Any] | None
) -> list[Message]:
    """`messages` with what a request offers and asks of all of them, in the system text."""
    first, rest = (messages[0], messages[1:]) if messages and messages[0].role == "system" else (Message("system"), messages)
    return [replace(first, tools=(*first.tools, *tools), response_schema=schema or first.response_schema), *rest]


def _turns(messages: Sequence[Message], thinks: bool) -> Iterator[_Turn]:
    """The turns to write. Without tools, what lies before the last message of the user's side loses its reasoning, and
    developers' messages there go."""
    with_tools = any(message.tools or message.tool_calls or message.role == "tool" for message in messages)
    last_asked = max((i for i, message in enumerate(messages) if message.role in ("user", "developer")), default=-1)
    asking: list[Message] = []
    order: dict[str, int] = {}  # of the last turn's calls
    for i, message in enumerate(messages):
        old = thinks and not with_tools and i < last_asked
        if old and message.role == "developer":
            continue
        if asking and (message.role not in ("user", "tool") or asking[-1].task is not None):
            yield _asking(asking, order)
            asking = []
        if message.role in ("user", "tool"):
            asking.append(message)
            continue
        if message.role == "assistant":
            order = {call.id: place for place, call in enumerate(message.tool_calls) if call.id}
        yield _Turn((message,), thinks and not old)
    if asking:
        yield _asking(asking, order)


def _asking(messages: Sequence[Message], order: Mapping[str, int]) -> _Turn:
    """A turn of the user's side. Results are put in the order of the calls where all of them say which call they answer."""
    results = [message for message in messages if message.role == "tool"]
    ids = [message.tool_call_id or "" for message in results]
    if len(set(ids)) == len(ids) and set(ids) <= order.keys():
        results.sort(key=lambda message: order[message.tool_call_id or ""])
    in_order = iter(results)
    return _Turn(tuple(next(in_order) if message.role == "tool" else message for message in messages), False)


# --- writing them ----------------------------------------------------------------------------------------------------------


class _Writer:
    """Segments in the making: neighbouring plain text is one segment, as it is for the model's own tokenizer."""

    def __init__(self, markers: Matcher) -> None:
        self._markers = markers
        self._segments: list[tuple[str, bool]] = []

    def plain(self, text: str) -> None:
        if text and self._segments and not self._segments[-1][1]:
            self._segments[-1] = (self._segments[-1][0] + text, False)
        elif text:
            self._segments.append((text, False))

    def control(self, marker: str) -> None:
        self._segments.append((marker, True))

    def ours(self, text: str) -> None:
        """Text of the format itself, in which markers are meant."""
        for part, token in self._markers.split(text):
            if token is None:
                self.plain(part)
            else:
                self.control(part)

    def drawn(self, text: PromptText) -> None:
        for part, is_control in text.segments:
            if is_control:
                self.control(part)
            else:
                self.plain(part)

    def text(self) -> PromptText:
        return PromptText(tuple(self._segments))


def _write_asking(out: _Writer, turn: _Turn, thinks: bool) -> None:
    """A system text, a reminder, or a turn of the user's side."""
    if turn.role != "system":
        out.control(REMINDER if turn.role == "latest_reminder" else USER)
    for i, message in enumerate(turn.messages):
        out.plain("\n\n" if i else "")
        if message.role == "tool":
            opening, closing = RESULT
            out.plain(opening + escaped(message.content, closing) + closing)
        else:
            out.plain(message.content)
        _write_extras(out, message)
    if turn.task is None:
        return
    if turn.task not in TASKS:
        raise UsageError(f"this model knows no task {turn.task!r:.40}; it knows {', '.join(TASKS)}")
    if turn.task == "action":
        out.control(ASSISTANT)
        out.control(THINK if thinks else END_THINK)
    out.control(TASKS[turn.task])


def _write_extras(out: _Writer, message: Message) -> None:
    if message.tools:
        before, behind = around_tools(MARK)
        out.ours("\n\n" + before)
        out.plain("\n".join(json.dumps(dict(function_of(tool)), ensure_ascii=False) for tool in message.tools))
        out.ours(behind)
    if message.response_schema is not None:
        out.plain(f"\n\n{RESPONSE}{json.dumps(dict(message.response_schema), ensure_ascii=False)}")


def _write_answer(out: _Writer, turn: _Turn, header: bool) -> None:
    """An assistant's turn; without a header behind a task, whose own marker is one."""
    (message,) = turn.messages
    if header:
        out.control(ASSISTANT)
        if turn.thought:
            out.control(THINK)
            out.plain(message.reasoning or "")
        out.control(END_THINK)
    if message.sampled is not None:
        out.drawn(message.sampled)
    else:
        out.plain(message.content)
        if message.tool_calls:
            _write_calls(out, message.tool_calls)
    out.control(EOS)


def _write_calls(out: _Writer, calls: Sequence[ToolCall]) -> None:
    """Calls, of which only the tags hold markers: what their names and values spell stays text."""
    out.plain("\n\n")
    for text, is_ours in block_parts(calls, V4):
        if is_ours:
            out.ours(text)
        else:
            out.plain(text)
