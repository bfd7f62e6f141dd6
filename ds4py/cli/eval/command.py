"""`ds4-eval`: the entry point. Which of its duties it is asked for, and nothing loaded for the others."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ds4py.cli.argv import Scan
from ds4py.cli.entry import run_command
from ds4py.cli.parsing import Values, finish
from ds4py.cli.terminal import open_terminal

COMMAND = "ds4-eval"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ds4-eval; returns the exit code."""
    return run_command(COMMAND, argv, _run)


def _run(found: Scan) -> int:
    values = finish(COMMAND, found)
    return _measure(values) if values.flag("spec") else _ask(values)


def _measure(values: Values) -> int:
    if values.has("url"):
        from ds4py.cli.eval.serving import server_eval

        return server_eval(values)
    from ds4py.cli.eval.spec import spec_eval
    from ds4py.cli.opening import open_file, open_tokenizer

    log = open_terminal(sys.stderr)
    g = open_file(values, log)
    return spec_eval(g, open_tokenizer(g, log), values)


def _ask(values: Values) -> int:
    if values.flag("self_test_extractors"):
        return self_test_extractors()
    from ds4py.cli.eval.quiz import asked_of, listing, quiz, regrade

    if values.has("regrade_trace"):
        return regrade(values.text("regrade_trace"))
    if values.flag("list_cases"):
        print(listing(asked_of(values)))
        return 0
    if values.flag("validate_cases"):
        print(f"{len(asked_of(values))} questions can be asked and graded")
        return 0
    return quiz(values)


def self_test_extractors() -> int:
    """1 if an answer is read wrongly."""
    from ds4py.cli.eval.grading import SELF_TEST, self_test

    wrong = self_test()
    print("\n".join([*wrong, f"extractors: {len(SELF_TEST) - len(wrong)} of {len(SELF_TEST)} cases read right"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
