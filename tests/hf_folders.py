"""Tiny checkpoint folders as Hugging Face's own libraries write them: random weights by transformers, vocabularies by tokenizers.

    tiny = save_folder("llama", tmp_path / "tiny", dtype="bfloat16", shard="40KB")
    tiny.path, tiny.hf, tiny.logits(ids)       # the folder, and the module with exactly the saved values, in float32
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_models import Tiny, tiny_config, tiny_module
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT_FILE = Path(__file__).parent / "golden" / "alice.txt"
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"\p{N}| ?", r"\p{N}{1,3}| ?")
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
SPACE = "\u2581"


def save_folder(architecture: str, folder: Path, dtype: str = "float32", shard: str = "5GB", **changes: Any) -> Tiny:
    """Save a tiny model with a byte-level tokenizer of 300 tokens. Keywords change the config."""
    tiny_module(tiny_config(architecture, **changes)).to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)
    save_tokenizer(folder)
    saved = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return Tiny(folder, saved.eval())


def save_tokenizer(folder: Path, tokenizer: Tokenizer | None = None, **properties: Any) -> None:
    """Write tokenizer.json and tokenizer_config.json with a chat template, as transformers does."""
    tokenizer = byte_level() if tokenizer is None else tokenizer
    given = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", **properties}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **{k: v for k, v in given.items() if v is not None})
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def byte_level(cut: str = "qwen2", n_tokens: int = 300) -> Tokenizer:
    """A byte-level BPE tokenizer trained on a few thousand words, with two control tokens and one that is ordinary text."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=cut == "llama3"))
    bare = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    steps: dict[str, list[Any]] = {
        "qwen2": [pre_tokenizers.Split(Regex(QWEN2), "isolated"), bare],
        "llama3": [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), bare],
        "smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
        "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
        "changed": [pre_tokenizers.Split(Regex(QWEN2.replace(r"\p{N}", r"\p{N}{2}")), "isolated"), bare],
    }
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps[cut])
    tokenizer.decoder = decoders.ByteLevel()
    if cut == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=n_tokens - 3, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT_FILE.read_text("utf-8")[:20000]], trainer)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<br>", normalized=False)])
    if cut == "llama3":
        template = processors.TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", tokenizer.token_to_id("<|im_start|>"))]
        )
        tokenizer.post_processor = template
    return tokenizer


def edit_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    table = json.loads(path.read_text("utf-8"))
    change(table)
    path.write_text(json.dumps(table), "utf-8")


def quantise_fp8(tiny: Tiny, block: tuple[int, int] = (128, 128)) -> None:
    """Turn the matrices of all layers into FP8 with a scale per block on the disk, and into what that means in the module."""
    path = tiny.path / "model.safetensors"
    saved = load_file(path)
    params = dict(tiny.hf.named_parameters())
    for name in [name for name in saved if name.startswith("model.layers.") and saved[name].ndim == 2]:
        weight = saved[name].float()
        n, k = weight.shape
        scale = torch.zeros(-(-n // block[0]), -(-k // block[1]))
        packed = torch.zeros(n, k, dtype=torch.float8_e4m3fn)
        for i in range(scale.shape[0]):
            for j in range(scale.shape[1]):
                rows, columns = slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1])
                scale[i, j] = weight[rows, columns].abs().max() / 448
                packed[rows, columns] = (weight[rows, columns] / scale[i, j]).to(torch.float8_e4m3fn)
                with torch.no_grad():
                    params[name][rows, columns] = packed[rows, columns].float() * scale[i, j]
        saved[name], saved[name.replace(".weight", ".weight_scale_inv")] = packed, scale
    save_file(saved, path, metadata={"format": "pt"})
    method = {"quant_method": "fp8", "weight_block_size": list(block)}
    edit_json(tiny.path / "config.json", lambda table: table.update(quantization_config=method))


# --- SentencePiece ---------------------------------------------------------------------------------------------------------


def spm_pieces(words: Sequence[str]) -> list[tuple[str, float, int]]:
    """(text, score, type) of a small SentencePiece BPE vocabulary: control, bytes, characters, and every prefix of `words`."""
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    merged = list(dict.fromkeys(word[:n] for word in words for n in range(2, len(word) + 1)))
    characters = sorted({char for word in words for char in word})
    pieces += [(text, -float(i), 1) for i, text in enumerate([*merged, *characters])]
    return pieces


def spm_model(pieces: Sequence[tuple[str, float, int]], kind: int = 2, prefix: bool = True) -> bytes:
    """The bytes of a tokenizer.model, written field by field."""
    out = b""
    for text, score, type_ in pieces:
        piece = _field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + (b"\x18" + bytes([type_]) if type_ != 1 else b"")
        out += _field(1, piece)
    return out + _field(2, b"\x18" + bytes([kind])) + _field(3, _field(1, b"identity") + b"\x18" + bytes([int(prefix)]))


def _field(number: int, data: bytes) -> bytes:
    length, size = b"", len(data)
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


def spm_as_bpe(pieces: Sequence[tuple[str, float, int]], prefix: bool = True, lone_merge: bool = False) -> Tokenizer:
    """The same vocabulary as the BPE that Hugging Face makes of it: a merge for every pair of tokens that makes a token, in the
    order of the score of what is made. This is the oracle for ids."""
    scores = {text: score for text, score, type_ in pieces if type_ == 1}
    merges = [
        (text[:at], text[at:])
        for text in sorted(scores, key=lambda text: -scores[text])
        for at in range(1, len(text))
        if text[:at] in scores and text[at:] in scores
    ]
    if lone_merge:
        merges.insert(0, merges.pop())
    vocab = {text: i for i, (text, _, _) in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    steps: list[Any] = [normalizers.Prepend(SPACE)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    tokenizer.add_special_tokens([text for text, _, type_ in pieces if type_ in (2, 3)])
    return tokenizer


def raw_safetensors(path: Path, tensors: Mapping[str, Any], data: bytes, length: int | None = None) -> Path:
    """A safetensors file with a header of our own making."""
    header = json.dumps(tensors).encode()
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + data)
    return path


def random_ids(n: int, n_vocab: int = 300) -> list[int]:
    return np.random.default_rng(3).integers(0, n_vocab, n).tolist()
