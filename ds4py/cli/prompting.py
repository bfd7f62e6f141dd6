"""From what the user gives to the token ids of a prompt, and to how its reply is read.

The idea: one `Prompt` for every mode, so `--dump-tokens` shows exactly what an answer would be made from. Chat text is rendered
by the model's format; `--raw` text and text that is a rendered chat already go to the tokenizer as they are. Only in the latter
case do markers that the user wrote count as markers: the user says so by writing the whole frame of a turn, and is told.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ds4py.chat import ChatFormat, Message, ReplyStream, open_format
from ds4py.cli.files import read_text
from ds4py.cli.parsing import Values
from ds4py.cli.prefix import turns
from ds4py.cli.terminal import Terminal
from ds4py.errors import Ds4Error, UsageError
from ds4py.gguf import GgufFile
from ds4py.tokenizer import PromptText, Tokenizer

_ESCAPES: Mapping[str, str] = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'", "0": "\0"}


@dataclass(frozen=True)
class Prompt:
    """Ids to read, the same as text with its markers spelled, and whether the reply begins inside reasoning."""

    ids: Sequence[int]
    text: str
    inside_thinking: bool = False


@dataclass(frozen=True)
class Thinking:
    """How much the model is asked to think: None leaves it to the model. effort: a word for `ChatFormat.effort_for`."""

    think: bool | None = None
    effort: str | None = None


THINKING: Mapping[str, Thinking] = {
    "--think": Thinking(True),
    "--think-max": Thinking(True, "max"),
    "--nothink": Thinking(False),
}


def prompt_text(values: Values) -> str | None:
    """-p, --prompt-file, or what is piped in (without its last newline); None = interactive chat."""
    if values.has("prompt"):
        text = values.text("prompt")
        return unescape(text) if values.flag("escape") else text
    if values.has("prompt_file"):
        return read_text(values.text("prompt_file"))
    if sys.stdin is not None and sys.stdin.isatty():
        return None
    text = read_text("-").removesuffix("\n")
    if not text.strip():
        raise UsageError(
            "standard input holds no prompt; pipe some text in, give one with -p, or start ds4 on a terminal to chat"
        )
    return text


def chat_format(values: Values, g: GgufFile, tokenizer: Tokenizer, log: Terminal) -> ChatFormat:
    """The model's own format or the template the user gives, with its note. FormatError for a broken template."""
    template = read_text(values.text("chat_template_file")) if values.has("chat_template_file") else None
    if values.has("chat_template"):
        template = values.text("chat_template")
        if "{" not in template:
            raise UsageError(
                f"--chat-template takes Jinja text, not a name such as {template!r}; --chat-template-file reads a file"
            )
    found = open_format(g, tokenizer, template)
    if found.note:
        log.say(f"ds4: {found.note}")
    return found


def thinking(values: Values, chat: ChatFormat, n_ctx: int, log: Terminal) -> Thinking:
    """The last of --think, --think-max and --nothink; a note if the model has nothing to switch, or no room for what is asked."""
    name = values.last_given(*THINKING)
    if name is None:
        return Thinking()
    if chat.think_tags is None and name != "--nothink":
        log.say(f"ds4: this model's chat format knows no thinking, so {name} changes nothing")
    if note := no_room(chat, THINKING[name], n_ctx):
        log.say(f"ds4: {note}")
    return THINKING[name]


def no_room(chat: ChatFormat, how: Thinking, n_ctx: int) -> str:
    """What to tell the user if a context of n_ctx positions is too small for the effort that is asked; else empty."""
    least = chat.max_effort_ctx
    if how.effort != "max" or n_ctx >= least:
        return ""
    return f"this model thinks its most only with a context of {least} positions (-c {least}); with {n_ctx} it thinks as usual"


def opening_messages(values: Values, chat: ChatFormat, log: Terminal) -> list[Message]:
    """The system prompt, if any, and the turns of --prefix-file. The default system prompt is left out, with a note, where the
    model's format refuses one."""
    found = [Message("system", values.text("system"))] if values.text("system") else []
    if found and not values.was_given("--system"):
        try:
            chat.render([*found, Message("user", "x")])
        except Ds4Error:
            log.say("ds4: this model's chat format takes no system prompt, so none is sent")
            found = []
    if values.has("prefix_file"):
        path = values.text("prefix_file")
        found += [Message(role, words) for role, words in turns(read_text(path), path)]
    return found


def raw_prompt(tokenizer: Tokenizer, text: str) -> Prompt:
    """`text` as it is, with BOS where the vocabulary wants one."""
    return Prompt(tokenizer.encode(text, add_bos=True), text)


def chat_prompt(tokenizer: Tokenizer, chat: ChatFormat, messages: Sequence[Message], how: Thinking, n_ctx: int) -> Prompt:
    rendered = chat.render(messages, think=how.think, effort=chat.effort_for(how.effort, n_ctx))
    return Prompt(tokenizer.encode_prompt(rendered), str(rendered), chat.opens_thinking(rendered))


def rendered_prompt(tokenizer: Tokenizer, chat: ChatFormat, text: str) -> Prompt | None:
    """The prompt if `text` is a whole chat in this model's own markers, up to where the assistant speaks; else None."""
    probe = chat.render([Message("user", "x")]).segments
    marks = [at for at, (_, is_control) in enumerate(probe) if is_control]
    if not marks:
        return None
    # A text may leave out BOS, which the tokenizer adds; in some vocabularies BOS is itself what opens a turn.
    bos = tokenizer.vocab.tokens[tokenizer.bos_id] if tokenizer.bos_id is not None else None
    openings = [probe[at][0] for at in marks[:2]] if probe[marks[0]][0] == bos else [probe[marks[0]][0]]
    speaks = "".join(part for part, _ in probe[marks[-1] :]).rstrip()
    body = text.lstrip()
    if not body.startswith(tuple(openings)) or speaks not in body:
        return None
    return Prompt(tokenizer.encode(text, add_bos=True, special=True), text, chat.opens_thinking(PromptText.plain(text)))


def reply_stream(tokenizer: Tokenizer, chat: ChatFormat | None, prompt: Prompt, stop_strings: Sequence[str]) -> ReplyStream:
    """How the ids of the reply become text; without a chat format everything is answer."""
    if chat is None:
        return ReplyStream(tokenizer, stop_strings=stop_strings)
    return ReplyStream(
        tokenizer,
        stop_ids=chat.stop_ids,
        stop_strings=(*chat.stop_strings, *stop_strings),
        think_tags=chat.think_tags,
        inside_thinking=prompt.inside_thinking,
    )


def unescape(text: str) -> str:
    r"""`\n`, `\t` and so on as the characters they name; an unknown escape stays as it is."""
    out, at = [], 0
    while at < len(text):
        known = _ESCAPES.get(text[at + 1 : at + 2]) if text[at] == "\\" else None
        out.append(text[at] if known is None else known)
        at += 1 if known is None else 2
    return "".join(out)
