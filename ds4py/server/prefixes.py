"""Several conversations kept warm, under one budget of bytes.

Clients mix conversations: a request for a title, a side question, two programs at once. With one session each of them would throw
the other's prompt away. So sessions are kept, and a request goes on with the one that shares most with it. Where it only shares
the beginning (the system text, say) and would destroy the rest, it gets a twin of that beginning instead, or an empty session.
When the budget is exceeded the one that was used longest ago goes, never the one at work. Nothing here changes an answer: what
is not shared is read again.

The places for what is to come: a store on disk would be asked when nothing here shares enough, and told when something goes;
batches of sessions would take several of these at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ds4py.engine import Engine, Session, SessionOptions
from ds4py.server.spelling import Spelling, common_len, n_kept, resumed, spell_prompt, spell_tokens
from ds4py.tokenizer import PromptText, Tokenizer

_FEW: Final = 256  # tokens that may be lost without a second thought, and fewer than which are not worth copying
_MOST: Final = 32  # sessions


@dataclass(eq=False)
class Kept:
    """A session, the most tokens it ever held (its memory stays used), and when it was last at work."""

    session: Session
    high: int = 0
    used: int = 0
    spelled: Spelling | None = None
    drafts_decide: bool | None = None  # the kind of drafter it has; None: none yet


@dataclass(frozen=True)
class _Shared:
    """What a session has of a prompt: tokens that are equal, and tokens of its own that spell the prompt's beginning."""

    kept: Kept
    equal: int
    alike: int


@dataclass(frozen=True)
class Taken:
    """The session for a request, and the request's ids as this session can best go on with them: it has `shared` of them."""

    kept: Kept
    ids: Sequence[int]
    shared: int


class Prefixes:
    """The kept sessions of one engine; used by its thread alone."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, budget_bytes: int) -> None:
        self._engine, self._tokenizer, self._budget = engine, tokenizer, budget_bytes
        self._all: list[Kept] = []
        self._clock = 0

    @property
    def n_sessions(self) -> int:
        return len(self._all)

    @property
    def n_bytes(self) -> int:
        return int(sum(kept.high * self._bytes_each(kept) for kept in self._all))

    def take(self, ids: Sequence[int], prompt: PromptText | None) -> Taken:
        """A session for the prompt `ids`, which `prompt` spells (None: it has no text)."""
        ids = list(ids)
        spelled = spell_prompt(self._tokenizer, prompt, ids[0]) if prompt is not None else None
        found = [self._shared(kept, ids, spelled) for kept in self._all]
        most = max(found, key=lambda shared: (max(shared.equal, shared.alike), shared.kept.used), default=None)
        best = self._taken(most, ids, prompt, spelled) if most is not None else None
        if best is None or (self._loses(best) and self._make_room(len(ids), best.kept)):
            best = self._another(ids, best)
        self._clock += 1
        best.kept.used = self._clock
        best.kept.spelled = None
        return best

    def give_back(self, kept: Kept) -> None:
        """The request is over: count its memory, and make room if that is too much."""
        kept.high = max(kept.high, len(kept.session.tokens))
        self._make_room(0, kept)

    def drop(self, kept: Kept) -> None:
        """Forget a session that cannot be trusted any more."""
        if kept in self._all:
            self._all.remove(kept)

    def _shared(self, kept: Kept, ids: list[int], spelled: Spelling | None) -> _Shared:
        """What `kept` has of a prompt. This is asked of every session for every request, so it encodes nothing."""
        equal = common_len(kept.session.tokens, ids)
        if spelled is None:
            return _Shared(kept, equal, 0)
        if kept.spelled is None:
            kept.spelled = spell_tokens(self._tokenizer, kept.session.tokens)
        return _Shared(kept, equal, n_kept(self._tokenizer, kept.session.tokens, kept.spelled, spelled))

    def _taken(self, shared: _Shared, ids: list[int], prompt: PromptText | None, spelled: Spelling | None) -> Taken:
        """The prompt by the session's own tokens as far as texts agree, or by equal tokens if those are more."""
        kept = shared.kept
        if prompt is not None and spelled is not None and kept.spelled is not None and shared.alike > shared.equal:
            own = resumed(self._tokenizer, kept.session.tokens[: shared.alike], kept.spelled, prompt, spelled)
            if len(own) < self._engine.n_ctx:
                return Taken(kept, own, shared.alike)
        return Taken(kept, ids, shared.equal)

    def _loses(self, taken: Taken) -> bool:
        """Whether going on with it would destroy more than a little of another conversation."""
        return len(taken.kept.session.tokens) - taken.shared > _FEW

    def _make_room(self, n_tokens: int, spare: Kept) -> bool:
        """Forget the sessions used longest ago, but `spare`, until n_tokens more fit the budget; whether they do."""
        needed = n_tokens * self._bytes_each(spare)
        while self.n_bytes + needed > self._budget or len(self._all) >= _MOST:
            others = [kept for kept in self._all if kept is not spare]
            if not others:
                return False
            self._all.remove(min(others, key=lambda kept: kept.used))
        return True

    def _another(self, ids: Sequence[int], best: Taken | None) -> Taken:
        """One more session: a twin of what `best` shares, if that is worth a copy and can be gone back to, or an empty one."""
        copies = best is not None and best.shared > _FEW and best.kept.session.state.floor <= best.shared
        if best is not None and copies:
            made = Kept(best.kept.session.twin())
            made.session.rewind(best.shared)
        else:
            made = Kept(self._engine.session(SessionOptions()))
        made.high = len(made.session.tokens)
        self._all.append(made)
        return Taken(made, best.ids if best is not None and copies else ids, best.shared if best is not None and copies else 0)

    def _bytes_each(self, kept: Kept) -> float:
        return kept.session.state.n_bytes / max(kept.session.state.n_ctx, 1)
