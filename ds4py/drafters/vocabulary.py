"""May one model draft for another? Only if their ids mean the same texts.

A draft of ids from another vocabulary is never wrong, since the target draws every token itself, but it is never right either,
and nothing else would tell. So the texts are compared, id by id, with llama.cpp's tolerances: the first five ids may differ (they
are special tokens that converters move about), and one vocabulary may be longer by up to 128 ids, because files pad theirs.
Rejected: comparing names or sizes of vocabularies, which agree for vocabularies whose ids are permuted.
"""

from __future__ import annotations

from typing import Final

from ds4py.errors import UnsupportedError
from ds4py.gguf import GgufFile

_FREE: Final = 5  # first ids that may differ
_PADDING: Final = 128  # ids by which lengths may differ


def check_vocabulary(target: GgufFile, draft: GgufFile) -> None:
    """Raises UnsupportedError, with the first difference, unless ids of `draft` may be proposed to `target`."""

    def refuse(why: str) -> UnsupportedError:
        return UnsupportedError(f"{draft.path} cannot draft for {target.path}: {why}; choose a draft model of the same family")

    kinds = [g.kv.get("tokenizer.ggml.model") for g in (target, draft)]
    if kinds[0] != kinds[1]:
        raise refuse(f"its tokenizer is {kinds[1]!r}, not {kinds[0]!r}")
    for mark in ("bos", "eos"):
        adds = [g.kv.get(f"tokenizer.ggml.add_{mark}_token") for g in (target, draft)]
        if None not in adds and adds[0] != adds[1]:
            raise refuse(f"one of them adds {mark.upper()} and the other does not")
        ids = [g.kv.get(f"tokenizer.ggml.{mark}_token_id") for g in (target, draft)]
        if adds == [True, True] and ids[0] != ids[1]:
            raise refuse(f"its {mark.upper()} is token {ids[1]}, not {ids[0]}")
    texts = [list(g.kv.get("tokenizer.ggml.tokens", ())) for g in (target, draft)]
    if abs(len(texts[0]) - len(texts[1])) > _PADDING:
        raise refuse(f"it has {len(texts[1])} tokens, not {len(texts[0])}, which is more than padding")
    n = min(map(len, texts))
    if texts[0][_FREE:n] != texts[1][_FREE:n]:
        at = next(i for i in range(_FREE, n) if texts[0][i] != texts[1][i])
        raise refuse(f"its token {at} is {texts[1][at]!r}, not {texts[0][at]!r}")
