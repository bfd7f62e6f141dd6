"""The HTTP application: routes, and for each request the way from its body to an answer.

The idea: an endpoint does the same four steps for every API, read the body, parse it, prepare the prompt (beside the event loop,
for it may take long), queue the job; then the answer is streamed or gathered. What differs between APIs is one row of `APIS`. All
that can be refused has been refused before the first byte of a stream.
"""

from __future__ import annotations

import secrets
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from ds4py.chat import Event
from ds4py.server import chat_completions, completions, messages, responses
from ds4py.server.asked import Asked, Refusal
from ds4py.server.body import read_body
from ds4py.server.fields import read_json
from ds4py.server.guard import Access, Guard, error_response
from ds4py.server.jobs import Job
from ds4py.server.models import by_name, model_card, model_list, thinks_by_name
from ds4py.server.notices import Notices
from ds4py.server.prompting import Prompt
from ds4py.server.results import Ended, Meta, Wire
from ds4py.server.sse import to_json
from ds4py.server.streaming import StreamAnswer, Translator, gathered
from ds4py.server.tools import Notice
from ds4py.server.worker import Worker

# What a response tells again of its request (Responses).
_ECHO: Final = ("instructions", "max_output_tokens", "parallel_tool_calls", "reasoning", "temperature", "top_p", "text")
_ECHO_MORE: Final = ("tool_choice", "tools", "metadata")

# Prompts that are made at once: each thread more takes memory for good, and the interpreter from the engine.
_PREPARING: Final = 4


@dataclass(frozen=True)
class Api:
    """One API: how its bodies are read and its answers are written."""

    name: str
    path: str
    parse: Callable[[Any, Notice], Asked]
    stream: Callable[[Meta], Translator]
    whole: Callable[[Meta, Sequence[Event], Ended], Mapping[str, Any]]
    keepalive: Wire | None = None
    call_lead: str = "call_"


APIS: Final = (
    Api("chat", "/v1/chat/completions", chat_completions.parse, chat_completions.Stream, chat_completions.whole),
    Api("completions", "/v1/completions", completions.parse, completions.Stream, completions.whole),
    Api("responses", "/v1/responses", responses.parse, responses.Stream, responses.whole),
    Api("messages", "/v1/messages", messages.parse, messages.Stream, messages.whole, messages.PING, "toolu_"),
)


@dataclass(frozen=True)
class Settings:
    """Of the HTTP side."""

    access: Access = Access()
    max_body_bytes: int = 64 << 20
    created: int = 0  # of the model, for lists of models
    keepalive_seconds: float = 5.0  # that may pass in a stream without a byte
    patience_seconds: float = 10.0  # for the next byte of a body


def build(worker: Worker, settings: Settings, log: Callable[[str], None]) -> ASGIApp:
    """The application over a worker that has been started."""
    site = _Site(worker, settings, log)
    routes = [Route(api.path, site.endpoint(api), methods=["POST"]) for api in APIS]
    routes += [
        Route("/v1/messages/count_tokens", site.count_tokens, methods=["POST"]),
        Route("/v1/models", site.models, methods=["GET"]),
        Route("/v1/models/{name:path}", site.model, methods=["GET"]),
        Route("/health", site.health, methods=["GET"]),
        Route("/metrics", site.metrics, methods=["GET"]),
        Route("/", site.root, methods=["GET"]),
    ]
    handlers: Mapping[Any, Any] = {HTTPException: site.http_error, Refusal: site.refused, Exception: site.broken}
    return Starlette(routes=routes, middleware=[Middleware(Guard, settings.access)], exception_handlers=handlers)


class _Site:
    """The endpoints."""

    def __init__(self, worker: Worker, settings: Settings, log: Callable[[str], None]) -> None:
        self._worker, self._settings, self._log = worker, settings, log
        self._preparing: CapacityLimiter | None = None  # it wants to be made in the loop

    def endpoint(self, api: Api) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Any:
            return await self._answer(api, await self._body(request), request)

        return answer

    async def _answer(self, api: Api, value: Any, request: Request) -> Any:
        ignored: list[str] = []
        try:
            asked = by_name(api.parse(value, ignored.append), self._worker.served.name)
            prompt = await self._prepare(asked)
        except Refusal as refusal:
            self._worker.metrics.ended(api.name, "refused")
            self._log(f"{api.path}: {refusal.status}, {refusal}")
            raise
        if ignored or asked.ignored:
            self._log(f"{api.path}: ignored {', '.join((*asked.ignored, *ignored))}")
        echo = {name: value[name] for name in (*_ECHO, *_ECHO_MORE) if value.get(name) is not None}
        model = asked.model or self._worker.served.name
        meta = Meta(secrets.token_hex(16), int(time.time()), model, asked.include_usage, echo, asked.shown)
        notices = Notices()
        job = Job(prompt, notices.tell, api.name, call_lead=api.call_lead)
        self._worker.submit(job)
        if asked.stream:
            seconds = self._settings.keepalive_seconds
            worker = self._worker
            return StreamAnswer(job, notices, api.stream(meta), api.keepalive, worker.cancel, worker.give_way, seconds)
        found = await gathered(job, notices, request.receive, self._worker.cancel)
        return Response(status_code=499) if found is None else _json(api.whole(meta, *found))

    async def _prepare(self, asked: Asked) -> Prompt:
        """The prompt, made beside the event loop. Raises Refusal."""
        if self._preparing is None:
            self._preparing = CapacityLimiter(_PREPARING)
        return await to_thread.run_sync(self._worker.served.prompting.prepare, asked, limiter=self._preparing)

    async def _body(self, request: Request) -> Any:
        return read_json(await read_body(request, self._settings.max_body_bytes, self._settings.patience_seconds))

    async def count_tokens(self, request: Request) -> Response:
        asked = by_name(messages.parse(await self._body(request), lambda word: None), self._worker.served.name)
        try:
            n = len((await self._prepare(asked)).ids)
        except Refusal as refusal:
            if "n_prompt_tokens" not in refusal.numbers:
                raise
            n = refusal.numbers["n_prompt_tokens"]
        return _json({"input_tokens": n})

    async def models(self, request: Request) -> Response:
        return _json(model_list(self._worker.served, self._settings.created))

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self._worker.served.name and thinks_by_name(name, self._worker.served.name) is None:
            raise Refusal(404, f"there is no model {name!r:.80}; {self._worker.served.name!r} is loaded", code="model_not_found")
        return _json(model_card(self._worker.served, self._settings.created, name))

    async def health(self, request: Request) -> Response:
        alive = self._worker.alive
        return _json({"status": "ok" if alive else "the engine's thread has ended"}, 200 if alive else 503)

    async def metrics(self, request: Request) -> Response:
        served = self._worker.served
        info = {"model": served.name, "backend": served.engine.kernels.name, "speculation": served.speculation}
        text = self._worker.metrics.text(self._worker.gauges(), info)
        return Response(text, media_type="text/plain; version=0.0.4")

    async def root(self, request: Request) -> Response:
        served = self._worker.served
        paths = [api.path for api in APIS]
        return _json({"server": "ds4-server", "model": served.name, "n_ctx": served.engine.n_ctx, "paths": paths})

    async def refused(self, request: Request, refusal: Exception) -> Response:
        assert isinstance(refusal, Refusal)
        return error_response(request.url.path, refusal)

    async def http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.url.path
        if error.status_code == 404:
            meant = next((api.path for api in APIS if path.rstrip("/") and api.path.endswith(path.rstrip("/"))), None)
            hint = f"; is {meant} meant?" if meant is not None else ""
            return error_response(path, Refusal(404, f"there is nothing at {path!r:.80}{hint}"))
        return error_response(path, Refusal(error.status_code, f"{request.method} is not possible at {path!r:.80}"))

    async def broken(self, request: Request, error: Exception) -> Response:
        self._log("".join(traceback.format_exception(error)).rstrip())
        return error_response(request.url.path, Refusal(500, "the server failed on this request; its log tells more"))


def _json(value: object, status: int = 200) -> Response:
    return Response(to_json(value), status, media_type="application/json")
