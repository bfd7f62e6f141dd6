"""How a reply comes from the engine's thread to a connection: in batches, a blink late at most, in order, nothing lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from scripted_server import chat_body, events_of, reply, serving

from ds4py.chat import Stop, Text
from ds4py.server import chat_completions
from ds4py.server.asked import Refusal
from ds4py.server.jobs import Events, Failed, Progress
from ds4py.server.notices import Notices
from ds4py.server.results import Ended, Meta, Usage
from ds4py.server.streaming import StreamAnswer

END = Ended(Stop("stop", None, 0), Usage())


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 10))


def part(i: int) -> Events:
    return Events([Text(str(i))])


def test_the_first_part_comes_at_once_and_the_next_ones_together() -> None:
    async def test() -> None:
        notices = Notices(rest_seconds=0.2)
        notices.tell(part(0))
        assert await notices.next(5) == [part(0)]
        for i in (1, 2, 3):
            notices.tell(part(i))
        began = time.monotonic()
        assert await notices.next(5) == [part(1), part(2), part(3)]
        assert time.monotonic() - began > 0.15
        await asyncio.sleep(0.3)  # it has rested
        with pytest.raises(TimeoutError):
            await notices.next(0.01)
        notices.tell(part(4))
        assert await notices.next(5) == [part(4)]

    run(test())


@pytest.mark.parametrize("notice", [END, Progress(1, 2), None])
def test_all_but_parts_end_the_rest(notice: Any) -> None:
    async def test() -> None:
        notices = Notices(rest_seconds=60)
        notices.tell(part(0))
        await notices.next(5)
        notices.tell(part(1))
        if notice is None:
            notices.gone()
        else:
            notices.tell(notice)
        assert await notices.next(5) == [part(1), notice]

    run(test())


def test_a_rest_is_no_longer_than_what_one_waits() -> None:
    async def test() -> None:
        notices = Notices(rest_seconds=60)
        notices.tell(part(0))
        await notices.next(5)
        with pytest.raises(TimeoutError):
            await notices.next(0.05)
        notices.tell(part(1))  # it goes on resting or not: the part is not lost
        assert await notices.next(0.05) == [part(1)]

    run(test())


def test_a_thread_that_tells_as_fast_as_it_can_loses_nothing() -> None:
    async def test() -> None:
        notices = Notices(rest_seconds=0.001)
        n = 20_000

        def tell() -> None:
            for i in range(n):
                notices.tell(part(i))
                if i % 1000 == 0:
                    time.sleep(0.002)
            notices.tell(END)

        thread = threading.Thread(target=tell)
        thread.start()
        found: list[Any] = []
        n_batches = 0
        while not found or found[-1] != END:
            found += await notices.next(5)
            n_batches += 1
        thread.join()
        assert found == [*(part(i) for i in range(n)), END] and 10 < n_batches < n / 10

    run(test())


def test_tokens_that_come_fast_share_events() -> None:
    fast = reply(*(f"f{i} " for i in range(300)))
    with serving({"replies": [fast]}) as server:
        body = server.ask("/v1/chat/completions", chat_body(stream=True)).body
        deltas = [data["choices"][0]["delta"] for _, data in events_of(body)[1:-2]]
        assert "".join(delta["content"] for delta in deltas) == "".join(fast["pieces"]) and 1 < len(deltas) < 300


def test_nothing_follows_the_end_of_a_stream() -> None:
    """An engine that is interrupted may tell a few more parts after the end has been told."""
    sent: list[bytes] = []

    async def test() -> None:
        notices = Notices()
        for notice in (part(1), Failed(Refusal(503, "over")), part(2)):
            notices.tell(notice)

        async def receive() -> Any:
            await asyncio.sleep(60)

        async def send(message: Any) -> None:
            sent.append(message.get("body", b""))

        job: Any = SimpleNamespace(state="done")
        stream = chat_completions.Stream(Meta("0" * 32, 0, "m"))
        answer = StreamAnswer(job, notices, stream, None, lambda job: None, lambda job: False, 5.0)
        await answer({"type": "http"}, receive, send)

    run(test())
    events = events_of(b"".join(sent))
    assert [data["choices"][0]["delta"]["content"] for _, data in events[:-1]] == ["", "1"]
    assert events[-1][1]["error"]["message"] == "over"
