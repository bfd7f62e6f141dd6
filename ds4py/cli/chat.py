"""The `ds4` command: one model, and one of its modes.

The idea: a mode is chosen from the options and gets only what it needs. `--inspect` opens the file; `--dump-tokens` and
`--show-prompt` add the tokenizer and the chat format; everything else loads the model. Imports follow the same order, so `--help`
and a mistyped option answer before numpy is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ds4py.cli.argv import Scan
from ds4py.cli.entry import run_command
from ds4py.cli.parsing import Values, finish
from ds4py.cli.terminal import Terminal, open_terminal
from ds4py.errors import UsageError

if TYPE_CHECKING:
    from ds4py.chat import ChatFormat
    from ds4py.cli.opening import Opened
    from ds4py.cli.prompting import Prompt
    from ds4py.engine import SessionOptions
    from ds4py.gguf import GgufFile
    from ds4py.tokenizer import Tokenizer

COMMAND = "ds4"
_PROMPT_MODES = ("--show-prompt", "--dump-tokens", "--dump-logits", "--dump-logprobs", "--decode-consistency")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ds4; returns the exit code."""
    return run_command(COMMAND, argv, _run)


def _run(found: Scan) -> int:
    values = finish(COMMAND, found)
    if not any(values.has(key) for key in ("cpu_mask", "cpu_range")) and values.text("prio") == "0":
        return _run_mode(values)
    from ds4py.cli.placing import placed

    with placed(values):
        return _run_mode(values)


def _run_mode(values: Values) -> int:
    modes = (*_PROMPT_MODES, "--inspect", "--perplexity-file", "--imatrix-dataset")
    mode = next((name for name in modes if values.was_given(name)), "")
    if mode in _PROMPT_MODES and not (values.has("prompt") or values.has("prompt_file")):
        raise UsageError(f"{mode} needs a prompt: -p TEXT or --prompt-file FILE")
    whole = values.has("imatrix_dataset") and values.has("imatrix_out")
    if any(name.startswith("--imatrix") for name in values.given) and not whole:
        raise UsageError("an importance matrix needs both --imatrix-dataset FILE and --imatrix-out FILE")
    if values.has("chdir"):
        from ds4py.cli.files import change_directory

        change_directory(values.text("chdir"))
    out, log = open_terminal(sys.stdout, values.text("color")), open_terminal(sys.stderr, values.text("color"))
    if values.flag("list_devices"):
        from ds4py.cli.devices import device_lines

        for line in device_lines():
            out.say(line)
        return 0
    if values.texts("spec_type"):
        from ds4py.cli.speculating import asked_types

        asked_types(values)  # a name that nobody knows is told before a file is opened
    from ds4py.cli.opening import context_len, open_file

    if mode and mode != "--dump-logprobs":
        from ds4py.cli.speculating import say_ignored

        say_ignored(values, mode, log)
    g = open_file(values, log)
    if mode == "--inspect":
        from ds4py.cli.inspect import inspect

        inspect(g, values.integer("ctx"), out)
        return 0
    if mode == "--perplexity-file":
        return _perplexity(values, g, out, log)
    if mode == "--imatrix-dataset":
        from ds4py.cli.imatrix import collect_imatrix

        return collect_imatrix(values, g, log)
    return _prompted(values, g, mode, out, log) if mode else _answer(values, g, context_len(values, g, log), out, log)


def _answer(values: Values, g: GgufFile, n_ctx: int, out: Terminal, log: Terminal) -> int:
    """The usual modes: one shot, or the interactive chat."""
    from ds4py.cli.opening import open_tokenizer
    from ds4py.cli.prompting import prompt_text

    text = prompt_text(values)
    if text is None and values.flag("raw"):
        raise UsageError("--raw needs a prompt: -p TEXT, --prompt-file FILE or standard input")
    tokenizer = open_tokenizer(g, log)
    if text is None:
        return _chat(values, g, tokenizer, n_ctx, out, log)
    from ds4py.cli.constraint import constrained, constraint
    from ds4py.cli.oneshot import one_shot
    from ds4py.cli.speculating import say_opening

    chat, prompt = _prompt(values, g, tokenizer, text, n_ctx, log)
    _refuse_long(prompt, n_ctx)
    grammar = constraint(values, tokenizer)
    opened = _open(values, g, tokenizer, n_ctx, log)
    options = _session_options(values, opened, chat, log)
    if grammar is not None:
        options = constrained(options, grammar, prompt, opened, chat)
    say_opening(opened.speculation, options, log)
    try:
        return one_shot(opened, chat, prompt, options, _budget(values), values.texts("reverse_prompt"), out, log)
    finally:
        opened.close()


def _chat(values: Values, g: GgufFile, tokenizer: Tokenizer, n_ctx: int, out: Terminal, log: Terminal) -> int:
    from ds4py.cli import prompting
    from ds4py.cli.constraint import constraint
    from ds4py.cli.conversation import Conversation
    from ds4py.cli.line_editor import LineEditor
    from ds4py.cli.repl import Repl
    from ds4py.cli.speculating import say_opening

    chat = prompting.chat_format(values, g, tokenizer, log)
    messages, how = prompting.opening_messages(values, chat, log), prompting.thinking(values, chat, n_ctx, log)
    grammar = constraint(values, tokenizer)
    opened = _open(values, g, tokenizer, n_ctx, log)
    options = _session_options(values, opened, chat, log)
    conversation = Conversation(opened, chat, options, messages, how, values.texts("reverse_prompt"), grammar)
    say_opening(opened.speculation, options, log)
    log.say("ds4: /help lists the commands, Ctrl-D leaves")
    try:
        return Repl(conversation, _budget(values), opened.engine.model.n_ctx_train, out, log).run(LineEditor())
    finally:
        opened.close()


def _open(values: Values, g: GgufFile, tokenizer: Tokenizer, n_ctx: int, log: Terminal) -> Opened:
    """Load the model and what drafts for it."""
    from ds4py.cli.opening import Opened, open_engine
    from ds4py.cli.speculating import config_of, draft_file, open_speculation, rows_needed
    from ds4py.cli.streaming import preloaded

    config = config_of(values, log)
    engine = open_engine(values, g, n_ctx, log, rows_needed(config), draft_file(config))
    opened = Opened(g, tokenizer, engine, open_speculation(values, config, engine, g, log))
    preloaded(engine, log)
    return opened


def _prompt(
    values: Values, g: GgufFile, tokenizer: Tokenizer, text: str, n_ctx: int, log: Terminal
) -> tuple[ChatFormat | None, Prompt]:
    """(the chat format, unless --raw; the prompt made of `text`)."""
    from ds4py.chat import Message
    from ds4py.cli import prompting

    if values.flag("raw"):
        return None, prompting.raw_prompt(tokenizer, text)
    chat = prompting.chat_format(values, g, tokenizer, log)
    rendered = prompting.rendered_prompt(tokenizer, chat, text)
    if rendered is not None:
        log.say("ds4: the prompt is a rendered chat already; it is used as it is")
        return chat, rendered
    messages = [*prompting.opening_messages(values, chat, log), Message("user", text)]
    how = prompting.thinking(values, chat, n_ctx, log)
    return chat, prompting.chat_prompt(tokenizer, chat, messages, how, n_ctx)


def _prompted(values: Values, g: GgufFile, mode: str, out: Terminal, log: Terminal) -> int:
    """The diagnostic modes that take a prompt."""
    from ds4py.cli import dumps
    from ds4py.cli.answering import progress
    from ds4py.cli.files import result_file
    from ds4py.cli.opening import Opened, context_len, open_engine, open_tokenizer
    from ds4py.cli.prompting import prompt_text
    from ds4py.cli.speculating import say_opening

    tokenizer = open_tokenizer(g, log)
    text = prompt_text(values)
    assert text is not None  # these modes are refused without one
    _, prompt = _prompt(values, g, tokenizer, text, values.integer("ctx"), log)
    if mode == "--show-prompt":
        out.say(prompt.text)
        return 0
    if mode == "--dump-tokens":
        for line in dumps.token_lines(tokenizer, prompt.ids):
            out.say(line)
        return 0
    n_ctx = context_len(values, g, log)
    _refuse_long(prompt, n_ctx)
    shown = progress(log, f"processing {len(prompt.ids)} input tokens")
    if mode == "--decode-consistency":
        opened = Opened(g, tokenizer, open_engine(values, g, n_ctx, log))
        line, agrees = dumps.consistency_line(opened, prompt.ids, values.integer("decode_consistency"))
        out.say(line)
        return 0 if agrees else 1
    with result_file(values.text(mode.lstrip("-").replace("-", "_"))) as stream:
        if mode == "--dump-logits":
            dumps.write_logits(stream, Opened(g, tokenizer, open_engine(values, g, n_ctx, log)), prompt.ids, shown)
            return 0
        opened = _open(values, g, tokenizer, n_ctx, log)
        say_opening(opened.speculation, dumps.GREEDY, log)
        try:
            dumps.write_logprobs(stream, opened, prompt.ids, values.integer("logprobs_top_k"), _budget(values), shown)
        finally:
            opened.close()
    return 0


def _perplexity(values: Values, g: GgufFile, out: Terminal, log: Terminal) -> int:
    from ds4py.cli import dumps
    from ds4py.cli.answering import progress
    from ds4py.cli.files import read_text
    from ds4py.cli.opening import Opened, context_len, open_engine, open_tokenizer

    text = read_text(values.text("perplexity_file"))
    tokenizer = open_tokenizer(g, log)
    opened = Opened(g, tokenizer, open_engine(values, g, context_len(values, g, log), log))
    out.say(dumps.perplexity_line(opened, text, _budget(values), progress(log, "scoring")))
    return 0


def _session_options(values: Values, opened: Opened, chat: ChatFormat | None, log: Terminal) -> SessionOptions:
    from ds4py.cli import settings
    from ds4py.engine import SessionOptions

    params = settings.sampling(values, opened.g.architecture)
    seed, made_up = settings.seed(values)
    if made_up and params.temperature > 0:
        log.say(f"ds4: seed {seed}")
    return SessionOptions(
        params=params,
        penalties=settings.penalties(values),
        bias=settings.bias(values, opened.tokenizer),
        seed=seed,
        stop_ids=chat.stop_ids if chat is not None else opened.tokenizer.stop_ids,
    )


def _budget(values: Values) -> int | None:
    """Most tokens to generate; None = until the context is full."""
    return None if values.integer("tokens") == -1 else values.integer("tokens")


def _refuse_long(prompt: Prompt, n_ctx: int) -> None:
    """Refuse a prompt that the context cannot hold before minutes are spent on loading the model."""
    from ds4py.errors import ContextError

    if len(prompt.ids) > n_ctx:
        raise ContextError(f"the prompt has {len(prompt.ids)} tokens, but the context holds {n_ctx}: shorten it or raise --ctx")


if __name__ == "__main__":
    sys.exit(main())
