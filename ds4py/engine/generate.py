"""THE loop: draft, verify, accept, commit.

One pass of the loop, for one session or several:

    propose   each session's drafter guesses what follows its last token (or nothing: then this is plain decoding)
    verify    one forward call evaluates, for every session, the last token and its draft; a row of logits comes out for each
    accept    each session's rule walks its rows left to right, choosing the token at each position, while the draft holds
    commit    every timeline is cut to what was chosen, and the tokens join the session's list

Nothing is undone and nothing is replayed. A session's state ends one token before its token list, so the verify starts with the
token that plain decoding would evaluate next. On the row path a row's bits do not depend on the other rows of the call, so row
i is what plain decoding would have computed if it had come this far, and the walk reads it only if it would have. The token at
a position is a pure function of that row and the position. Hence the text, the logits and the state after a pass are those of
plain decoding, bit for bit, whatever was drafted; a drafter decides only how many passes it takes.

Rows of a draft that failed lie past the new end of the timelines, where everything is garbage by definition; the next forward
writes over them. So `truncate` is the whole of rejecting, for caches, penalties, tool tracking and drafters alike.

Where a draft may end: the token budget and the context cap its length, so that nothing is evaluated that could not be committed
(a budget of one token makes no draft), and a stop token ends the walk wherever in a block it appears. Counts follow from the
walk: of n tokens committed in a pass the last is the target's own and n - 1 were drafted, so accepted + passes = tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Final

from ds4py.errors import NumericError
from ds4py.protocols import F32, Draft, Out, Pass, Span, Step

if TYPE_CHECKING:
    from ds4py.engine.session import Session


@dataclass(slots=True)
class _Proposal:
    """What a session's drafter answered when it was asked for `asked` tokens."""

    draft: Draft
    asked: int
    seconds: float


_NOTHING: Final = _Proposal(Draft(), 0, 0.0)


def generate(session: Session, max_tokens: int | None = None) -> Iterator[Step]:
    """Passes of the loop until a stop id, the budget or a full context; `session.finish` then says which.

    Raises NumericError, after the tokens chosen before it, if the model's logits break. The caller may stop at any step."""
    session.begin(max_tokens)
    while session.finish is None:
        (done,) = step([session])
        if done.tokens:
            yield done
    if session.error is not None:
        raise session.error


def step(sessions: Sequence[Session]) -> list[Step]:
    """One pass for sessions of one engine that have begun and not finished: one forward call over all of them.

    A session whose logits are broken gets finish "error" and its `error`; the others go on. Anything else that is raised leaves
    every session as it was, or with this pass committed."""
    n_rows = sessions[0].limits.max_rows // len(sessions)
    for session in sessions:
        if session.finish or n_rows == 0:
            raise ValueError(f"a pass takes 1 to {session.limits.max_rows} sessions that have not finished")
    try:
        proposals = [_propose(session, n_rows - 1) for session in sessions]
        out, seconds = _verify(sessions, proposals)
        return [_accept(session, proposals[i], out, i, seconds) for i, session in enumerate(sessions)]
    except BaseException:
        for session in sessions:
            session.settle()
        raise


def _propose(session: Session, max_len: int) -> _Proposal:
    """A draft no longer than the policy, the budget, the context and the forward allow, of ids that the target knows and that its
    masks do not rule out."""
    n_tokens = len(session.tokens)
    left = session.limit - n_tokens
    k = min(session.depth.depth(), left - 1, max_len)  # the last token of a pass is never a drafted one
    if k <= 0 or left < session.depth.tail:
        return _NOTHING
    began = perf_counter()
    draft = session.drafter.propose(k, session.tokens[-1], session.sampler)
    session.sampler.truncate(n_tokens)  # drafters push what they guess, to see the settings that would hold after it
    tokens = list(draft.tokens[:k])
    unknown = next((i for i, token in enumerate(tokens) if not 0 <= token < session.model.vocab_size), k)
    n = session.sampler.possible(tokens[:unknown])
    useful = replace(draft, tokens=tokens[:n], confidence=draft.confidence and draft.confidence[:n])
    return _Proposal(useful, k, perf_counter() - began)


def _verify(sessions: Sequence[Session], proposals: Sequence[_Proposal]) -> tuple[Out, float]:
    """Evaluate every session's last token and draft in one forward call, and ask for the logits of every row. Takes seconds."""
    began = perf_counter()
    spans = [
        Span(session.state, [session.tokens[-1], *proposal.draft.tokens], n_logits=1 + len(proposal.draft.tokens))
        for session, proposal in zip(sessions, proposals, strict=True)
    ]
    layers: Sequence[int] = sessions[0].drafter.needs.taps
    if len(sessions) > 1:
        layers = sorted({layer for session in sessions for layer in session.drafter.needs.taps})
    return sessions[0].model.forward(spans, layers), perf_counter() - began


def _accept(session: Session, proposal: _Proposal, out: Out, i: int, seconds: float) -> Step:
    """Walk the rows of session number i of a forward call, cut its timelines to what was chosen and commit it."""
    draft, rows = proposal.draft, out.of(i)  # [1 + length of the draft, V]
    base = len(session.tokens) - 1  # the position of rows[0], whose logits choose the token at base + 1
    chosen: list[int] = []
    try:
        for token in session.rule.walk(draft, rows, session.sampler):
            chosen.append(token)
            if token in session.stop_ids:
                break
    except NumericError as error:
        session.error = error  # what was chosen before it stands, as it would in plain decoding
    n = len(chosen)

    # Of the rows evaluated, the first n hold tokens of the new list; the token chosen last is the next pass's first row.
    session.state.truncate(base + n)
    session.sampler.truncate(base + 1 + n)
    began = perf_counter()
    session.drafter.truncate(base)
    evaluated = [session.tokens[-1], *chosen[:-1]] if n else []
    session.drafter.observe(evaluated, _taps(out, i, n, session.drafter.needs.taps))
    noted = perf_counter() - began
    cost = (proposal.seconds, seconds, len(out.logits), len(out.offsets) - 1, noted)
    done = Pass(base, session.tokens[-1], proposal.asked, draft, n, *cost)
    session.record(done)
    session.commit(chosen)
    return Step(chosen, rows if n == len(rows) else rows[:n], len(draft.tokens), max(n - 1, 0))


def _taps(out: Out, i: int, n: int, layers: Sequence[int]) -> Mapping[int, F32]:
    """Taps [n, D] of the first n rows of session number i."""
    start = out.offsets[i]
    return {layer: out.taps[layer][start : start + n] for layer in layers} if layers else {}
