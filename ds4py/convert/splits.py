"""Which `tokenizer.ggml.pre` a tokenizer.json asks for, recognised by what its pre-tokenizer does.

The idea: the pre-tokenizer and normaliser are reduced to the list of expressions that cut the text, and that list is looked up
in the tokenizer's own table; so what is recognised here is what can be run. Anything that leaves the known forms, be it one
character of an expression, is unknown: the conversion stops and prints a hash of the parts, and the user may name a
pre-tokenizer to use in its place.
Rejected: recognising a tokenizer by the ids it gives to a test text (a changed vocabulary then counts as unknown, and two
expressions that differ only on other text count as one).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ds4py.errors import UnsupportedError, UsageError
from ds4py.tokenizer.pretokens import known_names, splitting


def pre_tokenizer(table: Mapping[str, Any], path: Path, override: str = "") -> str:
    """The name for the tokenizer.json in `table`. `override` is used as it is, if it is known.
    Raises UnsupportedError with the hash for an unknown one, UsageError for an unknown `override`."""
    if override:
        if splitting(override) is None:
            raise UsageError(f"--pre-tokenizer {override!r} is not known; known are {', '.join(known_names())}")
        return override
    try:
        patterns = tuple(map(_spelled, _cuts(table.get("pre_tokenizer"))))
        _check_normalizer(table.get("normalizer"))
        name = _named(patterns, _whole_words(table))
    except _Unknown:
        name = None
    if name is None:
        raise UnsupportedError(
            f"{path}: the pre-tokenizer {fingerprint(table)} is not known, and another one would split text wrongly; "
            "if you know which one it equals, say --pre-tokenizer NAME"
        )
    return name


def fingerprint(table: Mapping[str, Any]) -> str:
    """A short hash of all that decides how text is cut."""
    parts = {"normalizer": table.get("normalizer"), "pre": table.get("pre_tokenizer"), "whole": _whole_words(table)}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


class _Unknown(Exception):
    """A step that is in no table."""


def _whole_words(table: Mapping[str, Any]) -> bool:
    model = table.get("model")
    return isinstance(model, dict) and model.get("ignore_merges") is True


def _named(patterns: tuple[str, ...], whole_words: bool) -> str | None:
    """The best-known name of this splitting."""
    favourites = ("llama-bpe", "qwen2", "smollm", "gpt-2", "gpt-4o", "glm4", "deepseek-v3")
    for name in (*favourites, *known_names()):
        found = splitting(name)
        if found is not None and (tuple(map(_spelled, found.patterns)), found.whole_words) == (patterns, whole_words):
            return name
    return None


def _spelled(pattern: str) -> str:
    """The expression with line breaks and tabs as escapes; DeepSeek's has the characters themselves."""
    return pattern.replace("\r", r"\r").replace("\n", r"\n").replace("\t", r"\t")


def _steps(node: Any, key: str) -> Iterator[Mapping[str, Any]]:
    """The single steps of a node, sequences taken apart."""
    if node is None:
        return
    if not isinstance(node, dict):
        raise _Unknown
    if node.get("type") != "Sequence":
        yield node
        return
    inner = node.get(key)
    if not isinstance(inner, list):
        raise _Unknown
    for item in inner:
        yield from _steps(item, key)


def _cuts(node: Any) -> Iterator[str]:
    """The expressions that cut the text, in order."""
    byte_level = False
    for step in _steps(node, "pretokenizers"):
        kind = step.get("type")
        if kind == "Split":
            yield _split(step)
        elif kind == "Digits":
            yield r"\p{N}" if step.get("individual_digits") else r"\p{N}+"
        elif kind == "ByteLevel" and not step.get("add_prefix_space", True):
            byte_level = True
            if step.get("use_regex", True):
                gpt2 = splitting("gpt-2")
                assert gpt2 is not None
                yield from gpt2.patterns
        else:
            raise _Unknown
    if not byte_level:
        raise _Unknown


def _split(step: Mapping[str, Any]) -> str:
    """The expression of a Split that keeps all text: matches apart, or all but what lies between them (which is nothing)."""
    pattern = step.get("pattern")
    keeps_all = (step.get("behavior"), step.get("invert")) in (("Isolated", False), ("Removed", True))
    if not keeps_all or not isinstance(pattern, dict):
        raise _Unknown
    text = pattern.get("Regex", None)
    if isinstance(text, str):
        return text
    literal = pattern.get("String", None)
    if isinstance(literal, str):
        return re.escape(literal)
    raise _Unknown


def _check_normalizer(node: Any) -> None:
    """NFC is let pass: GGUF readers do not normalise, and text as people write it is NFC already."""
    if any(step.get("type") != "NFC" for step in _steps(node, "normalizers")):
        raise _Unknown
