"""Whatever is sent: an answer or a refusal, never a broken server and never a stuck engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hostile_requests import BODIES, BODY_LIMIT, JSON, N_CTX, SCRIPT, Request, complaint, exchange, mutated, requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_server import Scripted, serving

from ds4py.server.app import APIS, Settings
from ds4py.server.asked import Refusal


@pytest.fixture(scope="module")
def server() -> Iterator[Scripted]:
    with serving(SCRIPT, n_ctx=N_CTX, settings=Settings(max_body_bytes=BODY_LIMIT)) as found:
        yield found


def test_the_bodies_are_good_as_they_are(server: Scripted) -> None:
    for path, body in BODIES.items():
        assert server.ask(path, body).status == 200


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
@settings(max_examples=120, deadline=None)
@given(st.data())
def test_parsing_refuses_and_never_breaks(api: Any, data: st.DataObject) -> None:
    body = data.draw(mutated(BODIES[api.path]) | JSON)
    try:
        api.parse(body, lambda word: None)
    except Refusal as refusal:
        assert 400 <= refusal.status < 500 and str(refusal)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(requests())
def test_every_request_gets_an_answer_in_the_form_of_its_api(server: Scripted, request: Request) -> None:
    """The same as tests/scripts/server_fuzz.py, in small."""
    wrong = complaint(request, exchange(server.port, request))
    assert wrong is None, "\n".join([wrong, *server.lines[-3:]])


def test_the_engine_is_free_afterwards(server: Scripted) -> None:
    server.until(lambda: server.running == 0 and server.queued == 0)
    assert server.ask("/v1/completions", {"prompt": "p", "max_tokens": 2}).status == 200
    assert not any("Traceback" in line for line in server.lines)
