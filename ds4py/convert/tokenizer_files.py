"""Which tokenizer a folder has, and all metadata that follows from it.

A byte-level tokenizer.json is taken as it stands. Otherwise tokenizer.model is the better source, since it has the scores
themselves; a rewritten tokenizer.json serves where it is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ds4py.convert.checkpoint import read_json
from ds4py.convert.config import Config
from ds4py.convert.sentencepiece import read_sentencepiece
from ds4py.convert.specials import optional_json, special_metadata, template_metadata
from ds4py.convert.tokenizer_json import added_tokens, is_byte_level, read_byte_level, read_rewritten
from ds4py.convert.vocabulary import Vocabulary
from ds4py.errors import FormatError


def read_vocabulary(folder: Path, override: str = "") -> Vocabulary:
    """The folder's vocabulary; `override` names the pre-tokenizer. FormatError if there is none."""
    written, model = folder / "tokenizer.json", folder / "tokenizer.model"
    table = read_json(written) if written.exists() else {}
    if table and is_byte_level(table):
        return read_byte_level(table, written, override)
    if model.exists():
        return read_sentencepiece(model, added_tokens(table, written) if table else _added(folder))
    if table:
        return read_rewritten(table, written)
    raise FormatError(f"{folder}: there is neither a tokenizer.json nor a tokenizer.model here")


def tokenizer_metadata(folder: Path, config: Config, vocab: Vocabulary) -> dict[str, Any]:
    """All `tokenizer.*` keys."""
    table = optional_json(folder / "tokenizer.json")
    prefix = optional_json(folder / "tokenizer_config.json").get("add_prefix_space")
    keys = {**vocab.metadata(), **special_metadata(folder, config, vocab, table), **template_metadata(folder)}
    if vocab.kind == "llama" and isinstance(prefix, bool):
        keys["tokenizer.ggml.add_space_prefix"] = prefix
    return keys


def _added(folder: Path) -> dict[str, tuple[int, bool]]:
    """Added tokens where there is no tokenizer.json: a list with properties, or the older table of ids."""
    path = folder / "tokenizer_config.json"
    rows = optional_json(path).get("added_tokens_decoder")
    if isinstance(rows, dict) and rows:
        listed = [{**row, "id": int(i)} for i, row in rows.items() if isinstance(row, dict) and i.isdecimal()]
        return added_tokens({"added_tokens": listed}, path)
    path = folder / "added_tokens.json"
    old = [{"content": text, "id": i, "special": True} for text, i in optional_json(path).items()]
    return added_tokens({"added_tokens": old}, path)
