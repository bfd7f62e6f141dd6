"""A bounded cache of experts changes no bit: at every size, for every way in which experts lie in memory, whatever a call takes;
and it does what it says: it holds what was used last, counts, reads ahead of the first token, and stays within its limit.

Whole models with drafts: tests/models/test_streaming.py. Memory of a process: tests/e2e/test_streaming_memory.py.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from products import NO_STATE, random_blocks

from ds4py.errors import ResourceError, UsageError
from ds4py.gguf import GgmlType, NewTensor, open_gguf, write_gguf
from ds4py.kernels.cpu import CpuKernels
from ds4py.kernels.cpu.target import host_paths
from ds4py.kernels.streaming import Geometry, Streaming, deal
from ds4py.protocols import F32, Router, Rows

T = GgmlType
N_TOKENS, N_EXPERTS, TAKEN, K = 40, 9, 3, 256
# gate and up, down, inner width of each layer: packed in several forms, read from the file in two, some with gaps (88 rows are no
# multiple of 16, 288 inputs none of 64)
LAYERS = [
    (T.Q4_K, T.Q4_K, 256), (T.IQ2_XXS, T.Q2_K, 256), (T.Q8_0, T.Q5_0, 288), (T.F16, T.F16, 64), (T.MXFP4, T.Q4_1, 96),
]  # fmt: skip
N_ALL = N_EXPERTS * len(LAYERS)


class Stack:
    """x, then the mixtures one after the other, each routed by the same row of a table of logits, its own numbers of it."""

    def __init__(self, path: Path, kernels: CpuKernels) -> None:
        g = open_gguf(path)
        self.kernels = kernels
        self.x, self.logits = kernels.weight(g.tensors["x"]), kernels.weight(g.tensors["logits"])
        self.eyes = [kernels.weight(g.tensors[f"eye{i}"]) for i in range(len(LAYERS))]
        self.mats = [
            tuple(kernels.experts(g.tensors[f"{part}{i}"]) for part in ("gate", "up", "down")) for i in range(len(LAYERS))
        ]

    def graph(self, ops: Any) -> Any:
        x, logits = ops.embed(self.x), ops.embed(self.logits)
        for eye, mats in zip(self.eyes, self.mats, strict=True):
            routing = ops.route(ops.linear(logits, eye), Router("softmax", TAKEN))
            x = ops.add(x, ops.rms_norm(ops.experts(x, routing, *mats, "silu"), None, 1e-6))
        return x

    def run(self, tokens: list[int]) -> F32:
        ids = np.array(tokens, np.int64)
        rows = Rows(ids, np.zeros_like(ids), (NO_STATE,), np.zeros_like(ids), np.arange(len(ids)))
        return self.kernels.run(self, self.graph, rows, ()).logits.copy()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(2)
    width = N_EXPERTS * len(LAYERS)
    tensors = [
        NewTensor.of("x", (rng.standard_normal((N_TOKENS, K)) / 16).astype(np.float32)),
        NewTensor.of("logits", np.pad(2 * rng.standard_normal((N_TOKENS, width)), ((0, 0), (0, -width % 32))).astype(np.float32)),
    ]
    eye = np.eye(width + -width % 32, dtype=np.float32)
    tensors += [NewTensor.of(f"eye{i}", eye[i * N_EXPERTS : (i + 1) * N_EXPERTS]) for i in range(len(LAYERS))]
    for i, (kind, last, n_ff) in enumerate(LAYERS):
        for name, shape, of in (("gate", (K, n_ff), kind), ("up", (K, n_ff), kind), ("down", (n_ff, K), last)):
            blocks = random_blocks(of, K * n_ff * N_EXPERTS, rng)
            tensors.append(NewTensor(f"{name}{i}", (*shape, N_EXPERTS), of, blocks))
    path = tmp_path_factory.mktemp("stack") / "stack.gguf"
    write_gguf(path, {"general.architecture": "test"}, tensors)
    return path


def batches() -> list[list[int]]:
    """Decoding, verifying, prompts, one expert for all rows, and again."""
    rng = np.random.default_rng(5)
    sizes = [1, 1, 1, 2, 5, 1, 6, 33, 1, 1, 8, 40, 3, 1, 1]
    return [*(rng.permutation(N_TOKENS)[:n].tolist() for n in sizes), [4] * 20, [4], [7, 4, 7]]


@pytest.fixture(scope="module", params=host_paths())
def hardware(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def plain(file: Path, hardware: str) -> list[F32]:
    stack = Stack(file, CpuKernels(2, 40, hardware))
    found = [stack.run(tokens) for tokens in batches()]
    stack.kernels.executor.close()
    return found


def counts(kernels: CpuKernels) -> Any:
    assert kernels.expert_cache is not None
    return kernels.expert_cache.counts()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_no_bit_depends_on_the_size_of_the_cache(file: Path, hardware: str, plain: list[F32], threads: int) -> None:
    """From one seat for five layers to one for every expert, and whole layers before others."""
    sizes = [1, 2, 3, 4, 5, 6, 9, 11, 15, 20, 30, 44, N_ALL, 1000]
    rates = []
    for n in sizes if threads == 2 else sizes[::3]:
        for full in (0, 2):
            kernels = CpuKernels(threads, 40, hardware, streaming=Streaming(n, full_layers=full))
            stack = Stack(file, kernels)
            for tokens, want in zip(batches(), plain, strict=True):
                assert_array_equal(stack.run(tokens), want, err_msg=f"{n} seats, {len(tokens)} rows")
            kernels.executor.close()
            done = counts(kernels)
            assert done.n_seats == min(n, N_ALL) and done.n_experts == N_ALL
            if not full:
                rates.append(done.hits / (done.hits + done.misses))
    assert all(a <= b + 0.02 for a, b in pairwise(rates)) and rates[0] < 0.05 and rates[-1] > 0.7, rates


def test_two_programs_and_a_late_draft_share_the_cache(file: Path, hardware: str, plain: list[F32]) -> None:
    """Layers of a second model come while the first is running: seats are dealt anew, results stay."""
    kernels = CpuKernels(2, 40, hardware, streaming=Streaming(12))
    first, second = Stack(file, kernels), Stack(file, kernels)
    for i, (tokens, want) in enumerate(zip(batches(), plain, strict=True)):
        assert_array_equal(first.run(tokens), want)
        if i > 4:
            assert_array_equal(second.run(tokens[::-1]), want[::-1])
    assert counts(kernels).n_seats == 12 and counts(kernels).n_experts == 2 * N_ALL
    kernels.executor.close()


def test_what_was_used_last_is_there_and_a_batch_does_not_drive_it_out(file: Path) -> None:
    """Five seats a layer: a row's three experts hit when it comes again; a prompt that takes all nine keeps four of its
    five seats' worth of what it found."""
    kernels = CpuKernels(2, 40, streaming=Streaming(5 * len(LAYERS)))
    stack = Stack(file, kernels)
    n_bytes = sum(part.file_stride for mats in stack.mats for part in mats)
    stack.run([3])
    cold = counts(kernels)
    assert (cold.hits, cold.misses, cold.bytes_read) == (0, 3 * len(LAYERS), 3 * n_bytes)
    stack.run([3])
    warm = counts(kernels)
    assert (warm.hits, warm.misses, warm.bytes_read) == (3 * len(LAYERS), cold.misses, cold.bytes_read)
    stack.run(list(range(40)))
    stack.run([3])
    after = counts(kernels)
    assert after.hits - warm.hits == 6 * len(LAYERS), "the three were there for the prompt, and after it"
    kernels.executor.close()


def test_experts_are_read_before_the_first_token(file: Path, hardware: str, plain: list[F32]) -> None:
    kernels = CpuKernels(2, 40, hardware, streaming=Streaming(preload=10_000))
    stack = Stack(file, kernels)
    kernels.ready(stack, stack.graph)
    kernels.preload()
    assert counts(kernels).preloaded == N_ALL and counts(kernels).misses == 0
    for tokens in batches():
        stack.run(tokens)
    assert counts(kernels).misses == 0 and counts(kernels).bytes_read == 0 and counts(kernels).hits > 100
    kernels.executor.close()
    few = CpuKernels(2, 40, hardware, streaming=Streaming(12, preload=7))
    stack = Stack(file, few)
    few.ready(stack, stack.graph)
    few.preload()
    assert counts(few).preloaded == 7
    for tokens, want in zip(batches(), plain, strict=True):
        assert_array_equal(stack.run(tokens), want)
    few.executor.close()


def test_what_cannot_be_read_is_an_error_and_is_read_again(file: Path, hardware: str, plain: list[F32], tmp_path: Path) -> None:
    """A file that is cut short under a running model is a sentence, where touching a mapped page would end the process; once it
    is whole, so are the results."""
    own, whole = tmp_path / "own.gguf", file.read_bytes()
    own.write_bytes(whole)
    kernels = CpuKernels(2, 40, hardware, streaming=Streaming(12))
    stack = Stack(own, kernels)
    os.truncate(own, len(whole) - N_EXPERTS * K * 96 // 2)
    with pytest.raises(ResourceError, match="could not be read from the model file"):
        stack.run(list(range(40)))
    with own.open("r+b") as again:
        again.write(whole)
    for tokens, want in zip(batches(), plain, strict=True):
        assert_array_equal(stack.run(tokens), want)
    kernels.executor.close()


@pytest.mark.parametrize("kind", [T.IQ2_XXS, T.Q2_K], ids=lambda k: k.name)
def test_an_expert_has_the_bits_of_the_same_matrix_by_itself(kind: GgmlType, hardware: str, tmp_path: Path) -> None:
    """From the file's layout (IQ2_XXS) or packed on entering the cache (Q2_K), as when the whole tensor is a plain matrix."""
    rng = np.random.default_rng(8)
    blocks = np.frombuffer(random_blocks(kind, 4 * K * K, rng), np.uint8)
    one = np.stack([np.eye(K, dtype=np.float32)] * 4)
    logits = np.eye(4, 32, dtype=np.float32) * 9
    tensors = [
        NewTensor.of("x", rng.standard_normal((4, K)).astype(np.float32)),
        NewTensor.of("logits", logits),
        NewTensor.of("eye", np.eye(4, 32, dtype=np.float32)),
        NewTensor("w", (K, K, 4), kind, blocks.tobytes()),
        NewTensor.of("one", one),
        *(NewTensor(f"w{e}", (K, K), kind, part.tobytes()) for e, part in enumerate(blocks.reshape(4, -1))),
    ]
    write_gguf(tmp_path / "w.gguf", {"general.architecture": "test"}, tensors)
    g = open_gguf(tmp_path / "w.gguf")
    kernels = CpuKernels(2, 8, hardware, streaming=Streaming(2))
    x, table, eye = (kernels.weight(g.tensors[name]) for name in ("x", "logits", "eye"))
    w, same = kernels.experts(g.tensors["w"]), kernels.experts(g.tensors["one"])
    alone = [kernels.weight(g.tensors[f"w{e}"]) for e in range(4)]
    ids = np.arange(4)
    rows = Rows(ids, np.zeros_like(ids), (NO_STATE,), np.zeros_like(ids), ids)

    def mixed(ops: Any) -> Any:
        routing = ops.route(ops.linear(ops.embed(table), eye), Router("softmax", 1))
        return ops.experts(ops.embed(x), routing, w, w, same, "silu")

    def apart(e: int) -> Any:
        def graph(ops: Any) -> Any:
            y = ops.linear(ops.embed(x), alone[e])
            return ops.gated(y, y, "silu")

        return graph

    found = kernels.run("mixed", mixed, rows, ()).logits.copy()
    for e in range(4):
        assert_array_equal(found[e], kernels.run(("apart", e), apart(e), rows, ()).logits[e])
    kernels.executor.close()


# --- dealing ---------------------------------------------------------------------------------------------------------------

FLASH = [Geometry(8_527_872, 256)] * 37 + [Geometry(14_155_776, 256)] * 6


@pytest.mark.parametrize("full", [0, 3, 43])
@pytest.mark.parametrize("limit", [1, 7, 42, 43, 44, 500, 2000, 11_008, 20_000])
def test_seats_are_dealt_within_the_limit(limit: int, full: int) -> None:
    for asked in (Streaming(limit, None, full), Streaming(None, limit * 14_155_776, full)):
        shelves = deal(FLASH, asked)
        assert [i for shelf in shelves for i in shelf.layers] == list(range(43))
        assert all(1 <= shelf.n_seats <= 256 for shelf in shelves)
        seats = sum(shelf.n_seats for shelf in shelves)
        n_bytes = sum(shelf.n_seats * max(FLASH[i].seat_bytes for i in shelf.layers) for shelf in shelves)
        if asked.n_experts is not None:
            assert seats == min(limit, 11_008)
        else:
            assert n_bytes <= limit * 14_155_776 and (n_bytes > 0.8 * limit * 14_155_776 or seats == 11_008 or limit < 44)
        if not full and seats >= 43:
            own = [shelf.n_seats for shelf in shelves]
            assert max(own) - min(own) <= 1 or asked.n_bytes is not None


def test_whole_layers_come_first_as_far_as_they_fit() -> None:
    assert [shelf.n_seats for shelf in deal(FLASH, Streaming(600, full_layers=3))][:3] == [256, 256, 3]
    assert [shelf.n_seats for shelf in deal(FLASH, Streaming(11_008, full_layers=3))] == [256] * 43


def test_room_for_less_than_one_expert_is_refused() -> None:
    with pytest.raises(UsageError, match=r"takes 14\.16 MB: the cache of experts must have room for one"):
        deal(FLASH, Streaming(n_bytes=14_000_000))
