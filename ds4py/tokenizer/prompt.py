"""Text in which what is control and what is not has been decided.

The idea: a prompt is made of template markers and of other people's words, and only who wrote a marker tells whether it may
become a control token. So chat formats hand over segments that carry this bit, and the tokenizer never has to guess from
spelling.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PromptText:
    """Segments (text, is_control) in order. A control segment is exactly the spelling of one special token; a plain one is text
    in which nothing becomes a special token, whatever it spells."""

    segments: tuple[tuple[str, bool], ...]

    @staticmethod
    def plain(text: str) -> PromptText:
        """All of `text` as plain text."""
        return PromptText(((text, False),) if text else ())

    def __str__(self) -> str:
        return "".join(text for text, _ in self.segments)
