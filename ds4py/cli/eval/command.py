"""`ds4-eval`: the entry point. Which of its duties it is asked for, and nothing loaded for the others."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ds4py.cli.argv import Scan
from ds4py.cli.entry import run_command
from ds4py.cli.parsing import finish
from ds4py.cli.terminal import open_terminal
from ds4py.errors import UsageError

COMMAND = "ds4-eval"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ds4-eval; returns the exit code."""
    return run_command(COMMAND, argv, _run)


def _run(found: Scan) -> int:
    values = finish(COMMAND, found)
    if not values.flag("spec"):
        raise UsageError("what is to be evaluated? --spec measures drafting")
    if values.has("url"):
        from ds4py.cli.eval.serving import server_eval

        return server_eval(values)
    from ds4py.cli.eval.spec import spec_eval
    from ds4py.cli.opening import open_file, open_tokenizer

    log = open_terminal(sys.stderr)
    g = open_file(values, log)
    return spec_eval(g, open_tokenizer(g, log), values)


if __name__ == "__main__":
    sys.exit(main())
