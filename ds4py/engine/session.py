"""A session: one timeline of tokens, and everything that follows it.

The invariant between calls: **the state ends one token before the token list**. The last token has been chosen but not
evaluated; it is the first row of the next forward, which is why plain decode, a verify, the first step after a prompt and the
step after a rewind are the same call. The schedule stands at the end of the list, the drafter where the state stands. Whatever
is interrupted (Ctrl-C, NaN, no memory) is followed by `settle`, which forgets what was not committed.

Callers hand over the whole token list they want (`sync`), not what to append: an edited history, a shorter one, a retry and the
next turn are then one call, and how much of the old state still serves is found here, not by callers. Rejected: an append/reset
interface, where each caller keeps its own idea of what the cache holds.

Random numbers belong to positions, so going back repeats a text, token by token, until something differs. `rewind` keeps it
that way (a stop string was found, a block is evaluated again); `regenerate` and `fork` raise the epoch, which gives the
positions new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from ds4py.engine import prefill
from ds4py.engine.accept import TargetDraw
from ds4py.engine.depth import FixedDepth, SkipStreak
from ds4py.engine.generate import generate
from ds4py.engine.noise import Noise
from ds4py.engine.plain import NoDrafter
from ds4py.engine.sampling import Sampler
from ds4py.engine.saving import hand_over
from ds4py.engine.schedule import FixedSchedule, Penalties
from ds4py.engine.snapshots import CHECKPOINT_STEP, Checkpoints
from ds4py.errors import ContextError, NumericError, UsageError
from ds4py.protocols import (
    F32,
    AcceptRule,
    DepthPolicy,
    Drafter,
    Draws,
    Model,
    Pass,
    SamplingParams,
    SamplingSchedule,
    Span,
    SpecStats,
    Step,
)

Progress = Callable[[int, int], None]  # tokens evaluated so far, tokens to evaluate

_LOGIT_BYTES = 64 << 20  # of one forward that is asked for all its rows


@dataclass(frozen=True)
class Limits:
    """What a session may use of its engine."""

    n_ctx: int  # most tokens, the last of which is never evaluated
    max_rows: int  # of one forward call
    prefill_tile: int  # 0: prompts take the row path
    n_tokens: int | None = None  # ids from there on pad the vocabulary and are never drawn
    compiled: Draws | None = None  # draws tokens instead of engine/sampling.py
    checkpoint_step: int = CHECKPOINT_STEP  # positions between two checkpoints of caches that forget


@dataclass(frozen=True)
class SessionOptions:
    """How a session samples and drafts. `schedule` replaces params, penalties and bias for settings that change on the way;
    `params.temperature` then tells whether anything is drawn at all.

    A drafter, a depth policy and a schedule belong to one session: they hold its history."""

    params: SamplingParams = SamplingParams()
    penalties: Penalties = Penalties()
    bias: Mapping[int, float] = field(default_factory=dict)
    schedule: SamplingSchedule | None = None
    seed: int = 0
    choice: int = 0
    epoch: int = 0
    stop_ids: frozenset[int] = frozenset()
    drafter: Drafter | None = None
    depth: DepthPolicy | None = None  # None: 4 with a drafter, 0 without
    rule: AcceptRule = TargetDraw()
    trace: Callable[[Pass], None] | None = None  # see statistics.Trace
    checkpoint_bytes: int = 256 << 20


@dataclass(frozen=True)
class SyncReport:
    """What a sync cost: `reused` positions were there already, `fed` were evaluated."""

    reused: int
    fed: int


class Session:
    """Made by Engine.session(); one user at a time."""

    def __init__(self, model: Model, limits: Limits, options: SessionOptions) -> None:
        """Raises UsageError for settings that can never be obeyed."""
        self.model = model
        self.limits = limits
        self.state = model.new_state(limits.n_ctx, slack=limits.max_rows)
        self.tokens: list[int] = []
        self.sampler = self._new_sampler(options)
        self.stop_ids = options.stop_ids
        self.drafter: Drafter = options.drafter or NoDrafter()
        self.depth: DepthPolicy = options.depth or FixedDepth(4 if options.drafter else 0)
        self.rule = options.rule
        self.trace = options.trace
        self.stats = SpecStats()
        self.finish: str | None = None  # why generation ended: "stop", "length", "context", "error"
        self.error: NumericError | None = None
        self.limit = limits.n_ctx  # length of the token list at which generation ends
        self._budget_end = limits.n_ctx + 1
        self._checkpoints = Checkpoints(options.checkpoint_bytes, limits.checkpoint_step)

    # --- the token list ------------------------------------------------------------------------------------------------

    def sync(self, ids: Sequence[int], progress: Progress | None = None) -> SyncReport:
        """Make `ids` the token list, evaluating what is not there yet: all but the last token.

        Raises ContextError for more tokens than the context, UsageError for none or an id outside the vocabulary; nothing has
        changed then. If evaluation is interrupted, the part that was finished stays and the next sync goes on from it."""
        ids = list(ids)  # it may be the session's own list, which is cut below
        self._check_prompt(ids)
        self.settle()
        stop, tile = len(ids) - 1, self._tile
        pos = min(_common_len(self.tokens, ids), self.state.pos, stop)
        record = self.state.tiles
        aligned = prefill.reusable(pos, stop, record, tile)
        if aligned >= self.state.floor or pos < self.state.floor:
            pos = aligned
        start = self._return_to(pos)
        self._checkpoints.take(self.state)
        tiled = [*prefill.clip(record, start, pos), *prefill.whole_tiles(pos, stop, tile)]
        self._evaluate(ids, tiled, progress)
        self._checkpoints.take(self.state)
        self.finish = self.error = None
        return SyncReport(reused=start, fed=stop - start)

    def rewind(self, n_tokens: int) -> None:
        """Keep the first `n_tokens` tokens. What is generated from there repeats what was, as long as nothing else changes."""
        if not 0 <= n_tokens <= len(self.tokens):
            raise ValueError(f"rewind to {n_tokens} of {len(self.tokens)} tokens")
        self.settle()
        ids, record = self.tokens[:n_tokens], self.state.tiles
        self._return_to(min(max(n_tokens - 1, 0), self.state.pos))
        self._evaluate(ids, record, None)
        self.finish = self.error = None

    def regenerate(self, n_tokens: int) -> None:
        """Keep the first `n_tokens` tokens and give all positions new random numbers."""
        self.rewind(n_tokens)
        self.sampler.noise = replace(self.sampler.noise, epoch=self.sampler.noise.epoch + 1)

    def fork(self, options: SessionOptions) -> Session:
        """Another session that stands where this one stands, with random numbers of its own: its epoch is one higher.

        Its drafter takes over what this session's knows, if it is of the same kind; else it is told the tokens without taps.
        Memory for a third copy of the state is needed for a moment."""
        other = Session(self.model, self.limits, replace(options, epoch=self.sampler.noise.epoch + 1))
        other.state.restore(self.state.snapshot())
        hand_over(self.drafter, other.drafter)
        other.adopt(self.tokens)
        return other

    def _new_sampler(self, options: SessionOptions) -> Sampler:
        """A sampler at position 0."""
        schedule = options.schedule or FixedSchedule(options.params, options.penalties, options.bias, self.model.vocab_size)
        noise = Noise(options.seed, options.choice, options.epoch)
        return Sampler(schedule, noise, self.limits.n_tokens, self.limits.compiled)

    def renew(self, options: SessionOptions) -> None:
        """Go on under other settings, with new statistics; tokens and state stay. A drafter that is not the present one is told
        the tokens, without taps."""
        self.settle()
        self.sampler = self._new_sampler(options)
        for token in self.tokens:
            self.sampler.push(token)
        self.stop_ids, self.rule, self.trace, self.stats = options.stop_ids, options.rule, options.trace, SpecStats()
        self.depth = options.depth or FixedDepth(4 if options.drafter else 0)
        drafter = options.drafter or NoDrafter()
        if drafter is not self.drafter:
            drafter.observe(self.tokens[: self.state.pos], {})
            self.drafter = drafter

    def twin(self) -> Session:
        """A session of the same tokens and state, without a drafter, to be renewed."""
        other = Session(self.model, self.limits, SessionOptions())
        other.state.restore(self.state.snapshot())
        hand_over(self.drafter, other.drafter)
        other.adopt(self.tokens)
        return other

    def adopt(self, tokens: Sequence[int]) -> None:
        """Take `tokens`, the last of which is not evaluated, for what the state of this new session holds."""
        self._append(tokens)
        self.drafter.observe(self.tokens[: self.state.pos], {})
        self._checkpoints.take(self.state)

    # --- generation ----------------------------------------------------------------------------------------------------

    def generate(self, max_tokens: int | None = None) -> Iterator[Step]:
        """Generate until a stop id, `max_tokens` (None: no budget) or a full context; `finish` tells which. See generate.py."""
        return generate(self, max_tokens)

    def begin(self, max_tokens: int | None) -> None:
        """Set the length at which generation ends. Raises UsageError for a negative budget, ValueError for an empty session."""
        if max_tokens is not None and max_tokens < 0:
            raise UsageError(f"the token budget must be 0 or more, not {max_tokens}")
        self._last()
        self.settle()
        self._budget_end = self.limits.n_ctx + 1 if max_tokens is None else len(self.tokens) + max_tokens
        self.limit = min(self._budget_end, self.limits.n_ctx)
        self.error = None
        self.finish = self._ended(stopped=False)
        self.stats.begins += 1

    def record(self, done: Pass) -> None:
        """Count what a pass did, and let the depth policy and a trace see it."""
        if isinstance(self.depth, SkipStreak) and self.depth.skipping:
            done = replace(done, skipped=True)
        self.depth.record(done)
        self.stats.count(done)
        if self.trace is not None:
            self.trace(done)

    def commit(self, tokens: Sequence[int]) -> None:
        """Append what a step chose; everything else stands there already."""
        self.tokens.extend(tokens)
        stopped = bool(tokens) and tokens[-1] in self.stop_ids
        self.finish = "error" if self.error else self._ended(stopped)
        self._checkpoints.pass_by(self.state)

    def settle(self) -> None:
        """Forget what was evaluated or pushed beyond the token list."""
        pos = max(len(self.tokens) - 1, 0)
        for timeline, end in ((self.state, pos), (self.drafter, pos), (self.sampler, len(self.tokens))):
            if timeline.pos > end:
                timeline.truncate(end)

    def force(self, ids: Sequence[int]) -> Iterator[F32]:
        """Append given tokens (teacher forcing) by the row path; yields [n, V] at a time the logits that each was due to be drawn
        from, valid until the next piece. Raises ContextError if they do not fit."""
        self._check_prompt([*self.tokens, *ids])
        n_rows = max(1, min(self.limits.max_rows, _LOGIT_BYTES // (4 * self.model.vocab_size)))
        for at in range(0, len(ids), n_rows):
            part = ids[at : at + n_rows]
            block = [self._last(), *part[:-1]]
            rows = self._forward(block, "row", n_logits=len(block))
            self._append(part)
            yield rows

    def next_logits(self) -> F32:
        """A copy of the logits [V] that the next token is to be drawn from; the session stays as it is."""
        last = self._last()
        try:
            row: F32 = self.model.forward([Span(self.state, [last], n_logits=1)]).of(0)[0]
            return row.copy()
        finally:
            self.settle()

    # --- inside --------------------------------------------------------------------------------------------------------

    @property
    def _tile(self) -> int:
        return self.limits.prefill_tile if self.limits.prefill_tile <= self.limits.max_rows else 0

    def _last(self) -> int:
        """The token that is chosen and not evaluated. ValueError for an empty session."""
        if not self.tokens:
            raise ValueError("nothing to continue: sync a prompt first")
        return self.tokens[-1]

    def _check_prompt(self, ids: Sequence[int]) -> None:
        if not ids:
            raise UsageError("the prompt is empty: there is nothing to continue")
        if len(ids) > self.limits.n_ctx:
            both = f"the prompt has {len(ids)} tokens, but the context holds {self.limits.n_ctx}"
            raise ContextError(f"{both}: shorten the prompt or raise --ctx")
        if min(ids) < 0 or max(ids) >= self.model.vocab_size:
            at = next(i for i, token in enumerate(ids) if not 0 <= token < self.model.vocab_size)
            raise UsageError(f"token {ids[at]} at position {at} is outside the vocabulary of {self.model.vocab_size}")

    def _return_to(self, pos: int) -> int:
        """Bring every timeline to `pos`, or to the nearest place below it that can be reached; returns where that is."""
        self._cut(pos + 1)
        self._checkpoints.truncate(pos)
        checkpoint = self._checkpoints.newest()
        if self.state.floor <= pos:
            self.state.truncate(pos)
        elif checkpoint is not None:
            self.state.restore(checkpoint)
        else:
            self.state.clear()
        # the drafter stays at `pos`: it has seen the tokens that are about to be replayed
        self.drafter.truncate(min(pos, self.drafter.pos))
        self._cut(self.state.pos + 1)
        return self.state.pos

    def _cut(self, n_tokens: int) -> None:
        del self.tokens[n_tokens:]
        if self.sampler.pos > len(self.tokens):
            self.sampler.truncate(len(self.tokens))

    def _append(self, ids: Sequence[int]) -> None:
        for token in ids:
            self.sampler.push(token)
        self.tokens.extend(ids)  # last, so that an interrupted push is one that settle can forget

    def _evaluate(self, ids: Sequence[int], tiled: prefill.Ranges, progress: Progress | None) -> None:
        """Evaluate the tokens of `ids` from state.pos to the last but one, and make `ids` the token list as far as that got."""
        start, stop = self.state.pos, max(len(ids) - 1, 0)
        self._cut(start)
        self._append(ids[start : start + 1])
        if progress:
            progress(0, stop - start)
        for piece in prefill.pieces(start, stop, tiled, self._tile, self.limits.max_rows):
            block = [*ids[piece.start : piece.stop], *[ids[0]] * piece.padding]
            self._forward(block, piece.path, n_logits=0, n_kept=piece.stop - piece.start)
            self._append(ids[piece.start + 1 : piece.stop + 1])
            self._checkpoints.pass_by(self.state)
            if progress:
                progress(piece.stop - start, stop - start)

    def _forward(self, block: Sequence[int], path: str, n_logits: int, n_kept: int | None = None) -> F32:
        """Evaluate `block` after the state, show the drafter what it has not seen, and keep the first n_kept positions."""
        base, n = self.state.pos, len(block) if n_kept is None else n_kept
        try:
            out = self.model.forward([Span(self.state, block, n_logits)], self.drafter.needs.taps, path)
            self.state.truncate(base + n)
            seen = self.drafter.pos - base
            if seen < n:
                began = perf_counter()
                self.drafter.observe(block[seen:n], {layer: rows[seen:n] for layer, rows in out.taps.items()})
                self.stats.begin_seconds += perf_counter() - began
        except BaseException:
            self.settle()
            raise
        rows: F32 = out.of(0)
        return rows

    def _ended(self, stopped: bool) -> str | None:
        if stopped:
            return "stop"
        if len(self.tokens) < self.limit:
            return None
        return "length" if len(self.tokens) >= self._budget_end else "context"


def _common_len(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)
