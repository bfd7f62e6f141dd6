"""How much of a session a new prompt can keep, told by text rather than by tokens.

A reply is in its session as the tokens that were drawn; rendered again, its text may be cut into others, and comparing tokens
would lose the conversation from there on. So both sides are spelled as bytes in which a marker token is no text (0xFF and its id;
0xFF occurs in no UTF-8), and the session keeps its own tokens as far as the spellings agree, up to a marker: text is cut into
tokens between markers, so what lies before one does not depend on what comes behind. Where the whole session is the beginning of
the prompt, it may also end between two of the prompt's segments. The invariant: the tokens that result spell the prompt.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from ds4py.tokenizer import PromptText, Tokenizer


@dataclass(frozen=True)
class Spelling:
    """`data`, and where each token or segment ends in it."""

    data: bytes
    ends: Sequence[int]


def spell_tokens(tokenizer: Tokenizer, tokens: Sequence[int]) -> Spelling:
    markers = frozenset(tokenizer.vocab.markers.values())
    return _joined([_marker(token) if token in markers else tokenizer.token_bytes(token) for token in tokens])


def spell_prompt(tokenizer: Tokenizer, prompt: PromptText, first: int) -> Spelling:
    """`first`: the prompt's first token, which may be a BOS that the text does not spell."""
    markers = tokenizer.vocab.markers
    parts = [_marker(markers[text]) if is_control else _valid(text) for text, is_control in prompt.segments]
    spelled = _joined(parts)
    bos = _marker(first) if first == tokenizer.bos_id else b""
    if not bos or spelled.data.startswith(bos):
        return spelled
    return Spelling(bos + spelled.data, [len(bos) + end for end in spelled.ends])


def continued(
    tokenizer: Tokenizer, tokens: Sequence[int], session: Spelling, prompt: PromptText, spelled: Spelling
) -> tuple[int, list[int]]:
    """(how many of `tokens` the prompt keeps, the prompt's ids that begin with them)."""
    n = n_kept(tokenizer, tokens, session, spelled)
    return n, resumed(tokenizer, tokens[:n], session, prompt, spelled) if n else []


def n_kept(tokenizer: Tokenizer, tokens: Sequence[int], session: Spelling, spelled: Spelling) -> int:
    """How many of a session's tokens a prompt keeps: as far as the spellings agree, up to a marker, or all of them where the
    session ends between segments. It costs no encoding, for it is asked of every session."""
    common = common_len(session.data, spelled.data)
    markers = frozenset(tokenizer.vocab.markers.values())
    whole = len(tokens)
    if whole and session.ends[-1] <= common and session.ends[-1] in spelled.ends:
        return whole
    for n in range(bisect_right(session.ends, common), 0, -1):
        if tokens[n - 1] in markers or (n < whole and tokens[n] in markers and session.ends[n] <= common):
            return n
    return 0


def resumed(
    tokenizer: Tokenizer, kept: Sequence[int], session: Spelling, prompt: PromptText, spelled: Spelling
) -> list[int]:
    """The prompt's ids, beginning with the `kept` tokens of the session (see `n_kept`; not none)."""
    at = session.ends[len(kept) - 1]
    first = len(spelled.ends) - len(prompt.segments)  # a BOS that was put in front has no segment
    rest = [segment for segment, end in zip(prompt.segments, spelled.ends[first:], strict=True) if end > at]
    return [*kept, *tokenizer.encode_prompt(PromptText(tuple(rest)), add_bos=False)]


def common_len(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix of two values of one type."""
    n = min(len(a), len(b))
    low, step = 0, 4096
    while low < n:
        if a[low : low + step] == b[low : low + step]:
            low += step
            continue
        return next(i for i in range(low, n + 1) if i == n or a[i] != b[i])
    return n


def _marker(token: int) -> bytes:
    return b"\xff" + token.to_bytes(4, "big")


def _valid(text: str) -> bytes:
    """UTF-8 of `text` as the tokenizer reads it: half surrogates are U+FFFD."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode("utf-8")


def _joined(parts: Sequence[bytes]) -> Spelling:
    ends, at = [], 0
    for part in parts:
        at += len(part)
        ends.append(at)
    return Spelling(b"".join(parts), ends)
