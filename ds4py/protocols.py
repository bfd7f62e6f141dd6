"""The contracts between layers, and the values they exchange.

This module imports nothing of ours and is imported by everyone, so it is the one page that tells what each part may rely on.
Arrays that cross it are numpy: logits and hidden states float32, token ids and positions int64. The four ideas behind the
contracts (positions, one-row verify, positional noise, text apart from tensors) are told in ARCHITECTURE.md.

Shape letters: R rows of one forward call (over all spans), L rows whose logits are asked, V vocabulary, D hidden size,
H query heads, G key/value heads, d head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ds4py.latent import LatentOps

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


# --- positions -------------------------------------------------------------------------------------------------------


@runtime_checkable
class Timeline(Protocol):
    """Anything indexed by token position. What lies at or past `pos` is garbage by definition."""

    @property
    def pos(self) -> int:
        """Number of positions that count; the next token goes to this index."""
        ...

    @property
    def floor(self) -> int:
        """Lowest position that `truncate` can reach in place."""
        ...

    def truncate(self, pos: int) -> None:
        """Forget positions >= `pos`. Cheap, and cannot fail for floor <= pos <= self.pos; ValueError outside."""
        ...


class CacheView(Protocol):
    """One attention cache of one session, in the storage format that every backend shares.

    keys   f16|f32 [G, capacity // 16, d, 16]  position p at [:, (p % capacity) // 16, :, (p % capacity) % 16]
    values f16|f32 [G, capacity, d]            position p at [:, p % capacity]
    Keys are tiled by 16 positions so that scores come out as vectors; a full cache has capacity >= the context.
    Caches of single rows (latents, pools, see latent.py) have d = 0 keys and G = 1; a pool holds one row per group of positions.
    """

    keys: npt.NDArray[Any]
    values: npt.NDArray[Any]
    capacity: int
    window: int  # 0 = every earlier position is visible; else row p sees positions > p - window


class Snapshot(Protocol):
    """A copy of what a state needs to come back to `pos`."""

    @property
    def pos(self) -> int: ...

    @property
    def n_bytes(self) -> int:
        """Memory it holds."""
        ...


class StateView(Timeline, Protocol):
    """All caches of one model for one session."""

    caches: Sequence[CacheView]
    table: I64  # [n_caches, 4]: address of keys, address of values, capacity, window; for compiled kernels
    table_at: int  # address of `table`, which stays where it is
    n_ctx: int  # most positions that may be written

    def advance(self, n: int, tiled: bool) -> None:
        """`n` rows were written at pos..pos+n; `tiled` says that the prefill path made them."""
        ...

    @property
    def tiles(self) -> Sequence[tuple[int, int]]:
        """The positions below `pos` that the prefill path made, as ascending half-open ranges: a replay must do the same."""
        ...

    @property
    def n_bytes(self) -> int:
        """Size of the caches when they are full."""
        ...

    @property
    def pooled(self) -> tuple[int, int]:
        """Of pools of compressed entries: their part of n_bytes, and the entries of the largest."""
        ...

    def clear(self) -> None:
        """Start over at position 0, which is possible at any time."""
        ...

    def snapshot(self) -> Snapshot:
        """A copy of everything that counts at `pos`, which any state of the same model can restore."""
        ...

    def checkpoint(self) -> Snapshot:
        """A copy of only what truncating loses (rings, not full caches): n_bytes is 0 where it loses nothing. This state can
        restore it as long as it has not been cleared and the tokens below `pos` are still the ones that were evaluated."""
        ...

    def payload(self) -> dict[str, npt.NDArray[Any]]:
        """A snapshot as named arrays, for a file."""
        ...

    def load(self, payload: Mapping[str, npt.NDArray[Any]]) -> None:
        """Stand where the state that gave `payload` stood. FormatError, and nothing changed, if it does not fit."""
        ...

    def restore(self, snapshot: Any) -> None:
        """Go back to `snapshot.pos`, however far below the floor it lies. Only what the same class of states made is accepted."""
        ...


# --- one forward call --------------------------------------------------------------------------------------------------
# Values made anew for every token have slots and are not frozen: three times as fast to make. Nobody writes to them either.


@dataclass(slots=True)
class Span:
    """Consecutive tokens of one session in a forward call; they take positions state.pos .. state.pos + len(tokens)."""

    state: StateView
    tokens: Sequence[int]
    n_logits: int = 0  # logits are computed for the last n_logits tokens of the span


@dataclass(slots=True)
class Rows:
    """A forward call flattened over its spans: what kernels see. A model file only passes it on."""

    tokens: Sequence[int] | I64  # [R]
    pos: Sequence[int] | I64  # [R] position of each row in its own session; an array if there are several sessions
    states: Sequence[StateView]  # one per span
    span_of: I64  # [R] index into `states`
    logit_rows: I64  # [L] indices of the rows whose logits are asked
    path: str = "row"  # "row", or "prefill" for whole aligned tiles of prompt tokens
    given: F32 | None = None  # [R, W] vectors that come with the rows, see Ops.given
    first: I64 | None = None  # [R] the lowest position that each row may see; None: 0

    @property
    def n(self) -> int:
        return len(self.tokens)


@dataclass(slots=True)
class Out:
    """Result of a forward call. Arrays may be views of the backend's buffers: valid until the next forward of the same graph."""

    logits: F32  # [L, V]; rows of one span are consecutive
    offsets: Sequence[int]  # span i owns logits[offsets[i]:offsets[i + 1]]
    taps: Mapping[int, F32] = field(default_factory=dict)  # layer -> [R, D], the residual after that layer; -1: before layer 0

    def of(self, span: int) -> F32:
        if len(self.offsets) == 2:  # one span
            return self.logits
        return self.logits[self.offsets[span] : self.offsets[span + 1]]


class Weight(Protocol):
    """A matrix [N, K] in whatever form the backend computes on (opaque to models)."""

    @property
    def shape(self) -> tuple[int, int]: ...


class Experts(Protocol):
    """E matrices [N, K], one per expert, of which a row uses a few."""

    @property
    def shape(self) -> tuple[int, int, int]: ...


@dataclass(frozen=True)
class Router:
    """How a row's experts and their weights follow from its E router logits.

    A score is "softmax" over all experts, "sigmoid", or "sqrtsoftplus" of a logit. The n_used experts with the highest score plus
    `bias` are taken (ties: the lower index), or those that `table` [V, n_used] names for the row's token. Their weights are
    their scores without the bias, divided by their sum if `normed`, times `scale`."""

    score: str
    n_used: int
    bias: F32 | None = None
    table: I32 | None = None
    normed: bool = True
    scale: float = 1.0


Buf = Any  # an opaque activation matrix [R, width] float32; only kernels look inside


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of one kind of layer.

    inv_freq: float64 [n_rot // 2] radians per position, all scaling applied; magnitude multiplies cos and sin (YaRN).
    interleaved: pairs are (2i, 2i+1) (llama's permuted weights); else (i, i + n_rot/2) (neox).
    tail: the last n_rot dimensions of a head turn; else the first.
    """

    inv_freq: npt.NDArray[np.float64]
    interleaved: bool
    magnitude: float = 1.0
    tail: bool = False


class Ops(Protocol):
    """The operations that a model file may call. Buffers are [R, width] float32; row i never depends on other rows except
    through the caches. Models never look at values, so a backend may run at once (reference) or record and replay."""

    @property
    def latent(self) -> LatentOps:
        """Streams, rounding and attention over latents."""
        ...

    def embed(self, weight: Weight, scale: float = 1.0) -> Buf:
        """Rows of `weight` [V, D] for the call's tokens, times `scale`."""
        ...

    def given(self, width: int) -> Buf:
        """The vectors [R, width] that came with the call's rows (`Rows.given`)."""
        ...

    def rms_norm(self, x: Buf, weight: F32 | None, eps: float, n_heads: int = 1) -> Buf:
        """x / sqrt(mean(x^2) + eps) * weight, over each of `n_heads` equal slices of the row; weight [width / n_heads] if any."""
        ...

    def linear(self, x: Buf, weight: Weight, bias: F32 | None = None) -> Buf:
        """x @ weight.T + bias -> [R, N]."""
        ...

    def rope(self, x: Buf, rope: Rope, n_heads: int, inverse: bool = False) -> Buf:
        """Rotate n_rot dims of each head by the row's position, or back."""
        ...

    def attend(
        self,
        q: Buf,
        k: Buf,
        v: Buf,
        cache: int,
        n_heads: int,
        n_kv_heads: int,
        scale: float,
        softcap: float = 0.0,
        block: bool = False,
    ) -> Buf:
        """Store k, v [R, G*d] at the rows' positions of cache number `cache`, then softmax attention of q [R, H*d] over the
        visible positions (from Rows.first on, within the cache's window, up to the row itself): -> [R, H*d]. Query head h reads
        kv head h // (H // G). `block`: a row sees the later rows of its own span too, so a span is one fixed group of rows."""
        ...

    def store(self, k: Buf, v: Buf, cache: int, n_kv_heads: int) -> None:
        """Only store k, v [R, G*d] at the rows' positions, as `attend` does."""
        ...

    def add(self, a: Buf, b: Buf) -> Buf: ...

    def scale(self, x: Buf, factor: float) -> Buf: ...

    def concat(self, a: Buf, b: Buf) -> Buf:
        """Rows of `a` followed by rows of `b`: [R, width of a + width of b]."""
        ...

    def gated(self, gate: Buf, up: Buf, act: str, limit: float = 0.0) -> Buf:
        """act(gate) * up, act in {"silu", "gelu"} (gelu: tanh form). With a limit, gate is first cut above, up on both sides."""
        ...

    def route(self, logits: Buf, router: Router) -> Buf:
        """Each row's experts and weights from router logits [R, E]. Opaque; `experts` takes it."""
        ...

    def experts(self, x: Buf, routing: Buf, gate: Experts, up: Experts, down: Experts, act: str, limit: float = 0.0) -> Buf:
        """sum over a row's experts e of down_e @ (weight_e * gated(gate_e @ x, up_e @ x, act, limit)), summed in the order of the
        routing, which is that of falling score plus bias (of the table, where there is one): [R, N]."""
        ...

    def softcap(self, x: Buf, cap: float) -> Buf:
        """cap * tanh(x / cap)."""
        ...

    def pick(self, x: Buf) -> Buf:
        """The rows whose logits are asked: [L, width]."""
        ...

    def wants(self, layer: int) -> bool:
        """Whether the call asks for the tap `layer`: for taps that cost something to make."""
        ...

    def tap(self, layer: int, x: Buf) -> None:
        """Offer the residual after `layer` (-1: what enters layer 0); kept only if the call asks for that layer."""
        ...


class Kernels(Protocol):
    """A backend: loads weights in its own form and runs a model's graph."""

    name: str  # shown to the user and recorded in snapshots: the numerics contract holds per name
    prefill_tile: int  # positions per tile of the prefill path; 0 = the row path serves prompts too
    max_rows: int  # most rows of one forward call
    n_threads: int  # that a forward call runs on; shown to the user

    def weight(self, tensor: Any) -> Weight:
        """Take a 2-D GGUF tensor (gguf.Tensor)."""
        ...

    def experts(self, tensor: Any) -> Experts:
        """Take a 3-D GGUF tensor, whose last dimension counts experts."""
        ...

    def vector(self, tensor: Any) -> F32:
        """A small tensor as float32, flat."""
        ...

    def ready(self, key: object, graph: Callable[[Ops], Buf]) -> None:
        """Do now what the first `run` would do once: pack weights, compile kernels."""
        ...

    def run(self, key: object, graph: Callable[[Ops], Buf], rows: Rows, taps: Sequence[int]) -> Out:
        """Run `graph` (which returns the logits buffer [L, V]) on `rows`. A recording backend calls `graph` once per
        (key, R, L, path, taps) and replays it afterwards."""
        ...


class Model(Protocol):
    """Weights and one readable forward."""

    vocab_size: int
    n_layers: int
    n_ctx_train: int

    def new_state(self, n_ctx: int, slack: int) -> StateView:
        """Empty caches for n_ctx positions; `slack` rows may be written and rejected (rings are longer by it)."""
        ...

    def forward(self, spans: Sequence[Span], taps: Sequence[int] = (), path: str = "row") -> Out:
        """Evaluate the spans' tokens, write their cache rows, advance each state by its span's length. A call that fails leaves
        the states at their positions, and counts the rows it may have written (their `floor` may rise)."""
        ...


# --- sampling ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SamplingParams:
    """How one position is sampled. Filters act on softmax(adjusted logits / temperature), in the order top-k, top-p, min-p;
    temperature 0 is the argmax (ties to the lower id)."""

    temperature: float = 1.0
    top_k: int = 0  # 0 = off
    top_p: float = 1.0
    min_p: float = 0.0  # relative to the most likely token


@runtime_checkable
class Draws(Protocol):
    """What kernels may be besides: a compiled form of engine/sampling.py, which gives the same tokens."""

    def draw(self, row: F32, params: SamplingParams, key: int) -> int:
        """The token drawn from adjusted logits [V] with the noise that starts at `key`; -1 if they are broken or rule out all."""
        ...


class SamplingSchedule(Timeline, Protocol):
    """The engine's only view of tool mode, grammar and penalties: which settings hold at the next position?"""

    def push(self, token: int) -> None: ...

    def params(self) -> SamplingParams: ...

    def adjust(self, row: F32) -> F32:
        """Penalties, bias and masks for the next position applied to logits [V]; returns `row` itself if nothing changes."""
        ...

    def allows(self, token: int) -> bool:
        """Whether `adjust` would leave `token` a chance. Drafts end before a token that has none."""
        ...


class SamplerView(Protocol):
    """The sampler at the coming positions, as a drafter or an accept rule sees it: draw at `pos`, push, draw, ..."""

    @property
    def pos(self) -> int: ...

    def params(self) -> SamplingParams:
        """The settings that hold at `pos`."""
        ...

    def propose(self, row: F32, warmth: float) -> int:
        """What `draw` would give at `warmth` times the temperature, with the same noise, filters, penalties and masks: 1 is the
        draw itself, 0 the likeliest token. NumericError as in `draw`."""
        ...

    def draw(self, row: F32) -> int:
        """The token at `pos` given logits [V]: a pure function of (row, settings, seed, choice, epoch, pos).
        Raises NumericError when no finite maximum exists."""
        ...

    def push(self, token: int) -> None: ...

    def truncate(self, pos: int) -> None: ...


# --- drafting --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draft:
    tokens: Sequence[int] = ()
    confidence: Sequence[float] | None = None  # one per token, 0..1, or None
    source: str = ""  # name of the drafter that made it, for the statistics
    lag: int = 0  # tokens that the drafter had to evaluate first because it had not been asked for a while
    stopped: float | None = None  # confidence in the next token, if the draft ended because it was too low


@dataclass(slots=True)
class Pass:
    """What one pass of the loop did for one session: for depth policies, statistics and traces."""

    pos: int  # of the first row, which evaluated the session's last token
    last: int
    asked: int  # tokens the drafter might have proposed; 0: it was not asked
    draft: Draft  # what was verified
    committed: int  # tokens: the accepted part of the draft and one of the target's own; 0 if the logits were broken
    draft_seconds: float  # of this session's proposal
    verify_seconds: float  # of the whole forward call
    rows: int  # of the whole forward call
    n_sessions: int = 1  # in it
    accept_seconds: float = 0.0  # in which the drafter took note of what was committed
    skipped: bool = False  # no draft was asked for because of a streak of misses (depth.SkipStreak)

    @property
    def drafted(self) -> int:
        return len(self.draft.tokens)

    @property
    def accepted(self) -> int:
        return max(self.committed - 1, 0)


@dataclass(frozen=True)
class Needs:
    """What a drafter wants from the target's forward calls."""

    taps: tuple[int, ...] = ()  # layers whose residual rows are handed to observe()


class Drafter(Timeline, Protocol):
    """Proposes tokens. It never writes the target's state, and its own state is a Timeline that truncate(p) brings to any
    p <= pos: below its floor it keeps nothing but the position and drafts short; it never forces a prefill."""

    needs: Needs

    def observe(self, tokens: Sequence[int], taps: Mapping[int, F32]) -> None:
        """`tokens` were evaluated by the target at positions self.pos ..; taps[layer] holds one row for each.

        Without taps (a forked or a loaded session) the drafter keeps the tokens and positions and drafts short."""
        ...

    def propose(self, k: int, last: int, view: SamplerView) -> Draft:
        """At most k tokens to follow `last`, the chosen token that the target has not evaluated yet (position view.pos - 1).
        Whatever is pushed to `view` is taken back by the caller."""
        ...


class DepthPolicy(Protocol):
    """How many tokens to draft next; owns back-off and giving up."""

    @property
    def tail(self) -> int:
        """Nothing is drafted when fewer tokens than this may still come."""
        ...

    def depth(self) -> int: ...

    def record(self, done: Pass) -> None:
        """A pass that `depth` was asked for is over."""
        ...


class AcceptRule(Protocol):
    """Which drafted tokens are committed. Stateless."""

    def walk(self, draft: Draft, rows: F32, sampler: SamplerView) -> Iterator[int]:
        """Yield committed tokens left to right, each pushed to the sampler before it is yielded: accepted proposals, then
        one token of the target's own. rows [len(draft) + 1, V]. The caller may stop early (stop token, budget)."""
        ...


@dataclass
class SourceStats:
    """The part of one kind of drafter in a session's drafts."""

    drafts: int = 0  # not empty, verified
    hits: int = 0  # of which at least one token was accepted
    drafted: int = 0
    accepted: int = 0
    accepted_at: list[int] = field(default_factory=list)  # [i]: drafts whose token i was accepted
    draft_seconds: float = 0.0
    accept_seconds: float = 0.0

    def count(self, done: Pass) -> None:
        self.drafts += 1
        self.hits += done.accepted > 0
        self.drafted += done.drafted
        self.accepted += done.accepted
        self.accepted_at += [0] * (done.accepted - len(self.accepted_at))
        for i in range(done.accepted):
            self.accepted_at[i] += 1
        self.draft_seconds += done.draft_seconds
        self.accept_seconds += done.accept_seconds


@dataclass
class SpecStats:
    """Counts of one session's generation; one value for CLI, server and bench. Lines of text are made in engine/statistics.py."""

    passes: int = 0  # target forward calls that committed something
    rows: int = 0  # target rows evaluated
    drafted: int = 0
    accepted: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    begins: int = 0  # generations
    begin_seconds: float = 0.0  # in which the drafter took note of prompts
    draft_calls: int = 0  # times the drafter was asked
    passes_of_rows: dict[int, int] = field(default_factory=dict)  # rows of this session -> passes
    seconds_of_rows: dict[int, float] = field(default_factory=dict)  # the same -> seconds of their verifies
    sources: dict[str, SourceStats] = field(default_factory=dict)  # kind of drafter -> its part

    @property
    def drafts(self) -> int:
        """Verified drafts with at least one token."""
        return sum(source.drafts for source in self.sources.values())

    def count(self, done: Pass) -> None:
        drafted = len(done.draft.tokens)
        n, seconds = 1 + drafted, done.verify_seconds / done.n_sessions
        self.passes += done.committed > 0
        self.rows += n
        self.verify_seconds += seconds
        self.passes_of_rows[n] = self.passes_of_rows.get(n, 0) + 1
        self.seconds_of_rows[n] = self.seconds_of_rows.get(n, 0.0) + seconds
        self.draft_calls += done.asked > 0
        self.draft_seconds += done.draft_seconds
        if drafted:
            self.drafted += drafted
            self.accepted += done.accepted
            self.sources.setdefault(done.draft.source, SourceStats()).count(done)


@dataclass(slots=True)
class Step:
    """What one pass of the loop committed."""

    tokens: Sequence[int]
    rows: F32  # [len(tokens), V] raw logits each token was drawn from; valid until the next forward
    drafted: int
    accepted: int
