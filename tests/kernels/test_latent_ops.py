"""Operations of models with latents and experts, one by one: exact where they round, by their formula where they do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deepseek4_reference import fp4, fp8, hadamard
from numpy.testing import assert_allclose, assert_array_equal

from ds4py.gguf import NewTensor, open_gguf, write_gguf
from ds4py.kernels.cpu import CpuKernels
from ds4py.kernels.cpu.target import host_paths
from ds4py.kernels.reference import ReferenceKernels
from ds4py.latent import Pooling
from ds4py.protocols import F32, Buf, Kernels, Ops, Rope, Router, Rows
from ds4py.state import PoolCache, SlidingCache, State

RNG = np.random.default_rng(11)
N_DIMS = 32
BACKENDS = ["float32", "float64", *(f"cpu-{path}" for path in host_paths())]


@pytest.fixture(scope="module", params=BACKENDS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param.startswith("cpu"):
        return CpuKernels(2, 512, request.param.removeprefix("cpu-"))
    return ReferenceKernels(request.param, row_by_row=request.param == "float32")


def dtype_of(kernels: Kernels) -> Any:
    """Of caches that are not exact."""
    return np.float16 if isinstance(kernels, CpuKernels) else np.float32


@dataclass(frozen=True)
class Picker:
    """Weights that pick columns, and experts, made on one backend."""

    kernels: Kernels
    folder: Path

    def weight(self, array: F32, kind: str = "weight") -> Any:
        path = self.folder / f"{len(list(self.folder.iterdir()))}.gguf"
        write_gguf(path, {"general.architecture": "test"}, [NewTensor.of("w", array)])
        return getattr(self.kernels, kind)(open_gguf(path).tensors["w"])

    def columns(self, width: int, *parts: tuple[int, int]) -> list[Any]:
        """For each (first, n) a weight whose product with rows of `width` is these columns of them."""
        return [self.weight(np.eye(width, dtype=np.float32)[first : first + n]) for first, n in parts]


@pytest.fixture
def pick(kernels: Kernels, tmp_path: Path) -> Picker:
    return Picker(kernels, tmp_path)


def run(kernels: Kernels, x: F32, graph: Callable[[Ops, Buf], Buf], state: State | None = None, tokens: Any = None) -> F32:
    """graph(ops, x) with x [R, W] as the rows of one session, at its next positions."""
    n, width = x.shape
    state = state or State([], 1000)
    rows = Rows(
        tokens=np.zeros(n, np.int64) if tokens is None else np.asarray(tokens, np.int64),
        pos=state.pos + np.arange(n),
        states=[state],
        span_of=np.zeros(n, np.int64),
        logit_rows=np.arange(n),
        given=x.astype(np.float32),
    )
    out = np.array(kernels.run(object(), lambda ops: graph(ops, ops.given(width)), rows, ()).logits)
    state.advance(n, False)
    return out


def hard_rows(width: int, blocks: int) -> F32:
    """Values that rounding gets wrong: ties, powers of two and their neighbours, zeros, the format's denormals, huge and tiny."""
    rows = [RNG.normal(size=(64, width)) * 10.0 ** RNG.integers(-6, 5, (64, 1))]
    steps = np.arange(width) / 16
    for scale in (1.0, 0.5, 448.0, 6.0, 1e-4, 2.0**-20, 3e-38, 0.0):
        rows.append(np.stack([steps * scale, -steps * scale, np.nextafter(np.float32(scale), 1e9) * np.ones(width)]))
        rows.append(np.ones((1, width)) * scale)
    peaks = np.where(np.arange(width) % blocks == 0, 2.0 ** RNG.integers(-8, 8, (16, width)), RNG.normal(size=(16, width)))
    codes = RNG.choice([0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6], (32, width))
    return np.concatenate([*rows, peaks, codes, codes * 2.0**-7]).astype(np.float32)


def test_eight_bit_rounding_is_exact(kernels: Kernels) -> None:
    x = hard_rows(128 + 16, 64)
    ours = run(kernels, x, lambda ops, b: ops.latent.fp8(b, 128))
    assert_array_equal(ours[:, :128], fp8(torch.tensor(x[:, :128])).numpy())
    assert_array_equal(ours[:, 128:], x[:, 128:])
    assert (ours[:, :128] != x[:, :128]).mean() > 0.3
    assert_array_equal(run(kernels, ours, lambda ops, b: ops.latent.fp8(b, 128)), ours)  # what is rounded stays


def test_four_bit_rounding_is_exact(kernels: Kernels) -> None:
    x = hard_rows(64, 32)
    assert_array_equal(run(kernels, x, lambda ops, b: ops.latent.fp4(b)), fp4(torch.tensor(x)).numpy())


def test_one_matrix_for_every_stream(kernels: Kernels, pick: Picker) -> None:
    """Streams of 32 values to streams of 48, for fewer and more rows than the kernels take at once."""
    matrix = RNG.normal(size=(48, N_DIMS)).astype(np.float32)
    weight = pick.weight(matrix)
    for n_rows in (1, 7, 70):
        x = RNG.normal(size=(n_rows, 4 * N_DIMS)).astype(np.float32)
        ours = run(kernels, x, lambda ops, b: ops.latent.stream_linear(b, weight, 4))
        assert_allclose(ours.reshape(-1, 48), x.reshape(-1, N_DIMS).astype(np.float64) @ matrix.T, atol=2e-5)


def test_hadamard_transform(kernels: Kernels) -> None:
    x = RNG.normal(size=(5, 3 * 32)).astype(np.float32)
    ours = run(kernels, x, lambda ops, b: ops.latent.hadamard(b, 3))
    assert_allclose(ours, hadamard(torch.tensor(x).double().view(5, 3, 32)).view(5, -1).numpy(), atol=2e-6)


def test_streams_are_mixed_by_their_formula(kernels: Kernels, pick: Picker) -> None:
    n, d, n_iters, eps = 4, N_DIMS, 20, 1e-6
    parts = pick.columns(24 + n * d + d, (0, 24), (24, n * d), (24 + n * d, d), (0, n))
    m, scale, base = RNG.normal(size=(6, 24)), RNG.normal(size=3), RNG.normal(size=24)
    h, y = RNG.normal(size=(6, n * d)), RNG.normal(size=(6, d))
    x = np.concatenate([m, h, y], 1)
    a, b = scale.astype(np.float32), base.astype(np.float32)

    # everything in float64, one row at a time
    def sigmoid(v: Any) -> Any:
        return 1 / (1 + np.exp(-v))

    enter = sigmoid(m[:, :4] * a[0] + b[:4]) + eps
    get = 2 * sigmoid(m[:, 4:8] * a[1] + b[4:8])
    matrix = np.exp((m[:, 8:] * a[2] + b[8:]).reshape(6, 4, 4))
    matrix = matrix / matrix.sum(2, keepdims=True) + eps
    for i in range(n_iters):
        if i:
            matrix /= matrix.sum(2, keepdims=True) + eps
        matrix /= matrix.sum(1, keepdims=True) + eps
    assert_allclose(matrix.sum(1), 1, atol=1e-3)
    streams = h.reshape(6, n, d)
    want = get[..., None] * y[:, None] + np.einsum("tjk,tjd->tkd", matrix, streams)

    def graph(which: str) -> Callable[[Ops, Buf], Buf]:
        def build(ops: Ops, given: Buf) -> Buf:
            lat, (m, streams, y, head) = ops.latent, [ops.linear(given, weight) for weight in parts]
            mixing = lat.mixing(m, a, b, n, n_iters, eps)
            if which == "head":
                return lat.collapse(streams, lat.mixing(head, a[:1], b[:n], n, n_iters, eps), n)
            if which == "collapse":
                return lat.collapse(streams, mixing, n)
            return lat.renew(streams, y, mixing, n) if which == "renew" else lat.mean(streams, n)

        return build

    tolerance = 2e-6
    for which in ("collapse", "head"):
        assert_allclose(run(kernels, x, graph(which)), (enter[..., None] * streams).sum(1), atol=tolerance)
    assert_allclose(run(kernels, x, graph("renew")), want.reshape(6, -1), atol=tolerance * 5)
    assert_allclose(run(kernels, x, graph("mean")), streams.mean(1), atol=tolerance)
    assert_array_equal(
        run(kernels, x[:, :32].copy(), lambda ops, v: ops.latent.spread(v, 3)), np.tile(x[:, :32].astype(np.float32), 3)
    )


def test_partial_rotation_of_the_tail_and_back(kernels: Kernels) -> None:
    rope = Rope(np.array([1.0, 0.25, 0.01]), interleaved=True, tail=True)
    x = RNG.normal(size=(40, 2 * 16)).astype(np.float32)
    turned = run(kernels, x, lambda ops, b: ops.rope(b, rope, 2))
    heads, out = x.reshape(40, 2, 16).astype(np.float64), turned.reshape(40, 2, 16)
    assert_array_equal(out[..., :10], heads[..., :10])
    pair = heads[..., 10::2] + 1j * heads[..., 11::2]
    pair = pair * np.exp(1j * np.arange(40)[:, None, None] * rope.inv_freq)
    assert_allclose(out[..., 10::2], pair.real, atol=1e-5)
    assert_allclose(out[..., 11::2], pair.imag, atol=1e-5)
    assert_allclose(run(kernels, turned, lambda ops, b: ops.rope(b, rope, 2, inverse=True)), x, atol=1e-5)


def pooling(every: int, overlap: bool, d: int = 32, rounding: str = "") -> Pooling:
    rng = np.random.default_rng(every)
    bias = rng.normal(size=(every, d * (1 + overlap))).astype(np.float32)
    norm = (1 + 0.1 * rng.normal(size=d)).astype(np.float32)
    return Pooling(every, overlap, bias, norm, 1e-6, Rope(np.array([0.5, 0.02]), True, tail=True), rounding)


@pytest.mark.parametrize(("every", "overlap"), [(4, True), (6, False)])
def test_pool_entries_by_their_formula(kernels: Kernels, every: int, overlap: bool) -> None:
    """Calls of 1..9 rows: an entry appears with the row that closes its group, whatever the calls."""
    how, d, n = pooling(every, overlap), 32, 82
    x = RNG.normal(size=(n, 2 * how.position_bias.shape[1])).astype(np.float32)
    values, scores = np.split(x.astype(np.float64), 2, 1)
    scores = scores + how.position_bias[np.arange(n) % every]
    want = []
    for j in range(n // every):
        own = slice(j * every, (j + 1) * every)
        v, s = values[own, -d:], scores[own, -d:]
        if overlap and j:
            before = slice((j - 1) * every, j * every)
            v, s = np.concatenate([values[before, :d], v]), np.concatenate([scores[before, :d], s])
        weight = np.exp(s) / np.exp(s).sum(0)
        z = (weight * v).sum(0)
        z = z / np.sqrt((z**2).mean() + 1e-6) * how.norm
        turn = (z[28::2] + 1j * z[29::2]) * np.exp(1j * j * every * how.rope.inv_freq)
        z[28::2], z[29::2] = turn.real, turn.imag
        want.append(z)
    reach = every * (1 + overlap)
    state = State([SlidingCache(reach, 9, 1, 0, x.shape[1], np.float32), PoolCache(90, every, d, dtype_of(kernels))], 90)

    def graph(ops: Ops, b: Buf) -> Buf:
        ops.latent.put(b, 0, exact=True)
        ops.latent.pool(0, 1, how)
        return b

    while state.pos < n:
        k = min(1 + state.pos % 9, n - state.pos)
        run(kernels, x[state.pos : state.pos + k], graph, state)
    assert n > 2 * state.caches[0].capacity
    close = 2e-3 if dtype_of(kernels) == np.float16 else 3e-6
    assert_allclose(state.caches[1].values[0, : n // every], want, rtol=0, atol=close)
    assert not state.caches[1].values[0, n // every :].any()


def test_the_indexer_keeps_the_best_and_of_equals_the_first(kernels: Kernels, pick: Picker) -> None:
    every, d, n_heads, top_k, n = 4, N_DIMS, 4, 5, 60
    parts = pick.columns(n_heads * d + n_heads, (0, n_heads * d), (n_heads * d, n_heads), (0, d))
    pool = PoolCache(64, every, d, dtype_of(kernels))
    entries = RNG.normal(size=(15, d)).astype(np.float16).astype(np.float32)
    entries[9] = entries[3]  # equal scores, always
    entries[11] = entries[12] = entries[2]
    pool.store(0, np.zeros((1, 15, 0), np.float32), entries[None])
    ring = SlidingCache(1, n, 1, 0, d, dtype_of(kernels))
    x = RNG.normal(size=(n, n_heads * d + n_heads)).astype(np.float32)
    q, w = x[:, : n_heads * d].reshape(n, n_heads, d).astype(np.float64), x[:, n_heads * d :].astype(np.float64)

    def graph(ops: Ops, b: Buf) -> Buf:
        q, weights, some = [ops.linear(b, weight) for weight in parts]
        chosen = ops.latent.choose(q, weights, 1, every, n_heads, top_k)
        ops.latent.put(ops.latent.mean(q, n_heads), 0)
        # the query of attention is 0, so every visible row has the same weight: the mean of the chosen entries shows
        zero = ops.scale(some, 0.0)
        return ops.latent.attend(zero, 0, 1, 1.0, np.zeros(1, np.float32), 1, every, chosen)

    ours = run(kernels, x, graph, State([ring, pool], 64))
    own = q.mean(1)
    for t in range(n):
        seen = (t + 1) // every
        score = (np.maximum(np.einsum("hd,nd->hn", q[t], entries[:seen].astype(np.float64)), 0) * w[t][:, None]).sum(0)
        kept = sorted(range(seen), key=lambda j: (-round(score[j], 9), j))[:top_k]
        want = (own[t] + entries[kept].sum(0)) / (2 + len(kept))  # the row's own latent and the sink
        assert_allclose(ours[t], want, rtol=0, atol=2e-3 if dtype_of(kernels) == np.float16 else 1e-5, err_msg=f"row {t}")


def test_experts_are_routed_by_score_bias_and_table(kernels: Kernels, pick: Picker) -> None:
    """Of equal scores the lower index; the bias chooses and does not weigh; a table goes by the token alone. Gate and up of every
    expert are 1, down is 10 to its number."""
    eye = np.eye(32, dtype=np.float32)
    one = pick.weight(np.stack([eye] * 8), "experts")
    number = pick.weight(np.stack([eye * np.float32(10.0**e) for e in range(8)]), "experts")
    inputs, logits = pick.columns(40, (0, 32), (32, 8))
    x = np.ones((6, 40), np.float32)
    x[:, 32:] = RNG.normal(size=(6, 8))
    x[0, 32:] = 0.5  # all equal
    x[1, 32:] = [0, 1, 1, 0, 1, 0, 0, 0]
    bias = np.array([0, 0, 0, 0, 0, 3, 0, 0], np.float32)
    table = np.arange(12, dtype=np.int32).reshape(6, 2) % 8
    score = np.sqrt(np.log1p(np.exp(x[:, 32:].astype(np.float64))))

    def summed(router: Router, tokens: Any) -> F32:
        def graph(ops: Ops, b: Buf) -> Buf:
            routing = ops.route(ops.linear(b, logits), router)
            return ops.experts(ops.linear(b, inputs), routing, one, one, number, "silu", 0.5)

        out: F32 = run(kernels, x, graph, tokens=tokens)[:, 0] / (0.5 / (1 + np.exp(-0.5)) * 0.5)
        return out

    def want(kept: list[list[int]], scale: float = 1.5) -> np.ndarray:
        sums = []
        for t, ids in enumerate(kept):
            weight = score[t, ids] / score[t, ids].sum() * scale
            sums.append(float((weight * 10.0 ** np.array(ids)).sum()))
        return np.array(sums)

    plain = [sorted(range(8), key=lambda e: (-score[t, e], e))[:2] for t in range(6)]
    assert plain[0] == [0, 1] and plain[1] == [1, 2]
    biased = [sorted(range(8), key=lambda e: (-(score[t, e] + bias[e]), e))[:2] for t in range(6)]
    assert all(5 in ids for ids in biased)
    tokens = [5, 0, 3, 3, 1, 2]
    by_table = [table[t].tolist() for t in tokens]
    for router, ids, given in (
        (Router("sqrtsoftplus", 2, scale=1.5), plain, None),
        (Router("sqrtsoftplus", 2, bias, scale=1.5), biased, None),
        (Router("sqrtsoftplus", 2, table=table, scale=1.5), by_table, tokens),
    ):
        assert_allclose(summed(router, given), want(ids), rtol=3e-6)


@pytest.mark.parametrize("n_rows", [1, 9])
def test_groups_of_inputs_have_matrices_of_their_own(kernels: Kernels, pick: Picker, n_rows: int) -> None:
    weight = RNG.normal(size=(3 * 16, 32)).astype(np.float32)
    x = RNG.normal(size=(n_rows, 3 * 32)).astype(np.float32)
    w = pick.weight(weight)
    ours = run(kernels, x, lambda ops, b: ops.latent.grouped_linear(b, w, 3))
    want = np.einsum("rgk,gnk->rgn", x.reshape(-1, 3, 32).astype(np.float64), weight.reshape(3, 16, 32))
    assert_allclose(ours, want.reshape(n_rows, -1), atol=1e-5)


def test_a_block_sees_the_window_before_it_and_all_of_itself(kernels: Kernels) -> None:
    """With queries of 0 the result is the mean over what is seen and the sink, so it tells what that is: for causal rows their
    own window, for a block that of its first row and the whole block."""
    d, window, slack = 16, 6, 12
    latents = RNG.normal(size=(40, d)).astype(np.float16).astype(np.float32)
    for block in (False, True):
        state = State([SlidingCache(window, slack, 1, 0, d, dtype_of(kernels))], 64)

        def graph(ops: Ops, b: Buf, block: bool = block) -> Buf:
            ops.latent.put(b, 0)
            return ops.latent.attend(ops.scale(ops.concat(b, b), 0.0), 0, 2, 1.0, np.zeros(2, np.float32), block=block)

        while state.pos < 40:
            at, n = state.pos, 5
            ours = run(kernels, latents[at : at + n], graph, state)
            for i in range(n):
                lo = max(0, (at if block else at + i) - window + 1)
                seen = latents[lo : at + (n if block else i + 1)]
                assert_allclose(ours[i], np.tile(seen.sum(0) / (len(seen) + 1), 2), atol=2e-6)
