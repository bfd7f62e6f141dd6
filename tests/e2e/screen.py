"""A program on a pseudo-terminal: type, wait for text, press Ctrl-C. Standard library only."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence

ROWS, COLUMNS = 40, 120
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[()][0-9A-B]|\x1b[=>78]|\x1b\][^\x07]*\x07")


class Screen:
    """`text` is all that the program wrote so far, without escape sequences; `raw` is all of it."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            argv,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**env, "PROMPT_TOOLKIT_NO_CPR": "1"},
            cwd=cwd,
            start_new_session=True,
            preexec_fn=_own_terminal,
        )
        os.close(slave)
        self.raw = b""
        self._seen = 0  # end of the last match in `text`

    @property
    def text(self) -> str:
        return ESCAPES.sub("", self.raw.decode("utf-8", "replace")).replace("\r", "")

    def send(self, text: str) -> None:
        os.write(self.master, text.encode())

    def line(self, text: str) -> None:
        self.send(text + "\r")

    def expect(self, pattern: str, timeout: float = 60) -> str:
        """Wait for the regular expression after the last match; what stood before it. AssertionError if it does not come."""
        end = time.monotonic() + timeout
        while True:
            text = self.text
            found = re.compile(pattern).search(text, self._seen)
            if found is not None:
                before = text[self._seen : found.start()]
                self._seen = found.end()
                return before
            if time.monotonic() > end or not self._read(0.2):
                raise AssertionError(f"{pattern!r} did not come; after the last match the screen has {text[self._seen :]!r}")

    def wait(self, timeout: float = 30) -> int:
        """The exit code, when the program has ended."""
        end = time.monotonic() + timeout
        while self.process.poll() is None:
            if time.monotonic() > end:
                raise AssertionError(f"the program did not end; its screen ends with {self.text[-500:]!r}")
            self._read(0.1)
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self.master)

    def _read(self, seconds: float) -> bool:
        """Take what there is; False when the program has closed the terminal."""
        ready, _, _ = select.select([self.master], [], [], seconds)
        if not ready:
            return True
        try:
            data = os.read(self.master, 65536)
        except OSError:
            return False
        self.raw += data
        return bool(data)


def _own_terminal() -> None:
    """Make the pseudo-terminal the controlling one, so that Ctrl-C is a signal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
