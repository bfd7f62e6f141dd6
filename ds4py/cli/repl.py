"""The interactive chat: lines of the user are messages or slash commands.

A command is a row of `_COMMANDS`: name -> method. Nothing a user types ends the chat except /quit, Ctrl-D, or Ctrl-C twice at the
prompt; errors of a turn are told in one sentence and the conversation goes on from where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from ds4py.cli import help
from ds4py.cli.answering import Turn
from ds4py.cli.conversation import Conversation
from ds4py.cli.files import read_text
from ds4py.cli.oneshot import closing
from ds4py.cli.options import nearest
from ds4py.cli.prompting import THINKING, no_room
from ds4py.cli.speculating import keep_learned, say_closing
from ds4py.cli.terminal import Terminal
from ds4py.engine.statistics import tokens_per_pass
from ds4py.errors import Ds4Error, UsageError


class Editor(Protocol):
    def read(self) -> str: ...


class Repl:
    """Reads, answers, obeys, until the user leaves."""

    def __init__(self, conversation: Conversation, n_tokens: int | None, n_ctx_max: int, out: Terminal, log: Terminal) -> None:
        """n_ctx_max: the most that /ctx may ask, what the model was trained for."""
        self._conversation = conversation
        self._n_tokens = n_tokens
        self._n_ctx_max = n_ctx_max
        self._out = out
        self._log = log
        self._last: Turn | None = None
        self._leaving = False

    def run(self, editor: Editor) -> int:
        """The chat; returns the exit code."""
        kept = False
        try:
            self._converse(editor)
        except KeyboardInterrupt:  # between two prompts, where no editor takes it
            self._log.say()
        finally:
            kept = keep_learned(self._conversation.opened.speculation, self._conversation.session, self._log)
        say_closing(self._conversation.opened.speculation, self._conversation.session, self._log)
        return 0 if kept else 1

    def _converse(self, editor: Editor) -> None:
        """Lines until the user leaves."""
        hinted = False
        while not self._leaving:
            try:
                text = editor.read()
            except EOFError:
                break
            except KeyboardInterrupt:
                if hinted:
                    break
                self._log.say("(Ctrl-C once more, Ctrl-D or /quit leaves)")
                hinted = True
                continue
            hinted = False
            try:
                self.handle_line(text)
            except Ds4Error as error:
                self._log.say(f"ds4: {error}")
            except KeyboardInterrupt:  # the second Ctrl-C of a turn
                self._log.say()
                break

    def handle_line(self, text: str) -> None:
        """One input: a command if it begins with a slash, else a message; blank ones are nothing. Raises Ds4Error."""
        words = text.strip()
        if not words:
            return
        if words.startswith("/"):
            self._command(words)
        else:
            self._ask(text)

    def _command(self, words: str) -> None:
        name, _, argument = words.partition(" ")
        if name in _REFUSED:
            raise UsageError(_REFUSED[name])
        if name not in _COMMANDS:
            meant = nearest(name, _COMMANDS)
            raise UsageError(f"unknown command {name}" + (f"; did you mean {meant}?" if meant else "; /help lists the commands"))
        _COMMANDS[name](self, argument.strip())

    def _ask(self, text: str) -> None:
        turn = self._conversation.ask(text, self._n_tokens, self._out, self._log)
        self._last = turn
        if turn.end == "interrupted" and turn.generated == 0:
            self._log.say("ds4: stopped before anything was generated; your message was taken back")
        else:
            closing(turn, self._conversation.opened.engine, self._log)

    def _help(self, argument: str) -> None:
        self._log.say(help.slash_help(self._log))

    def _think(self, flag: str, argument: str) -> None:
        if argument:
            raise UsageError("thinking levels come with the DeepSeek V4.1 model; /think alone switches thinking on")
        if self._conversation.chat.think_tags is None:
            raise UsageError("this model's chat format knows no thinking")
        self._conversation.how = THINKING[flag]
        self._log.say("thinking " + {"--think": "on", "--think-max": "as much as the model offers", "--nothink": "off"}[flag])
        if note := no_room(self._conversation.chat, THINKING[flag], self._conversation.opened.engine.n_ctx):
            self._log.say(note)

    def _ctx(self, argument: str) -> None:
        if not argument.isascii() or not argument.isdigit() or not 1 <= int(argument) <= self._n_ctx_max:
            raise UsageError(f"/ctx takes a whole number from 1 to {self._n_ctx_max}, what this model was trained for")
        self._conversation.resize(int(argument))
        self._log.say(f"context {int(argument)}; the conversation is read again on the next turn")

    def _reset(self, argument: str) -> None:
        self._conversation.reset()
        self._log.say("a fresh conversation")

    def _read(self, argument: str) -> None:
        if not argument:
            raise UsageError("/read needs a file name")
        self._ask(read_text(argument))

    def _status(self, argument: str) -> None:
        conversation = self._conversation
        used, n_ctx = len(conversation.session.tokens), conversation.opened.engine.n_ctx
        turns = sum(message.role == "user" for message in conversation.messages)
        how = {None: "the model's default", True: "on", False: "off"}[conversation.how.think]
        self._log.say(f"model    {conversation.opened.g.path}")
        self._log.say(f"context  {used}/{n_ctx} tokens ({100 * used / n_ctx:.1f}%), {turns} turn{'s' if turns != 1 else ''}")
        self._log.say(f"thinking {how if conversation.chat.think_tags else 'not known to this model'}")
        stats = conversation.session.stats
        if stats.drafted:
            accepted = f"{stats.accepted} of {stats.drafted} tokens accepted"
            self._log.say(f"drafts   {accepted}, {tokens_per_pass(stats):.2f} tokens a pass")
        self._log.say(f"speed    {self._last.line().removeprefix('ds4: ') if self._last else 'no turn yet'}")

    def _quit(self, argument: str) -> None:
        self._leaving = True


_COMMANDS: Mapping[str, Callable[[Repl, str], None]] = {
    "/help": Repl._help,
    "/think": lambda repl, argument: repl._think("--think", argument),
    "/think-max": lambda repl, argument: repl._think("--think-max", argument),
    "/nothink": lambda repl, argument: repl._think("--nothink", argument),
    "/ctx": Repl._ctx,
    "/reset": Repl._reset,
    "/read": Repl._read,
    "/status": Repl._status,
    "/quit": Repl._quit,
    "/exit": Repl._quit,
}
_REFUSED: Mapping[str, str] = {
    "/power": "/power is not supported: a CPU run has no duty cycle to set; use -t to take fewer cores",
    "/steer": "/steer is not in this build yet: it comes with steering vectors",
}
