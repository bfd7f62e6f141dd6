"""The `ds4-server` command: a model, or a script in its place, behind HTTP.

The order of things: what a user may have mistyped is checked first, then the address is taken (before a minute is spent on
loading), then the model is opened, and only when it can answer does the server listen. From there on everything is server/'s.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ds4py.cli.argv import Scan
from ds4py.cli.entry import run_command
from ds4py.cli.parsing import Values, finish
from ds4py.cli.terminal import Terminal, open_terminal
from ds4py.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from ds4py.cli.speculating import Speculation
    from ds4py.engine import Engine
    from ds4py.server.prompting import Defaults, Prompting
    from ds4py.server.worker import Served

COMMAND = "ds4-server"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ds4-server; returns the exit code."""
    return run_command(COMMAND, argv, _run)


def _run(found: Scan) -> int:
    values = finish(COMMAND, found)
    if values.has("chdir"):
        from ds4py.cli.files import change_directory

        change_directory(values.text("chdir"))
    log = open_terminal(sys.stderr, values.text("color"))
    try:
        from ds4py.server.listening import bind
    except ModuleNotFoundError as error:
        raise UnsupportedError(f"ds4-server needs {error.name}, which is not installed: pip install ds4py[server]") from error
    from ds4py.server.trace import RequestTrace

    trace = RequestTrace.open(values.text("trace")) if values.has("trace") else None
    at = bind(values.text("host"), values.integer("port"))
    try:
        served, closing = (_scripted if values.has("scripted") else _model)(values, log)
        try:
            return _serve(values, served, at, trace, log)
        finally:
            closing()
    finally:
        at.close()
        if trace is not None:
            trace.close()


def _serve(values: Values, served: Served, at: Any, trace: Any, log: Terminal) -> int:
    from ds4py.server.app import Settings, build
    from ds4py.server.guard import Access
    from ds4py.server.listening import server_of
    from ds4py.server.worker import Worker

    lock = threading.Lock()

    def say(line: str) -> None:
        with lock:
            log.say(f"{COMMAND}: {line}")

    access = Access(values.text("host"), _keys(values), values.flag("cors"))
    if not access.is_local and not access.keys:
        say(f"warning: whoever reaches {access.host} can use this server; --api-key KEY asks them for a key")
    worker = Worker(served, values.integer("cache_ram") << 20, values.integer("max_queue"), say, trace)
    worker.start()
    app = build(worker, Settings(access, values.integer("max_body_mb") << 20, int(time.time())), say)
    host, port = at.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{port}"
    say(f"{served.name}, context {served.engine.n_ctx}, listening at {url} (clients of OpenAI's APIs take {url}/v1)")
    server_of(app, leaving=lambda: worker.close(0.0)).run(sockets=[at])
    worker.close()
    say("stopped")
    return 0


def _keys(values: Values) -> tuple[str, ...]:
    """The keys of --api-key and --api-key-file. Raises UsageError for a file without one: it must not open the server to all."""
    given = values.texts("api_key")
    if any(not key for key in given):
        raise UsageError("--api-key needs a key, not an empty text")
    if not values.has("api_key_file"):
        return given
    from ds4py.cli.files import read_text

    path = values.text("api_key_file")
    lines = (line.strip() for line in read_text(path).splitlines())
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise UsageError(f"{path}: there is no key in this file; write one a line")
    return (*given, *keys)


def _model(values: Values, log: Terminal) -> tuple[Served, Callable[[], None]]:
    """(the model of -m, what closes it)."""
    from ds4py.cli import prompting as cli_prompting
    from ds4py.cli.opening import context_len, open_engine, open_file, open_tokenizer
    from ds4py.cli.speculating import asked_types, config_of, draft_file, open_speculation, rows_needed, say_opening
    from ds4py.cli.streaming import preloaded

    if values.texts("spec_type"):
        asked_types(values)  # a name that nobody knows is told before a file is opened
    g = open_file(values, log)
    tokenizer = open_tokenizer(g, log)
    chat = cli_prompting.chat_format(values, g, tokenizer, log)
    n_ctx = context_len(values, g, log)
    defaults = _defaults(values, g.architecture, cli_prompting.thinking(values, chat, n_ctx, log).think)
    config = config_of(values, log)
    engine = open_engine(values, g, n_ctx, log, rows_needed(config), draft_file(config))
    speculation = open_speculation(values, config, engine, g, log)
    preloaded(engine, log)
    name = values.text("alias") if values.has("alias") else g.path.name.removesuffix(".gguf")
    say_opening(speculation, None, log)
    made = _served(engine, _prompting(values, tokenizer, chat, engine, defaults), name, speculation)
    return made, lambda: _end(speculation, log)


def _scripted(values: Values, log: Terminal) -> tuple[Served, Callable[[], None]]:
    """(the replies of --scripted, what closes them). Drafts that need no files work as with a model."""
    from dataclasses import replace

    from ds4py.chat import open_format
    from ds4py.cli.speculating import config_of, open_speculation, say_opening
    from ds4py.server.scripted import open_script

    if values.was_given("--model") or values.was_given("--spec-draft-model"):
        raise UsageError("--scripted takes the place of a model: leave -m and -md out")
    script = open_script(values.text("scripted"), values.integer("ctx"))
    chat = open_format(script.file, script.tokenizer)
    defaults = _defaults(values, "scripted", False if values.flag("nothink") else None)
    defaults = replace(defaults, strict=False)  # a script says what is written, and its pieces are no tokens that a mask offers
    nothing: Any = None  # there is no model file, and drafts that would read one are refused above
    speculation = open_speculation(values, config_of(values, log), script.engine, nothing, log)
    say_opening(speculation, None, log)
    log.say(f"{COMMAND}: replies are those of {script.file.path}; no model is loaded")
    prompting = _prompting(values, script.tokenizer, chat, script.engine, defaults)
    name = values.text("alias") if values.has("alias") else "scripted"
    served = _served(script.engine, prompting, name, speculation)
    return replace(served, begin=script.begin), lambda: _end(speculation, log)


def _end(speculation: Speculation, log: Terminal) -> None:
    """Keep what drafters learned, and end the trace of drafts."""
    from ds4py.cli.speculating import keep_learned

    keep_learned(speculation, None, log)
    speculation.close()


def _served(engine: Engine, prompting: Prompting, name: str, speculation: Speculation) -> Served:
    from ds4py.engine.speculation import is_opportunistic, line
    from ds4py.server.worker import Served

    config = speculation.drafters.config
    return Served(
        engine,
        prompting,
        name,
        line(speculation.drafters),
        speculation.options,
        lambda options: is_opportunistic(options, config),
        speculation.learn,
        closing=lambda stats: speculation.closing_lines(stats, details=False),
    )


def _prompting(values: Values, tokenizer: Any, chat: Any, engine: Engine, defaults: Defaults) -> Prompting:
    from ds4py.server.prompting import Prompting
    from ds4py.server.replays import Replays

    replays = Replays(0 if values.flag("disable_exact_dsml_tool_replay") else values.integer("tool_memory_max_ids"))
    return Prompting(tokenizer, chat, engine.n_ctx, engine.model.vocab_size, replays, defaults)


def _defaults(values: Values, architecture: str, think: bool | None) -> Defaults:
    from ds4py.cli import settings
    from ds4py.server.prompting import Defaults

    budget = values.integer("reasoning_budget")
    return Defaults(
        params=settings.sampling(values, architecture),
        penalties=settings.penalties(values),
        think=False if budget == 0 and not values.was_given("--think") else think,
        think_tokens=budget if budget > 0 else None,
        max_tokens=None if values.integer("tokens") == -1 else values.integer("tokens"),
        seed=values.integer("seed") if values.integer("seed") > 0 else None,
        move_dates=not values.flag("system_as_is"),
    )


if __name__ == "__main__":
    sys.exit(main())
