"""Ctrl-C: the first asks, the second means it, and afterwards it is what it was."""

from __future__ import annotations

import os
import signal

import pytest

from ds4py.cli.interrupts import Interrupts, Stopped


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_only_asks() -> None:
    with Interrupts() as interrupts:
        interrupts.check()
        press()
        assert interrupts.asked
        with pytest.raises(Stopped):
            interrupts.check()


def test_the_second_is_a_keyboard_interrupt_and_the_old_meaning_comes_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Interrupts():
        press()
        press()
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        press()
