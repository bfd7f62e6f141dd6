"""The frame every command runs in: help before anything slow, then failures turned into one sentence and an exit code.

This is the one place where an exception becomes text. `Ds4Error` prints its sentence; a usage error adds the usage line; a closed
pipe ends the program quietly; Ctrl-C that nobody handled ends it with 130. Anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from ds4py import __version__
from ds4py.cli import help
from ds4py.cli.argv import RefusedOption, Scan, scan
from ds4py.cli.terminal import discard, open_terminal, safe_streams
from ds4py.errors import Ds4Error, UsageError

INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended
BROKEN_PIPE = 141  # ... and for one whose reader went away


def run_command(command: str, argv: Sequence[str] | None, body: Callable[[Scan], int]) -> int:
    """Answer --help and --version, else `body` with the walked command line (`argv`, or the process's own); the exit code."""
    safe_streams()
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        try:
            code = _answer(command, scan(command, words), body)
            sys.stdout.flush()
            return code
        except Ds4Error as error:
            return _told(command, error)
    except BrokenPipeError:
        discard(sys.stdout)
        return BROKEN_PIPE
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except MemoryError:
        print(f"{command}: out of memory; a smaller -c or a smaller model needs less", file=sys.stderr)
        return 1


def _answer(command: str, found: Scan, body: Callable[[Scan], int]) -> int:
    if found.topic is not None:
        out = open_terminal(sys.stdout)
        text, note = help.page(command, found.topic, out)
        if note:
            print(f"{command}: {note}", file=sys.stderr)
        out.write(text)
        return 0
    if "--version" in found.given:
        print(f"{command} (ds4py) {__version__}")
        return 0
    return body(found)


def _told(command: str, error: Ds4Error) -> int:
    sys.stdout.flush()
    print(f"{command}: {error}", file=sys.stderr)
    if isinstance(error, UsageError) and not isinstance(error, RefusedOption):
        print(help.usage(command), file=sys.stderr)
    return error.exit_code
