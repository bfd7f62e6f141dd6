"""The frame of every command: exit codes, one sentence, usage where it helps."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ds4py import __version__
from ds4py.cli.chat import main
from ds4py.cli.entry import run_command
from ds4py.errors import ContextError, FormatError, UsageError

USAGE = "usage: ds4 [(-p PROMPT | --prompt-file FILE)] [options]\ntry 'ds4 --help'\n"

# argv, exit code, start of standard error, whether the usage follows
TABLE = [
    (["--bogus"], 2, "ds4: unknown option --bogus\n", True),
    (["--promt", "x"], 2, "ds4: unknown option --promt; did you mean --prompt?\n", True),
    (["--temp", "nan"], 2, "ds4: --temp must be a number of at least 0, not 'nan'\n", True),
    (["--top-p", "7"], 2, "ds4: --top-p must be a number from 0 to 1, not '7'\n", True),
    (["-p", "a", "--perplexity-file", "b"], 2, "ds4: --prompt and --perplexity-file cannot be used together", True),
    (["--dump-tokens"], 2, "ds4: --dump-tokens needs a prompt", True),
    (["--mtp"], 2, "ds4: --mtp is not in this build yet: it comes with the built-in MTP drafter\n", False),
    (["--rocm"], 2, "ds4: --rocm is not supported: there is no ROCm backend here", False),
    (["--server"], 2, "ds4: --server is not supported: serving is another command, ds4-server\n", False),
    (["-m", "/no/such.gguf", "-p", "x"], 1, "ds4: /no/such.gguf: no such file\n", False),
    (["--chdir", "/no/such", "-p", "x"], 1, "ds4: cannot change to /no/such: No such file or directory\n", False),
]


@pytest.mark.parametrize("argv, code, sentence, usage", TABLE)
def test_failures(capsys: pytest.CaptureFixture[str], argv: list[str], code: int, sentence: str, usage: bool) -> None:
    assert main(argv) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(sentence)
    assert err.endswith(USAGE) == usage and err.count("\n") == 1 + 2 * usage


def test_as_a_process() -> None:
    for argv, code, sentence, _ in (TABLE[0], TABLE[6], TABLE[9]):
        ran = subprocess.run(
            [sys.executable, "-m", "ds4py.cli.chat", *argv], capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert (ran.returncode, ran.stdout) == (code, "") and ran.stderr.startswith(sentence)


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: ds4")
    assert main(["--help", "cooking"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: ds4") and err.startswith("ds4: no help topic 'cooking'; topics are all, runtime,")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ds4 (ds4py) {__version__}\n"


@pytest.mark.parametrize(
    "error, code",
    [(UsageError("u"), 2), (FormatError("f"), 1), (ContextError("c"), 1), (KeyboardInterrupt(), 130), (MemoryError(), 1)],
)
def test_exceptions_become_codes(capsys: pytest.CaptureFixture[str], error: BaseException, code: int) -> None:
    def fail(_: object) -> int:
        raise error

    assert run_command("ds4", [], fail) == code
    assert "Traceback" not in capsys.readouterr().err


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run_command("ds4", [], lambda _: 1 // 0)
