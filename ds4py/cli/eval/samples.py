"""Prompts answered by a server, and what becomes of the samples: records with SPEED-Bench's names, and cells as of an engine."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ds4py.cli.eval.cells import EVERY, Cell
from ds4py.cli.eval.client import DraftCounts, Reply, RequestFailed, Server
from ds4py.cli.eval.loops import looping
from ds4py.cli.eval.prompts import Prompt

_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Sample:
    """A prompt with all its turns. Field names are SPEED-Bench's, but for temperature, seed, side, looping and text."""

    id: str
    category: str
    temperature: float
    seed: int
    side: str  # "speculative" or "baseline"
    ok: bool
    turns: int = 0
    latency_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = ""
    draft_n: int = 0
    draft_n_accepted: int = 0
    prompt_ms: float = 0.0
    predicted_ms: float = 0.0
    drafts: float = 0.0
    accepted_at: Sequence[float] = field(default=())
    looping: str = ""
    text: str = ""
    error: str | None = None

    @property
    def tps(self) -> float:
        return 1e3 * self.completion_tokens / self.predicted_ms if self.predicted_ms else 0.0

    @property
    def key(self) -> tuple[str, float, int]:
        """What must agree in a comparison."""
        return self.id, self.temperature, self.seed

    def record(self) -> dict[str, Any]:
        rates = {
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_per_second": 1e3 * self.prompt_tokens / self.prompt_ms if self.prompt_ms else 0.0,
            "predicted_per_second": self.tps,
        }
        return {**asdict(self), **rates}


def sample(server: Server, prompt: Prompt, temperature: float, seed: int, side: str, body: Mapping[str, Any]) -> Sample:
    """Ask turn by turn; the server's answers become part of the conversation. A failed request makes a sample that is not ok."""
    messages: list[dict[str, str]] = []
    replies: list[Reply] = []
    before = server.draft_counts() if side == "speculative" else None
    try:
        for turn in prompt.turns:
            messages.append({"role": "user", "content": turn})
            replies.append(server.chat({"messages": messages, "temperature": temperature, "seed": seed, **body}))
            messages.append({"role": "assistant", "content": replies[-1].text})
    except RequestFailed as error:
        return Sample(prompt.id, prompt.category, temperature, seed, side, False, error=str(error))
    after = server.draft_counts() if before is not None else None
    counts = after.since(before) if after is not None and before is not None else DraftCounts()
    return Sample(
        id=prompt.id,
        category=prompt.category,
        temperature=temperature,
        seed=seed,
        side=side,
        ok=True,
        turns=len(replies),
        latency_s=sum(reply.first + reply.seconds for reply in replies),
        prompt_tokens=sum(int(reply.usage.get("prompt_tokens") or reply.count("prompt_n")) for reply in replies),
        completion_tokens=sum(reply.tokens for reply in replies),
        finish_reason=replies[-1].finish,
        draft_n=sum(reply.count("draft_n") for reply in replies),
        draft_n_accepted=sum(reply.count("draft_n_accepted") for reply in replies),
        prompt_ms=sum(reply.prompt_ms for reply in replies),
        predicted_ms=sum(reply.predicted_ms for reply in replies),
        drafts=counts.drafts,
        accepted_at=counts.accepted_at,
        looping=next((why for reply in replies if (why := looping(_WORD.findall(reply.text)))), ""),
        text="\n".join(reply.text for reply in replies),
    )


def from_record(row: Mapping[str, Any]) -> Sample:
    """A sample that an earlier run wrote. TypeError if it is none."""
    names = Sample.__dataclass_fields__
    return Sample(**{name: value for name, value in row.items() if name in names})


def server_cells(samples: Sequence[Sample], baseline: Sequence[Sample]) -> Iterator[Cell]:
    """By temperature: each category, then all. `baseline` may hold several samples of a key; the fastest counts. Looping samples
    are left out, and so are those whose baseline loops."""
    best: dict[tuple[str, float, int], Sample] = {}
    for one in baseline:
        if one.ok and (one.key not in best or one.tps > best[one.key].tps):
            best[one.key] = one
    good = [one for one in samples if one.ok]
    categories = list(dict.fromkeys(one.category for one in good))
    for temperature in dict.fromkeys(one.temperature for one in good):
        own = [one for one in good if one.temperature == temperature]
        for category in categories:
            yield _cell(category, temperature, [one for one in own if one.category == category], best)
        if len(categories) > 1:
            yield _cell(EVERY, temperature, own, best)


def _cell(category: str, temperature: float, samples: Sequence[Sample], best: Mapping[Any, Sample]) -> Cell:
    loops = [one for one in samples if one.looping or (one.key in best and best[one.key].looping)]
    kept = [one for one in samples if one not in loops and one.completion_tokens]
    pairs = [(one.tps, best[one.key].tps) for one in kept if one.key in best and best[one.key].tps]
    ratios = [ours / plain for ours, plain in pairs]
    tokens, accepted = sum(one.completion_tokens for one in kept), sum(one.draft_n_accepted for one in kept)
    drafted, drafts = sum(one.draft_n for one in kept), sum(one.drafts for one in kept)
    depth = max((len(one.accepted_at) for one in kept), default=0)
    at = [sum(one.accepted_at[i] for one in kept if i < len(one.accepted_at)) for i in range(depth)]
    return Cell(
        category=category,
        temperature=temperature,
        drafter="server",
        rounds=len(kept),
        looping=len(loops),
        tokens=tokens,
        tokens_per_pass=tokens / (tokens - accepted) if tokens > accepted else 0.0,
        drafted=drafted,
        accepted=accepted,
        acceptance=accepted / drafted if drafted else 0.0,
        accepted_by_position=[n / drafts for n in at] if drafts else [],
        plain_tps=statistics.median([plain for _, plain in pairs]) if pairs else 0.0,
        tps=statistics.median([one.tps for one in kept]) if kept else 0.0,
        ratio=statistics.median(ratios) if ratios else 0.0,
        ratio_min=min(ratios, default=0.0),
        ratio_max=max(ratios, default=0.0),
    )
