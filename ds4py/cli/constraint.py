"""--grammar and --json-schema: an answer that can only be what a grammar allows.

The grammar is compiled before weights are read, since it is what a user most often mistypes, and joined with the session's other
settings once the prompt's length is known: it holds from the first token of the answer, or, where the answer begins inside
reasoning, from the token that closes it. It is for one answer; the interactive chat refuses it.
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
from ds4py.errors import UnsupportedError, UsageError
from ds4py.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ds4py.chat.grammar import Grammar

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


def constrained(
    options: SessionOptions, grammar: Grammar, prompt: Prompt, opened: Opened, chat: ChatFormat | None
) -> SessionOptions:
    """`options` with `grammar` on the answer to `prompt`."""
    inner = FixedSchedule(options.params, options.penalties, options.bias, opened.engine.model.vocab_size)
    after = None
    if prompt.inside_thinking and chat is not None and chat.think_tags is not None:
        closing = opened.tokenizer.encode(chat.think_tags.close, special=True)
        if len(closing) != 1:
            raise UnsupportedError(f"a grammar after reasoning needs {chat.think_tags.close} to be one token; add --nothink")
        after = closing[0]
    return replace(options, schedule=grammar.schedule(inner, len(prompt.ids), after))


def refuse_in_chat(values: Values) -> None:
    name = values.last_given(*_OPTIONS)
    if name is not None:
        raise UsageError(f"{name} is for one answer: give its prompt with -p, --prompt-file or standard input")
