"""The reference backend, operation by operation, against other formulations of the same mathematics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import tiny_gguf

from ds4py.gguf import GgmlType, NewTensor, open_gguf, write_gguf
from ds4py.kernels.reference import ReferenceKernels
from ds4py.protocols import Ops, Out, Rope, Rows
from ds4py.quants import decode
from ds4py.state import FullCache, SlidingCache, State


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def weight(tmp_path: Path, array: np.ndarray) -> Any:
    """`array` as a GGUF tensor."""
    write_gguf(tmp_path / "one.gguf", {"general.architecture": "none"}, [NewTensor.of("w", array)])
    return open_gguf(tmp_path / "one.gguf").tensors["w"]


def call(graph: Callable[[Any], Any], pos: Sequence[int], states: Sequence[State] = (), **options: Any) -> Out:
    """Run `graph` on rows at positions `pos`, of one session and asking for all rows unless `span_of`, `logit_rows` differ."""
    i64 = {
        name: np.asarray(options.pop(name, default), np.int64)
        for name, default in (("tokens", [0] * len(pos)), ("span_of", [0] * len(pos)), ("logit_rows", range(len(pos))))
    }
    taps, path = options.pop("taps", ()), options.pop("path", "row")
    rows = Rows(pos=np.asarray(pos, np.int64), states=states or [State([], 10)], path=path, **i64)
    return ReferenceKernels(**options).run("test", graph, rows, taps)


def buf(array: np.ndarray, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(array).to(dtype)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("n_rot", [16, 6])
def test_rope_is_a_complex_rotation(interleaved: bool, n_rot: int) -> None:
    """Each pair as a complex number times magnitude * exp(i * pos * frequency); the dimensions past n_rot stay."""
    n_heads, d, pos = 3, 16, [0, 1, 7, 100_003]
    x, freq = noise(4, n_heads * d), 10000.0 ** -(np.arange(0, n_rot, 2) / n_rot)
    out = call(lambda ops: ops.rope(buf(x), Rope(freq, interleaved, 1.25), n_heads), pos).logits.reshape(4, n_heads, d)
    heads = x.reshape(4, n_heads, d).astype(np.float64)
    first, second = (heads[..., 0:n_rot:2], heads[..., 1:n_rot:2]) if interleaved else np.split(heads[..., :n_rot], 2, -1)
    turned = (first + 1j * second) * 1.25 * np.exp(1j * np.array(pos)[:, None, None] * freq)
    want = heads.copy()
    if interleaved:
        want[..., 0:n_rot:2], want[..., 1:n_rot:2] = turned.real, turned.imag
    else:
        want[..., :n_rot] = np.concatenate([turned.real, turned.imag], -1)
    np.testing.assert_allclose(out, want, atol=1e-5)


@pytest.mark.parametrize("n_heads", [1, 4])
def test_rms_norm(n_heads: int) -> None:
    x, w = noise(5, 32), noise(32 // n_heads)
    out = call(lambda ops: ops.rms_norm(buf(x), w, 1e-3, n_heads), range(5)).logits
    for row in range(5):
        for part in range(n_heads):
            piece = slice(part * len(w), (part + 1) * len(w))
            want = x[row, piece] / (np.mean(x[row, piece].astype(np.float64) ** 2) + 1e-3) ** 0.5 * w
            np.testing.assert_allclose(out[row, piece], want, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("window", [0, 1, 5, 16, 100])
@pytest.mark.parametrize("softcap", [0.0, 1.5])
def test_attend_is_masked_softmax(window: int, softcap: float) -> None:
    """Against one dense masked softmax over the whole history; rows arrive in three calls, so most come from the cache."""
    n, n_heads, n_kv, d = 40, 6, 2, 8
    q, k, v = noise(n, n_heads * d), noise(n, n_kv * d) + 0.5, noise(n, n_kv * d) - 0.25
    cache = SlidingCache(window, 16, n_kv, d, d, np.float32) if window else FullCache(n, n_kv, d, d, np.float32)
    state = State([cache], n)
    out = []
    for lo, hi in ((0, 17), (17, 18), (18, 33), (33, 40)):
        part = slice(lo, hi)
        graph = lambda ops, p=part: ops.attend(buf(q[p]), buf(k[p]), buf(v[p]), 0, n_heads, n_kv, 0.3, softcap)  # noqa: E731
        out.append(call(graph, range(lo, hi), [state]).logits)
        state.advance(hi - lo, False)
    distance = np.arange(n)[:, None] - np.arange(n)
    hidden = (distance < 0) | ((distance >= window) if window else False)
    for head in range(n_heads):
        group = slice(head // 3 * d, (head // 3 + 1) * d)
        scores = q[:, head * d : (head + 1) * d].astype(np.float64) @ k[:, group].T * 0.3
        scores = softcap * np.tanh(scores / softcap) if softcap else scores
        p = np.exp(np.where(hidden, -np.inf, scores))
        want = p / p.sum(-1, keepdims=True) @ v[:, group]
        np.testing.assert_allclose(np.concatenate(out)[:, head * d : (head + 1) * d], want, atol=1e-5)


def test_attend_reads_rows_through_the_cache_dtype() -> None:
    """With float16 caches even the row just written is seen rounded: a replay from the cache must give the same bits."""
    k, v = noise(1, 16), noise(1, 16)
    state = State([FullCache(4, 1, 16, 16, np.float16)], 4)
    out = call(lambda ops: ops.attend(buf(k), buf(k), buf(v), 0, 1, 1, 1.0), [0], [state]).logits
    np.testing.assert_array_equal(out, v.astype(np.float16).astype(np.float32))


def test_attend_keeps_sessions_apart() -> None:
    states = [State([FullCache(4, 1, 8, 8, np.float32)], 4) for _ in range(2)]
    v = noise(3, 8)
    graph = lambda ops: ops.attend(buf(v), buf(v), buf(v), 0, 1, 1, 1.0)  # noqa: E731
    out = call(graph, [0, 0, 1], states, span_of=[0, 1, 1]).logits
    np.testing.assert_allclose(out[:2], v[:2], atol=1e-6)
    assert np.abs(out[2] - v[2]).max() > 0.01


@pytest.mark.parametrize("kind", [GgmlType.F32, GgmlType.F16, GgmlType.Q8_0])
def test_embed_and_linear_decode_the_file(tmp_path: Path, kind: GgmlType) -> None:
    tensor = open_gguf(tiny_gguf("llama", tmp_path / "tiny.gguf", kind)).tensors["token_embd.weight"]
    matrix = decode(tensor.type, tensor.data, 320 * 64).reshape(320, 64)
    w, x, bias = ReferenceKernels().weight(tensor), noise(4, 64), noise(320)
    assert w.shape == (320, 64)
    out = call(lambda ops: ops.embed(w, 8.0), range(3), tokens=[319, 0, 7]).logits
    np.testing.assert_array_equal(out, matrix[[319, 0, 7]] * np.float32(8))
    out = call(lambda ops: ops.linear(buf(x), w, bias), range(4)).logits
    np.testing.assert_allclose(out, x.astype(np.float64) @ matrix.T.astype(np.float64) + bias, atol=1e-4)


def test_float64_computes_in_float64(tmp_path: Path) -> None:
    x, matrix = noise(3, 512), noise(64, 512)
    w = ReferenceKernels().weight(weight(tmp_path, matrix))
    want = (x.astype(np.float64) @ matrix.T.astype(np.float64)).astype(np.float32)
    out = call(lambda ops: ops.linear(buf(x, torch.float64), w), range(3), dtype="float64").logits
    np.testing.assert_array_equal(out, want)
    assert not np.array_equal(call(lambda ops: ops.linear(buf(x), w), range(3)).logits, want)


def test_activations_and_sums() -> None:
    a, b = noise(2, 40) * 4, noise(2, 41)[:, :40]
    a64 = a.astype(np.float64)
    silu = a64 / (1 + np.exp(-a64)) * b
    gelu = 0.5 * a64 * (1 + np.tanh((2 / np.pi) ** 0.5 * (a64 + 0.044715 * a64**3))) * b
    for graph, want in (
        (lambda ops: ops.gated(buf(a), buf(b), "silu"), silu),
        (lambda ops: ops.gated(buf(a), buf(b), "gelu"), gelu),
        (lambda ops: ops.softcap(buf(a), 3.0), 3 * np.tanh(a64 / 3)),
        (lambda ops: ops.add(buf(a), buf(b)), a64 + b),
    ):
        np.testing.assert_allclose(call(graph, range(2)).logits, want, atol=1e-5)
    with pytest.raises(ValueError, match="no activation 'relu'"):
        call(lambda ops: ops.gated(buf(a), buf(b), "relu"), range(2))


def test_pick_offsets_and_taps() -> None:
    x = noise(6, 4)

    def graph(ops: Ops) -> Any:
        ops.tap(0, buf(x))
        ops.tap(1, buf(-x))
        return ops.pick(buf(x))

    states = [State([], 10) for _ in range(3)]
    out = call(graph, range(6), states, logit_rows=[1, 4, 5], span_of=[0, 0, 1, 2, 2, 2], taps=(1,))
    assert list(out.offsets) == [0, 1, 1, 3]
    np.testing.assert_array_equal(out.of(2), x[4:])
    assert out.of(1).shape == (0, 4) and set(out.taps) == {1}
    np.testing.assert_array_equal(out.taps[1], -x)


def test_row_by_row_is_needed_and_enough(tmp_path: Path) -> None:
    """A matrix product's bits depend on its number of rows (else the mode would be pointless); in the mode they do not."""
    x, matrix = noise(65, 640), noise(96, 640)
    w = ReferenceKernels().weight(weight(tmp_path, matrix))

    def rows(n: int, **options: Any) -> np.ndarray:
        return call(lambda ops: ops.linear(buf(x[:n]), w), range(n), **options).logits

    want = rows(65, row_by_row=True)
    for n in range(1, 66):
        np.testing.assert_array_equal(rows(n, row_by_row=True), want[:n])
    assert any(not np.array_equal(rows(n), rows(65)[:n]) for n in range(1, 65))


def test_prefill_path_multiplies_tile_by_tile(tmp_path: Path) -> None:
    x, matrix = noise(64, 640), noise(96, 640)
    w = ReferenceKernels().weight(weight(tmp_path, matrix))

    def tiles(first: int, n: int, path: str) -> np.ndarray:
        graph = lambda ops: ops.linear(buf(x[first : first + n]), w)  # noqa: E731
        return call(graph, range(first, first + n), path=path, row_by_row=True, prefill_tile=16).logits

    whole = tiles(0, 64, "prefill")
    for first, n in ((0, 16), (16, 32), (48, 16)):
        np.testing.assert_array_equal(tiles(first, n, "prefill"), whole[first : first + n])
    assert not np.array_equal(tiles(0, 64, "row"), whole), "the two paths are told apart by their bits"


def test_no_matrix_stays_decoded(tmp_path: Path) -> None:
    """What a loaded model holds is views of the file and vectors."""
    from ds4py.models import load_model

    network = load_model(open_gguf(tiny_gguf("qwen2", tmp_path / "tiny.gguf")), ReferenceKernels()).network
    held = [value for layer in network.blk for value in vars(layer).values()]  # type: ignore[attr-defined]
    assert sum(isinstance(value, np.ndarray) for value in held) == 5 * 3
    assert all(value.ndim == 1 for value in held if isinstance(value, np.ndarray))
    assert not any(isinstance(value, torch.Tensor) for value in held)


def test_impossible_options_are_refused() -> None:
    with pytest.raises(ValueError, match="float32 or float64, not bfloat16"):
        ReferenceKernels("bfloat16")
    with pytest.raises(ValueError, match="not a whole number of tiles of 48"):
        ReferenceKernels(prefill_tile=48, max_rows=64)
