"""The texts around a vocabulary: which tokens begin and end a text, and the chat templates.

Special tokens are named in tokenizer_config.json by spelling, in config.json and generation_config.json by id. Spelling wins
where both speak, since configs of fine-tuned models often keep the ids of their base. Templates lie in chat_template.jinja and
additional_chat_templates/, in chat_template.json, or in tokenizer_config.json, as one text or a set of named ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ds4py.convert.checkpoint import read_json
from ds4py.convert.config import Config
from ds4py.convert.vocabulary import Vocabulary
from ds4py.errors import FormatError, ResourceError

# "seperator" is how the format spells it
_NAMES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "sep": "seperator", "mask": "mask"}


def special_metadata(folder: Path, config: Config, vocab: Vocabulary, tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """Ids of special tokens and whether BOS and EOS are added. `tokenizer` is tokenizer.json, or empty."""
    told = optional_json(folder / "tokenizer_config.json")
    spelled = {**optional_json(folder / "special_tokens_map.json"), **{k: v for k, v in told.items() if v is not None}}
    keys: dict[str, Any] = {}
    for theirs, ours in _NAMES.items():
        found = _spelled(spelled.get(f"{theirs}_token"), vocab)
        if found is None and theirs in ("bos", "eos", "pad"):
            found = _numbered(config.get(f"{theirs}_token_id"), vocab)
        if found is not None:
            keys[f"tokenizer.ggml.{ours}_token_id"] = found
    others = [i for i in _end_ids(folder, config, vocab) if i != keys.get("tokenizer.ggml.eos_token_id")]
    if others and "tokenizer.ggml.eos_token_id" in keys:
        keys["tokenizer.ggml.eot_token_id"] = others[0]
    bos = keys.get("tokenizer.ggml.bos_token_id")
    by_default = vocab.kind == "llama" if not tokenizer else bos is not None and _begins_with(tokenizer, vocab.tokens[bos].text)
    keys["tokenizer.ggml.add_bos_token"] = _flag(told, "add_bos_token", by_default)
    if told.get("add_eos_token") is not None:
        keys["tokenizer.ggml.add_eos_token"] = _flag(told, "add_eos_token", False)
    return keys


def template_metadata(folder: Path) -> dict[str, Any]:
    """The chat templates; empty if there is none."""
    found = dict(_templates(folder))
    keys: dict[str, Any] = {}
    named = sorted(name for name in found if name != "default")
    if named:
        keys["tokenizer.chat_templates"] = named
        keys |= {f"tokenizer.chat_template.{name}": found[name] for name in named}
    if "default" in found:
        keys["tokenizer.chat_template"] = found["default"]
    return keys


def optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _templates(folder: Path) -> Iterator[tuple[str, str]]:
    """(name, text), weaker sources first."""
    for source in ("tokenizer_config.json", "chat_template.json"):
        value = optional_json(folder / source).get("chat_template")
        if isinstance(value, str):
            yield "default", value
        elif isinstance(value, list):
            for row in value:
                if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("name", "template")):
                    raise FormatError(f"{folder / source}: the chat template {row!r:.60} has no name or no text")
                yield _safe_name(row["name"], folder / source), row["template"]
        elif value is not None:
            raise FormatError(f"{folder / source}: chat_template is neither a text nor a list")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        yield _safe_name(path.stem, path), _text(path)
    if (folder / "chat_template.jinja").exists():
        yield "default", _text(folder / "chat_template.jinja")


def _safe_name(name: str, path: Path) -> str:
    if not name or not all(char.isalnum() or char in "_-" for char in name):
        raise FormatError(f"{path}: {name!r:.60} is no name for a chat template")
    return name


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise FormatError(f"{path}: the chat template is not UTF-8 text") from None
    except OSError as error:
        raise ResourceError(f"{path}: cannot be read: {error.strerror or error}") from error


def _spelled(value: Any, vocab: Vocabulary) -> int | None:
    text = value.get("content") if isinstance(value, dict) else value
    return vocab.find(text) if isinstance(text, str) and text else None


def _numbered(value: Any, vocab: Vocabulary) -> int | None:
    """The first id of a number or a list that is a token."""
    ids = value if isinstance(value, list) else [value]
    return next((i for i in ids if isinstance(i, int) and not isinstance(i, bool) and 0 <= i < len(vocab.tokens)), None)


def _end_ids(folder: Path, config: Config, vocab: Vocabulary) -> Iterator[int]:
    """All ids that end a text, by the two configs."""
    for value in (optional_json(folder / "generation_config.json").get("eos_token_id"), config.get("eos_token_id")):
        for item in value if isinstance(value, list) else [value]:
            if (found := _numbered(item, vocab)) is not None:
                yield found


def _begins_with(tokenizer: Mapping[str, Any], bos: str) -> bool:
    """Whether tokenizer.json puts `bos` before a single text."""
    node = tokenizer.get("post_processor") or {}
    steps = node.get("processors") or [node]
    for step in steps:
        single = step.get("single") if isinstance(step, dict) else None
        if isinstance(single, list) and single and isinstance(single[0], dict):
            return bool((single[0].get("SpecialToken") or {}).get("id") == bos)
    return False


def _flag(table: Mapping[str, Any], key: str, default: bool) -> bool:
    value = table.get(key)
    return value if isinstance(value, bool) else default
