"""The diagnostic modes that compute, as text: logits, log-probabilities, decoding against prefill, perplexity.

The idea: the engine scores (`engine.scoring`), this module writes. Numbers are written with nine significant digits, which gives
every float32 back exactly; a value that is not finite becomes null, since JSON has no word for it. A dump is made whole in memory
and reaches its file only when it is finished.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

from ds4py.cli.opening import Opened
from ds4py.engine import SessionOptions
from ds4py.engine.scoring import Score, TokenScore, decode_consistency, perplexity, scored_generation
from ds4py.protocols import SamplingParams
from ds4py.tokenizer import Tokenizer

SOURCE = "ds4"
GREEDY = SessionOptions(params=SamplingParams(temperature=0))

Progress = Callable[[int, int], None]


def token_lines(tokenizer: Tokenizer, ids: Sequence[int]) -> Iterator[str]:
    """`--dump-tokens`: position, id and the piece as a JSON string, one token a line."""
    for pos, token in enumerate(ids):
        yield f"{pos}\t{token}\t{json.dumps(tokenizer.token_text(token), ensure_ascii=False)}"


def write_logits(stream: TextIO, opened: Opened, ids: Sequence[int], progress: Progress) -> None:
    """`--dump-logits`: the logits [V] after the prompt `ids`, one JSON object."""
    session = opened.engine.session(GREEDY)
    session.sync(ids, progress)
    row = session.next_logits()
    best = int(row.argmax())
    _write(
        stream,
        {
            "source": SOURCE,
            "model": str(opened.g.path),
            "backend": opened.engine.kernels.name,
            "quant_bits": quant_bits(opened),
            "prompt_tokens": len(ids),
            "ctx": opened.engine.n_ctx,
            "vocab": len(row),
            "argmax_token": _token(opened.tokenizer, best),
            "argmax_logit": _number(row[best]),
            "logits": [_number(value) for value in row.tolist()],
        },
    )


def write_logprobs(
    stream: TextIO, opened: Opened, ids: Sequence[int], top_k: int, n_tokens: int | None, progress: Progress
) -> None:
    """`--dump-logprobs`: a greedy continuation of at most `n_tokens` (None = until the context is full), each step with its
    `top_k` likeliest tokens. It ends early at a stop token, which is the last step."""
    session = opened.session(SessionOptions(params=GREEDY.params, stop_ids=opened.tokenizer.stop_ids))
    session.sync(ids, progress)
    steps = [
        {
            "step": number,
            "selected": _token(opened.tokenizer, step.chosen.id),
            "top_logprobs": [_scored(opened.tokenizer, item) for item in step.top],
        }
        for number, step in enumerate(scored_generation(session, n_tokens or opened.engine.n_ctx, top_k))
    ]
    _write(stream, {"source": SOURCE, "prompt_tokens": len(ids), "ctx": opened.engine.n_ctx, "top_k": top_k, "steps": steps})


def consistency_line(opened: Opened, ids: Sequence[int], n_tokens: int) -> tuple[str, bool]:
    """`--decode-consistency`: (one line, whether the likeliest tokens agree)."""
    found = decode_consistency(opened.engine, ids, n_tokens)
    piece = json.dumps(opened.tokenizer.token_text(found.decode_top), ensure_ascii=False)
    line = (
        f"decoded={len(found.decoded)} decode_top={found.decode_top} prefill_top={found.prefill_top} piece={piece} "
        f"max_difference={found.max_difference:.6g} {'consistent' if found.agrees else 'INCONSISTENT'}"
    )
    return line, found.agrees


def perplexity_line(opened: Opened, text: str, n_tokens: int | None, progress: Progress) -> str:
    """`--perplexity-file`: the likelihood of `text` after its first 32 tokens; at most `n_tokens` are scored, and no more than
    the context holds."""
    ids = opened.tokenizer.encode(text, add_bos=True)
    ids = ids[: opened.engine.n_ctx]
    if n_tokens is not None:
        ids = ids[: 32 + n_tokens]
    return score_line(perplexity(opened.engine.session(GREEDY), ids, progress))


def score_line(score: Score) -> str:
    return f"tokens={score.tokens} scored={score.scored} nll={score.nll:.6f} avg_nll={score.avg_nll:.6f} ppl={score.ppl:.6f}"


def quant_bits(opened: Opened) -> int:
    """Bits of the storage type that holds most of the weights outside embedding and head: Q4_1 -> 4, MXFP4 -> 4, F16 -> 16."""
    totals: dict[str, int] = {}
    for name, tensor in opened.g.tensors.items():
        if not name.startswith(("token_embd", "output.")):
            totals[tensor.type.name] = totals.get(tensor.type.name, 0) + tensor.nbytes
    largest = max(totals, key=lambda name: totals[name], default="F32")
    digits = "".join(char if char.isdigit() else " " for char in largest).split()
    return int(digits[0]) if digits else 0


def _write(stream: TextIO, content: dict[str, Any]) -> None:
    stream.write(json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n")


def _scored(tokenizer: Tokenizer, item: TokenScore) -> dict[str, Any]:
    return {"token": _token(tokenizer, item.id), "logit": _number(item.logit), "logprob": _number(item.logprob)}


def _token(tokenizer: Tokenizer, token: int) -> dict[str, Any]:
    return {"id": token, "text": tokenizer.token_text(token), "bytes": list(tokenizer.token_bytes(token))}


def _number(value: float) -> float | None:
    return float(f"{value:.9g}") if math.isfinite(value) else None
