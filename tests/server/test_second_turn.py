"""An agent's second request reads what is new and little more, whatever its program puts in between (FC-43)."""

from __future__ import annotations

from typing import Any

from scripted_server import Scripted, reply, serving
from scripts.server_second_turn import RULES, TOOLS, measure, shares

from ds4py.protocols import SamplingParams
from ds4py.server.prompting import Defaults


def posting(server: Scripted) -> Any:
    def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = server.ask(path, body)
        assert answer.status == 200, answer.body
        found: dict[str, Any] = answer.json
        return found

    return post


def test_a_second_agent_sized_request_reads_under_five_percent() -> None:
    assert 20_000 < len(RULES) + sum(len(text) for _, text, _ in TOOLS) < 40_000
    with serving({"replies": [reply("ok")]}, n_ctx=100_000) as server:
        reads = list(measure(posting(server)))
        found = shares(reads)
        assert len(found) == 6 and max(found.values()) < 0.05, (found, reads)
        first = {read.api: read for read in reads if read.what == "first"}
        assert all(read.n_prompt > 25_000 for read in first.values())  # a byte is a token here
        assert all(read.n_read > 0.99 * read.n_prompt for read in first.values())


def test_without_the_care_for_dates_the_measure_would_fail() -> None:
    """The measure can fail: a date that stays at the head costs everything behind it."""
    kept = Defaults(params=SamplingParams(0.0), move_dates=False)
    with serving({"replies": [reply("ok")]}, n_ctx=100_000, defaults=kept) as server:
        found = shares([read for read in measure(posting(server)) if read.api == "messages"])
        assert min(found.values()) > 0.5
