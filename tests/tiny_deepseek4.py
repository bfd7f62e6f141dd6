"""DeepSeek V4 checkpoints as they are released (names, shapes, number formats): tiny with random weights, or whole without data.

    folder = save_checkpoint(tmp_path / "tiny", draft="dspark")      folder.path, folder.values[name] = what the bytes mean
    outline(tmp_path / "flash", FLASH, draft="dspark")               every tensor of the real model, as a hole in the disk

The list of tensors is told here a second time, from the published description and our own reference implementation of it (the
one the numerics are tested with), and not taken from the converter. FP8 is E4M3 with an E8M0 scale for each 128 x 128 block, FP4
is two E2M1 values in a byte, the first one low, with an E8M0 scale for each 32 of a row; torch makes the FP8 numbers.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

FLASH: Mapping[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": 129280, "hidden_size": 4096,
    "num_hidden_layers": 43, "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64,
    "q_lora_rank": 1024, "o_lora_rank": 1024, "o_groups": 8, "sliding_window": 128,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0, 0, 0], "compress_rope_theta": 160000, "rope_theta": 10000,
    "rope_scaling": {"type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 65536},
    "max_position_embeddings": 1048576, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 6, "moe_intermediate_size": 2048,
    "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0, "num_hash_layers": 3, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-6,
    "num_nextn_predict_layers": 1, "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0,
    "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1, "expert_dtype": "fp4",
    "quantization_config": {
        "quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    },
    "initializer_range": 0.02, "torch_dtype": "bfloat16",
}  # fmt: skip
TINY: Mapping[str, Any] = {
    **FLASH, "vocab_size": 352, "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "head_dim": 80,
    "qk_rope_head_dim": 16, "q_lora_rank": 64, "o_lora_rank": 32, "o_groups": 2, "sliding_window": 16,
    "compress_ratios": [0, 0, 4, 128, 4, 128, 0, 0, 0], "max_position_embeddings": 1024, "index_n_heads": 16,
    "index_head_dim": 32, "index_topk": 8, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
    "swiglu_limit": 0.5, "num_hash_layers": 2, "num_nextn_predict_layers": 3, "dspark_markov_rank": 32,
    "dspark_target_layer_ids": [3, 4, 5], "dspark_noise_token_id": 319,
    "rope_scaling": {"type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 64},
}  # fmt: skip
PREVIEW = {"compress_ratios": [0, 0, 4, 128, 4, 128, 0], "num_nextn_predict_layers": 1}  # of a tiny model with one MTP block

CONTROL = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
ADDED = (
    *("<｜User｜>", "<｜Assistant｜>", "<|EOT|>", "<think>", "</think>", "｜DSML｜", "<｜latest_reminder｜>", "<｜action｜>"),
    *("<｜query｜>", "<｜authority｜>", "<｜domain｜>", "<｜title｜>", "<｜read_url｜>"),
)
CUTS = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
)
_TEXT = Path(__file__).parent / "golden" / "alice.txt"
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
_BYTES = {"F32": 4, "BF16": 2, "I64": 8, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}


@dataclass(frozen=True)
class Folder:
    """values: float32 (ids: int64) by tensor name, scales applied; raw: (type, shape, bytes) as saved."""

    path: Path
    config: Mapping[str, Any]
    values: dict[str, np.ndarray] = field(default_factory=dict)
    raw: dict[str, tuple[str, tuple[int, ...], bytes]] = field(default_factory=dict)


# --- which tensors there are -----------------------------------------------------------------------------------------------

Spec = tuple[str, str, tuple[int, ...]]  # name, format ("fp8" and "fp4" mean weight and scale), shape of the values


def tensors(c: Mapping[str, Any], draft: str = "") -> Iterator[Spec]:
    """Everything in a checkpoint. draft: "", "mtp" (the preview's block) or "dspark" (three stages)."""
    d, n = c["hidden_size"], c["hc_mult"]
    yield from (("embed.weight", "BF16", (c["vocab_size"], d)), ("head.weight", "BF16", (c["vocab_size"], d)))
    yield ("norm.weight", "BF16", (d,))
    yield from head("", n, d)
    for i in range(c["num_hidden_layers"]):
        ratio, p = c["compress_ratios"][i], f"layers.{i}."
        yield from block(c, p, hashed=i < c["num_hash_layers"])
        if ratio:
            yield from compressor(f"{p}attn.compressor.", ratio, c["head_dim"], d)
        if ratio == 4:
            heads, width, q = c["index_n_heads"], c["index_head_dim"], f"{p}attn.indexer."
            yield (f"{q}wq_b.weight", "fp8", (heads * width, c["q_lora_rank"]))
            yield (f"{q}weights_proj.weight", "BF16", (heads, d))
            yield from compressor(f"{q}compressor.", ratio, width, d)
    if draft == "mtp":
        yield from block(c, "mtp.0.", hashed=False)
        yield from ((f"mtp.0.{name}.weight", "fp8", (d, d)) for name in ("e_proj", "h_proj"))
        yield from ((f"mtp.0.{name}.weight", "BF16", (d,)) for name in ("enorm", "hnorm", "norm"))
        yield from head("mtp.0.", n, d)
    elif draft == "dspark":
        rank = c.get("dspark_markov_rank", 256)
        for s in range(3):
            yield from block(c, f"mtp.{s}.", hashed=False)
        yield from (("mtp.0.main_proj.weight", "fp8", (d, 3 * d)), ("mtp.0.main_norm.weight", "BF16", (d,)))
        yield from (("mtp.2.norm.weight", "BF16", (d,)), *head("mtp.2.", n, d))
        yield from ((f"mtp.2.markov_head.markov_{w}.weight", "BF16", (c["vocab_size"], rank)) for w in ("w1", "w2"))
        yield ("mtp.2.confidence_head.proj.weight", "BF16", (1, d + rank))


def head(p: str, n: int, d: int) -> Iterator[Spec]:
    yield from ((f"{p}hc_head_fn", "F32", (n, n * d)), (f"{p}hc_head_base", "F32", (n,)), (f"{p}hc_head_scale", "F32", (1,)))


def compressor(p: str, ratio: int, width: int, d: int) -> Iterator[Spec]:
    w = 2 * width if ratio == 4 else width
    yield from ((f"{p}ape", "F32", (ratio, w)), (f"{p}norm.weight", "BF16", (width,)))
    yield from ((f"{p}{name}.weight", "BF16", (w, d)) for name in ("wkv", "wgate"))


def block(c: Mapping[str, Any], p: str, hashed: bool) -> Iterator[Spec]:
    d, n, heads, width = c["hidden_size"], c["hc_mult"], c["num_attention_heads"], c["head_dim"]
    q, o, groups, ff, e = (c[k] for k in ("q_lora_rank", "o_lora_rank", "o_groups", "moe_intermediate_size", "n_routed_experts"))
    for site in ("attn", "ffn"):
        yield (f"{p}hc_{site}_fn", "F32", ((n + 2) * n, n * d))
        yield (f"{p}hc_{site}_base", "F32", ((n + 2) * n,))
        yield (f"{p}hc_{site}_scale", "F32", (3,))
        yield (f"{p}{site}_norm.weight", "BF16", (d,))
    a = f"{p}attn."
    yield from ((f"{a}attn_sink", "F32", (heads,)), (f"{a}q_norm.weight", "BF16", (q,)), (f"{a}kv_norm.weight", "BF16", (width,)))
    yield from ((f"{a}wq_a.weight", "fp8", (q, d)), (f"{a}wq_b.weight", "fp8", (heads * width, q)))
    yield from ((f"{a}wkv.weight", "fp8", (width, d)), (f"{a}wo_a.weight", "fp8", (groups * o, heads // groups * width)))
    yield (f"{a}wo_b.weight", "fp8", (d, groups * o))
    yield (f"{p}ffn.gate.weight", "BF16", (e, d))
    if hashed:
        yield (f"{p}ffn.gate.tid2eid", "I64", (c["vocab_size"], c["num_experts_per_tok"]))
    else:
        yield (f"{p}ffn.gate.bias", "F32", (e,))
    for w, shape in (("w1", (ff, d)), ("w3", (ff, d)), ("w2", (d, ff))):
        yield (f"{p}ffn.shared_experts.{w}.weight", "fp8", shape)
        yield from ((f"{p}ffn.experts.{i}.{w}.weight", "fp4", shape) for i in range(e))


def stored(spec: Spec) -> Iterator[Spec]:
    """The tensors that are saved for one of the list: (name, type, shape) each."""
    name, kind, shape = spec
    scale = name.removesuffix("weight") + "scale"
    if kind == "fp8":
        yield from ((name, "F8_E4M3", shape), (scale, "F8_E8M0", tuple(-(-n // 128) for n in shape)))
    elif kind == "fp4":
        yield from ((name, "I8", (shape[0], shape[1] // 2)), (scale, "F8_E8M0", (shape[0], shape[1] // 32)))
    else:
        yield spec


# --- with weights ----------------------------------------------------------------------------------------------------------


def save_checkpoint(path: Path, draft: str = "", seed: int = 0, **changes: Any) -> Folder:
    """A tiny checkpoint with a tokenizer. Keywords change the config."""
    folder = Folder(path, {**TINY, **changes})
    rng = np.random.default_rng(seed)
    for name, kind, shape in tensors(folder.config, draft):
        _make(folder, rng, name, kind, shape)
    path.mkdir()
    (path / "config.json").write_text(json.dumps(folder.config))
    save_tokenizer(path)
    write(path / "model.safetensors", folder.raw)
    return folder


def _make(folder: Folder, rng: np.random.Generator, name: str, kind: str, shape: tuple[int, ...]) -> None:
    c = folder.config
    if kind == "I64":
        ids = np.stack([rng.permutation(c["n_routed_experts"])[: shape[1]] for _ in range(shape[0])])
        folder.values[name], folder.raw[name] = ids, (kind, shape, ids.astype("<i8").tobytes())
        return
    if kind in ("fp4", "fp8"):
        codes, scales, folder.values[name] = random_fp4(rng, shape) if kind == "fp4" else to_fp8(_random(rng, name, shape))
        folder.raw[name] = ("I8" if kind == "fp4" else "F8_E4M3", codes.shape, codes.tobytes())
        folder.raw[name.removesuffix("weight") + "scale"] = ("F8_E8M0", scales.shape, scales.tobytes())
        return
    weight = _random(rng, name, shape)
    if kind == "BF16":
        halves = (weight.view(np.uint32) >> 16).astype("<u2")  # cut, not rounded
        folder.raw[name] = (kind, shape, halves.tobytes())
        folder.values[name] = (halves.astype(np.uint32) << 16).view(np.float32)
        return
    folder.raw[name], folder.values[name] = (kind, shape, weight.tobytes()), weight


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """float32 of sizes at which every part of the network matters."""
    noise = rng.standard_normal(shape, np.float32)
    if name.endswith("norm.weight"):
        size = 1 + 0.1 * noise
    elif name.endswith("_scale"):
        size = 0.5 + rng.random(shape, np.float32)
    elif len(shape) == 1 or name.endswith("ape"):
        size = (1.0 if name.endswith("attn_sink") else 0.1 if name.endswith("gate.bias") else 0.5) * noise
    else:
        size = noise if name == "embed.weight" else noise / np.float32(math.sqrt(shape[-1]))
    return np.ascontiguousarray(size, np.float32)


def to_fp8(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(bytes [n, k], scale bytes per block, what they mean): the largest value of a block is at most 448 of its scale."""
    n, k = weight.shape
    padded = np.zeros((-(-n // 128) * 128, -(-k // 128) * 128), np.float32)
    padded[:n, :k] = np.abs(weight)
    largest = padded.reshape(padded.shape[0] // 128, 128, -1, 128).max(axis=(1, 3))
    scales = (127 + np.ceil(np.log2(largest / 448))).astype(np.uint8)
    size = np.exp2(scales.astype(np.float32) - 127).repeat(128, 0).repeat(128, 1)[:n, :k]
    codes = torch.from_numpy(weight / size).to(torch.float8_e4m3fn)
    return codes.view(torch.uint8).numpy(), scales, codes.float().numpy() * size


def random_fp4(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(bytes [n, k / 2], scale bytes [n, k / 32], what they mean [n, k]): all codes, both zeros too; about 1 / sqrt(k) large."""
    n, k = shape
    codes = rng.integers(0, 256, (n, k // 2), np.uint8)
    usual = 127 - round(math.log2(2.93 * math.sqrt(k)))  # 2.93 is the root mean square of the levels
    scales = rng.integers(usual - 1, usual + 2, (n, k // 32), np.uint8)
    nibbles = np.stack([codes & 15, codes >> 4], axis=-1).reshape(n, k // 32, 32)
    size = np.ldexp(1.0, scales.astype(int) - 127)[..., None]
    return codes, scales, (_E2M1[nibbles] * size).reshape(n, k).astype(np.float32)


def write(path: Path, raw: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    table, at = {}, 0
    for name, (kind, shape, data) in raw.items():
        table[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    header = json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"".join(data for _, _, data in raw.values()))


def save_tokenizer(path: Path) -> None:
    """A small byte-level vocabulary cut as DeepSeek's is, with its markers, BOS first."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    splits = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in CUTS]
    bare = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, bare])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=[*CONTROL], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([_TEXT.read_text("utf-8")[:8000]], trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in ADDED])
    tokenizer.save(str(path / "tokenizer.json"))
    named = {"bos_token": CONTROL[0], "eos_token": CONTROL[1], "add_bos_token": False, "add_eos_token": False}
    (path / "tokenizer_config.json").write_text(json.dumps(named))


# --- without weights -------------------------------------------------------------------------------------------------------


def outline(path: Path, config: Mapping[str, Any], draft: str = "") -> Path:
    """A folder with every tensor of `config`, whose weights are a hole in the file."""
    table, at = {}, 0
    for spec in tensors(config, draft):
        for name, kind, shape in stored(spec):
            n_bytes = math.prod(shape) * _BYTES[kind]
            table[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + n_bytes]}
            at += n_bytes
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    save_tokenizer(path)
    header = json.dumps(table).encode()
    with (path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + at)
    return path
