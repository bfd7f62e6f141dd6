"""From GGUF metadata to a tokenizer: the keys, their defaults, and what is refused.

Defaults differ by kind of vocabulary: SentencePiece ones begin with BOS and put a space before every text unless the file says
otherwise; byte-level ones do neither (but for families whose splitting says so). A vocabulary without a BOS id gets none:
llama.cpp's default id 11 is a comma in most of them.
"""

from __future__ import annotations

import numpy as np

from ds4py.errors import FormatError, UnsupportedError
from ds4py.tokenizer.bpe import BpePieces
from ds4py.tokenizer.pretokens import known_names, splitting
from ds4py.tokenizer.spm import SpmPieces
from ds4py.tokenizer.tokenizer import Tokenizer
from ds4py.tokenizer.vocab import MetadataFile, Vocab, array, key, numbers, read_vocab


def load_tokenizer(file: MetadataFile) -> Tokenizer:
    """The tokenizer of a model file, from its metadata alone. Raises FormatError (keys missing or damaged) or UnsupportedError (a
    kind of vocabulary or a splitting that is not known here)."""
    model = key(file, "model", str)
    if model == "gpt2":
        return _byte_level(file, read_vocab(file, model))
    if model == "llama":
        return _sentencepiece(file, read_vocab(file, model))
    if model is None:
        raise FormatError(f"{file.path}: metadata key tokenizer.ggml.model is missing, so the file has no tokenizer")
    raise UnsupportedError(f"{file.path}: tokenizer kind {model!r} is not supported (supported: 'gpt2' and 'llama')")


def _byte_level(file: MetadataFile, vocab: Vocab) -> Tokenizer:
    notes: tuple[str, ...] = ()
    pre = key(file, "pre", str)
    if pre is None:
        pre = "default"
        notes = (
            "the file does not name its pre-tokenizer (tokenizer.ggml.pre): 'default' is used, and text may be split wrongly",
        )
    split = splitting(pre)
    if split is None:
        raise UnsupportedError(
            f"{file.path}: pre-tokenizer {pre!r} (tokenizer.ggml.pre) is not supported, and another one would split text wrongly;"
            f" supported are {', '.join(known_names())}"
        )
    merges = array(file, "merges", 0)
    if merges is None:
        raise FormatError(f"{file.path}: metadata key tokenizer.ggml.merges is missing, but a 'gpt2' vocabulary needs it")
    if len(merges) and not isinstance(merges[0], str):
        raise FormatError(f"{file.path}: metadata key tokenizer.ggml.merges is not an array of strings")
    pieces = BpePieces(vocab, merges, split, file.path)
    return Tokenizer(vocab, pieces, key(file, "add_bos_token", bool, split.add_bos), False, notes)


def _sentencepiece(file: MetadataFile, vocab: Vocab) -> Tokenizer:
    scores = numbers(file, "scores", len(vocab.tokens), np.float32)
    space = key(file, "add_space_prefix", bool, True)
    return Tokenizer(vocab, SpmPieces(vocab, scores, space), key(file, "add_bos_token", bool, True), space)
