"""How many tokens to draft next.

A depth policy sees counts and seconds and answers one number; it may give up drafting for good. It can cost or gain time but
never changes text: a verify of any length commits the same tokens (accept.py). So, unlike everything else in the loop, a policy
may look at the clock.
"""

from __future__ import annotations

from ds4py.errors import UsageError


class FixedDepth:
    """Always the same depth: for tests, measurements and users who know what they want."""

    def __init__(self, depth: int) -> None:
        if depth < 0:
            raise UsageError(f"draft depth must be 0 (no drafts) or a count of tokens, not {depth}")
        self._depth = depth

    def depth(self) -> int:
        return self._depth

    def record(self, drafted: int, accepted: int, seconds: float) -> None:
        pass
