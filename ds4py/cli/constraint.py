"""--grammar and --json-schema: an answer that can only be what a grammar allows.

The grammar is compiled before weights are read, since it is what a user most often mistypes, and joined with the session's
other settings. It holds from the first token of the answer, or, where the answer begins inside reasoning, from the token that
closes it; in the interactive chat for every answer anew.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ds4py.chat import ChatFormat
from ds4py.cli.files import read_text
from ds4py.cli.opening import Opened
from ds4py.cli.parsing import Values
from ds4py.cli.prompting import Prompt
from ds4py.engine import SessionOptions
from ds4py.engine.schedule import FixedSchedule
from ds4py.errors import UnsupportedError
from ds4py.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ds4py.chat.grammar import Grammar, GrammarSchedule

# Option -> (kind of grammar, whether its value names a file).
_OPTIONS: Final = {
    "--grammar": ("gbnf", False),
    "--grammar-file": ("gbnf", True),
    "--json-schema": ("json_schema", False),
    "--json-schema-file": ("json_schema", True),
}


def constraint(values: Values, tokenizer: Tokenizer) -> Grammar | None:
    """The compiled grammar that was asked for, if any. Raises UsageError for one that cannot be obeyed."""
    name = values.last_given(*_OPTIONS)
    if name is None:
        return None
    from ds4py.chat.grammar import GrammarCompiler

    kind, is_file = _OPTIONS[name]
    text = values.text(name.lstrip("-").replace("-", "_"))
    return GrammarCompiler(tokenizer).compile(kind, read_text(text) if is_file else text)


def masked(options: SessionOptions, grammar: Grammar, opened: Opened) -> GrammarSchedule:
    """`grammar` over the settings of `options`, for one session of `opened`; `restart` tells it where an answer begins."""
    return grammar.schedule(FixedSchedule(options.params, options.penalties, options.bias, opened.engine.model.vocab_size), 0)


def answer_start(prompt: Prompt, tokenizer: Tokenizer, chat: ChatFormat | None) -> tuple[int, int | None]:
    """Where the grammar begins to hold in the answer to `prompt`: a position, and the token after which, if there is reasoning
    before the answer. Raises UnsupportedError where no single token ends that."""
    if not (prompt.inside_thinking and chat is not None and chat.think_tags is not None):
        return len(prompt.ids), None
    closing = tokenizer.encode(chat.think_tags.close, special=True)
    if len(closing) != 1:
        raise UnsupportedError(f"a grammar after reasoning needs {chat.think_tags.close} to be one token; add --nothink")
    return len(prompt.ids), closing[0]


def constrained(
    options: SessionOptions, grammar: Grammar, prompt: Prompt, opened: Opened, chat: ChatFormat | None
) -> SessionOptions:
    """`options` with `grammar` on the answer to `prompt`."""
    schedule = masked(options, grammar, opened)
    schedule.restart(*answer_start(prompt, opened.tokenizer, chat))
    return replace(options, schedule=schedule)
