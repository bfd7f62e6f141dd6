"""The chat's commands and its bookkeeping, with typed lines from a list and a real small model."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ds4py.chat import Message, open_format
from ds4py.chat.grammar import Grammar, GrammarCompiler
from ds4py.cli.conversation import Conversation, after
from ds4py.cli.help import SLASH_COMMANDS
from ds4py.cli.opening import Opened
from ds4py.cli.prompting import Thinking
from ds4py.cli.repl import Repl
from ds4py.cli.speculating import Speculation
from ds4py.cli.terminal import Terminal
from ds4py.drafters import NgramSizes, SpecConfig, open_drafters
from ds4py.engine import Engine, EngineOptions, SessionOptions
from ds4py.engine.speculation import target_of
from ds4py.errors import ContextError, Ds4Error, UsageError
from ds4py.gguf import open_gguf
from ds4py.protocols import SamplingParams
from ds4py.tokenizer import PromptText, load_tokenizer

NOWHERE = Terminal(io.StringIO(), False, False)


@pytest.fixture(scope="module")
def opened(smollm2_path: Path) -> Opened:
    g = open_gguf(smollm2_path)
    return Opened(g, load_tokenizer(g), Engine.open(g, EngineOptions(n_ctx=512, threads=1)))


FRUITS = r'''root ::= "{\"fruits\":[" fruit "," fruit "],\"again\":true}"
fruit ::= "\"apple\"" | "\"pear\""'''


def talk(
    opened: Opened, stops: tuple[str, ...] = (), force: str = "", grammar: Grammar | None = None, temperature: float = 0.0
) -> Conversation:
    """A greedy conversation. `force`: only tokens that are single characters of it are drawn, at random."""
    chat = open_format(opened.g, opened.tokenizer)
    bias = {opened.tokenizer.encode(char)[0]: 100.0 for char in force}
    options = SessionOptions(SamplingParams(1.0 if force else temperature), bias=bias, seed=1, stop_ids=chat.stop_ids)
    return Conversation(opened, chat, options, [Message("system", "Be brief.")], Thinking(), stops, grammar)


class Lines:
    """An editor that types given lines; KeyboardInterrupt instances are raised."""

    def __init__(self, *lines: str | type[BaseException]) -> None:
        self._lines: Iterator[str | type[BaseException]] = iter(lines)

    def read(self) -> str:
        line = next(self._lines, EOFError)
        if isinstance(line, str):
            return line
        raise line


def chat(conversation: Conversation, *lines: str | type[BaseException], n_tokens: int = 6) -> str:
    """What the chat said on standard error."""
    log = io.StringIO()
    code = Repl(conversation, n_tokens, 8192, NOWHERE, Terminal(log, False, False)).run(Lines(*lines))
    assert code == 0
    return log.getvalue()


# --- turns ---------------------------------------------------------------------------------------------------------------


def test_the_second_turn_reads_only_what_is_new(opened: Opened) -> None:
    conversation = talk(opened)
    first = conversation.ask("Say hello.", 12, NOWHERE, NOWHERE)
    held = len(conversation.session.tokens)
    second = conversation.ask("Again.", 12, NOWHERE, NOWHERE)
    new = len(opened.tokenizer.encode_prompt(opened_tail(conversation)))
    assert first.fed > 15 and held > first.fed
    assert second.fed <= new + 2  # at most the last drawn token and a closing marker more
    assert [m.role for m in conversation.messages] == ["system", "user", "assistant", "user", "assistant"]


def opened_tail(conversation: Conversation) -> PromptText:
    """The part of the last prompt that the second turn added: closing marker, user turn, opening of the reply."""
    rendered = conversation.chat.render(conversation.messages[:-1])
    first = conversation.chat.render(conversation.messages[:-2], add_generation_prompt=False)
    return PromptText.plain(str(rendered)[len(str(first)) :])


def test_tokens_that_were_drawn_are_kept_though_their_text_is_cut_differently(opened: Opened) -> None:
    conversation = talk(opened, force="thean")
    conversation.ask("Say hello.", 10, NOWHERE, NOWHERE)
    assert len(opened.tokenizer.encode(conversation.messages[-1].content)) < 10  # letters encode back as longer tokens
    held = list(conversation.session.tokens)
    conversation.ask("Go on.", 1, NOWHERE, NOWHERE)
    assert conversation.session.tokens[: len(held)] == held


def test_a_warm_turn_answers_like_a_cold_one(opened: Opened) -> None:
    warm = talk(opened)
    warm.ask("Say hello.", 12, NOWHERE, NOWHERE)
    warm.ask("What is your name?", 12, NOWHERE, NOWHERE)
    cold = talk(opened)
    cold.messages += warm.messages[1:3]
    cold.ask("What is your name?", 12, NOWHERE, NOWHERE)
    assert cold.messages == warm.messages and warm.messages[-1].content


def test_an_edit_of_the_start_reads_again_and_loses_nothing(opened: Opened) -> None:
    conversation = talk(opened)
    conversation.ask("Say hello.", 8, NOWHERE, NOWHERE)
    conversation.messages[0] = Message("system", "Be very long.")
    turn = conversation.ask("Again.", 8, NOWHERE, NOWHERE)
    assert turn.fed > 20 and len(conversation.messages) == 5


def test_a_failed_turn_leaves_the_conversation_as_it_was(opened: Opened) -> None:
    conversation = talk(opened)
    conversation.ask("Say hello.", 4, NOWHERE, NOWHERE)
    before = list(conversation.messages)
    with pytest.raises(ContextError, match="the context holds 512"):
        conversation.ask("word " * 600, 4, NOWHERE, NOWHERE)
    assert conversation.messages == before
    assert conversation.ask("Again.", 4, NOWHERE, NOWHERE).generated > 0


def test_a_stop_text_is_no_part_of_the_conversation(opened: Opened) -> None:
    plain = talk(opened)
    plain.ask("Say hello.", 12, NOWHERE, NOWHERE)
    stop = plain.messages[-1].content.split()[1]
    stopped = talk(opened, stops=(stop,))
    turn = stopped.ask("Say hello.", 12, NOWHERE, NOWHERE)
    assert turn.end == "stop" and stop not in stopped.messages[-1].content
    assert plain.messages[-1].content.startswith(stopped.messages[-1].content)
    assert opened.tokenizer.decode(stopped.session.tokens).count(stop) == 0


@pytest.mark.parametrize(
    "segments, text, rest",
    [
        ((("<a>", True), ("hi", False), ("<b>", True)), "<a>hi", (("<b>", True),)),
        ((("<a>", True), ("hi", False), ("<b>", True)), "<a>", (("hi", False), ("<b>", True))),
        ((("<a>", True), ("hi there", False), ("<b>", True)), "<a>hi", None),
        ((("<a>", True), ("ho", False), ("<b>", True)), "<a>hi", None),
        ((("<a>", True), ("hi", False)), "<a>hi", None),
    ],
)
def test_what_follows_a_text(
    segments: tuple[tuple[str, bool], ...], text: str, rest: tuple[tuple[str, bool], ...] | None
) -> None:
    found = after(PromptText(segments), text)
    assert (None if found is None else found.segments) == rest


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_answer_obeys_the_grammar_with_drafts_on(opened: Opened, temperature: float) -> None:
    """Also after /reset, /ctx, an interrupted turn and an edit; drafts change nothing that exact sampling says."""
    grammar = GrammarCompiler(opened.tokenizer).compile("gbnf", FRUITS)
    config = SpecConfig(types=("ngram-map-k", "ngram-cache"), ngram_map_k=NgramSizes(2, 8), accept="exact", depth="fixed")
    speculation = Speculation(open_drafters(config, target_of(opened.engine, opened.g)))
    said = []
    for drafting in (None, speculation):
        conversation = talk(replace(opened, speculation=drafting), grammar=grammar, temperature=temperature)
        for line in ("Name a fruit twice.", "Again.", "/reset", "Name a fruit.", "/ctx 256", "And the same."):
            Repl(conversation, 40, 512, NOWHERE, NOWHERE).handle_line(line)
            if not line.startswith("/"):
                assert set(json.loads(conversation.messages[-1].content)) == {"fruits", "again"}
        conversation.messages[-2:] = []  # the last turn is taken back
        assert conversation.ask("Cut.", 3, NOWHERE, NOWHERE).end == "length"
        conversation.ask("And on.", 60, NOWHERE, NOWHERE)
        assert json.loads(conversation.messages[-1].content)["again"] is True
        said.append([message.content for message in conversation.messages])
    assert said[0] == said[1] and conversation.session.stats.accepted > 5


# --- commands --------------------------------------------------------------------------------------------------------------


def test_every_command_of_the_help_page_is_obeyed(opened: Opened, tmp_path: Path) -> None:
    repl = Repl(talk(opened), 2, 8192, NOWHERE, NOWHERE)
    (tmp_path / "f").write_text("Say hello.")
    arguments = {"/ctx": "256", "/read": str(tmp_path / "f")}
    for names, _ in SLASH_COMMANDS:
        for name in (words.split()[0] for words in names.split(", ")):
            try:
                repl.handle_line(f"{name} {arguments.get(name, '')}")
            except UsageError as error:
                assert "knows no thinking" in str(error), name  # what this model does not have


def test_help_and_status_and_reset(opened: Opened) -> None:
    said = chat(talk(opened), "/status", "hello", "/status", "/reset", "/status", "/help")
    assert "0 turns" in said and "1 turn\n" in said and "no turn yet" in said and "speed    prefill: " in said
    assert said.count("0 turns") == 2 and all(name in said for name, _ in SLASH_COMMANDS)


def test_errors_are_told_and_the_chat_goes_on(opened: Opened) -> None:
    lines = [
        "/nope",
        "/ct 5",
        "/ctx",
        "/ctx x",
        "/ctx 0",
        "/ctx 9000",
        "/read",
        "/read /no/such",
        "/power",
        "/steer 1",
        "/think 5",
        "/think",
    ]
    said = chat(talk(opened), *lines, "   ", "", "hello")
    for fragment in (
        "unknown command /nope; /help lists",
        "did you mean /ctx?",
        "from 1 to 8192",
        "/read needs a file name",
        "cannot read /no/such",
        "/power is not supported",
        "/steer is not in this build yet",
        "thinking levels come with",
        "knows no thinking",
        "generation: ",
    ):
        assert fragment in said
    assert said.count("ds4: ") == len(lines) + 1


def test_a_new_context_keeps_the_messages(opened: Opened) -> None:
    conversation = talk(opened)
    said = chat(
        conversation, "Say hello.", "/ctx 64", "/status", "Again.", "And now a lot more: " + "word " * 60, "/ctx 256", "Again."
    )
    assert "/64 tokens (0.0%), 1 turn" in said and "but the context holds 64" in said
    assert conversation.opened.engine.n_ctx == 256 and len(conversation.messages) == 7


def test_leaving(opened: Opened) -> None:
    conversation = talk(opened)
    chat(conversation, "/quit", "hello")
    chat(conversation, "/exit", "hello")
    chat(conversation, EOFError, "hello")
    chat(conversation, KeyboardInterrupt, KeyboardInterrupt, "hello")
    assert len(conversation.messages) == 1
    said = chat(conversation, KeyboardInterrupt, "hello", KeyboardInterrupt, "hello")
    assert len(conversation.messages) == 5 and said.count("once more") == 2


def test_ctrl_c_twice_in_a_turn_leaves(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = talk(opened)
    monkeypatch.setattr(conversation, "ask", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert chat(conversation, "hello", "unread") == "\n"


def test_a_bug_is_not_a_sentence(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = talk(opened)
    monkeypatch.setattr(conversation, "ask", lambda *_: (_ for _ in ()).throw(ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        chat(conversation, "hello")
    assert not issubclass(ZeroDivisionError, Ds4Error)


def test_a_ctrl_c_between_two_prompts_leaves_instead_of_killing(opened: Opened) -> None:
    """On a busy machine the second Ctrl-C came while the line about the first was still being written: exit code 130."""

    class Slow(Terminal):
        def say(self, line: str = "") -> None:
            super().say(line)
            if "once more" in line:
                raise KeyboardInterrupt

    log = io.StringIO()
    assert Repl(talk(opened), 6, 8192, NOWHERE, Slow(log, False, False)).run(Lines(KeyboardInterrupt, "unread")) == 0
    assert "once more" in log.getvalue()
