"""One prompt, one reply: standard output gets the generated text and nothing else, standard error the rest."""

from __future__ import annotations

from collections.abc import Sequence

from ds4py.chat import ChatFormat
from ds4py.cli.answering import Turn, take_turn
from ds4py.cli.entry import INTERRUPTED
from ds4py.cli.opening import Opened
from ds4py.cli.prompting import Prompt, reply_stream
from ds4py.cli.screen import Screen
from ds4py.cli.speculating import keep_learned, say_closing
from ds4py.cli.terminal import Terminal
from ds4py.engine import Engine, SessionOptions


def one_shot(
    opened: Opened,
    chat: ChatFormat | None,
    prompt: Prompt,
    options: SessionOptions,
    n_tokens: int | None,
    stop_strings: Sequence[str],
    out: Terminal,
    log: Terminal,
) -> int:
    """Answer and give the exit code. The closing line comes also after Ctrl-C, which keeps what was generated."""
    session = opened.session(options)
    stream = reply_stream(opened.tokenizer, chat, prompt, stop_strings)
    kept = False
    try:
        turn = take_turn(session, prompt.ids, n_tokens, Screen(out, stream, chat.think_tags if chat else None), log)
    finally:
        kept = keep_learned(opened.speculation, session, log)
    closing(turn, opened.engine, log)
    say_closing(opened.speculation, session, log)
    return INTERRUPTED if turn.end == "interrupted" else 0 if kept else 1


def closing(turn: Turn, engine: Engine, log: Terminal) -> None:
    """What is said on standard error after a reply."""
    if turn.end == "context":
        log.say(f"ds4: the context of {engine.n_ctx} tokens is full, so the answer ends here; a larger -c holds more")
    log.say(turn.line())
    counts = engine.expert_counts()
    if counts is not None:
        log.say(f"ds4: {counts.line()}")
