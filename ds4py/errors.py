"""What can go wrong, as sentences for the user.

Every exception that leaves a layer on purpose is one of these. Each carries one sentence (what, where, what to do) and the exit
code of the command line; `cli/` prints the sentence on stderr and exits with the code, without a traceback. Anything else that
escapes is a bug of ours and keeps its traceback.
"""

from __future__ import annotations


class Ds4Error(Exception):
    """Base of all deliberate failures; `str(error)` is the sentence shown to the user."""

    exit_code = 1


class UsageError(Ds4Error):
    """A flag, value or request that can never be obeyed: the caller must change it."""

    exit_code = 2


class FormatError(Ds4Error):
    """A file that is damaged, hostile or of a kind we do not read."""


class UnsupportedError(Ds4Error):
    """A sound file or request that needs something this build does not have (yet)."""


class ContextError(Ds4Error):
    """More tokens than the context holds; the sentence gives both numbers."""


class NumericError(Ds4Error):
    """NaN or infinite logits; the sentence gives the position."""


class ResourceError(Ds4Error):
    """Memory, disk or permission is missing; nothing was half-written."""
