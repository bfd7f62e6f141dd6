"""langchain-openai: bound tools, streams, structured output in its three ways, usage."""

from __future__ import annotations

import asyncio
from typing import Any

from scripted_server import Scripted


def run(server: Scripted) -> None:
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from pydantic import BaseModel

    @tool
    def get_weather(city: str, note: str = "") -> str:
        """The weather."""
        return "sunny"

    @tool
    def add(a: int, b: int) -> int:
        """The sum."""
        return a + b

    class Weather(BaseModel):
        """The weather in a city."""

        city: str
        degrees: int

    model: Any = ChatOpenAI(base_url=f"{server.url}/v1", api_key="x", model="m", stream_usage=True, max_retries=0, max_tokens=400)
    bound = model.bind_tools([get_weather, add])
    want = [("get_weather", {"city": "Rome", "note": 'caf\u00e9 "x"'}), ("add", {"a": 2, "b": 3})]
    assert [(call["name"], call["args"]) for call in bound.invoke("#two#").tool_calls] == want

    async def streamed() -> Any:
        total: Any = None
        async for chunk in bound.astream("#two#"):
            total = chunk if total is None else total + chunk
        return total

    total = asyncio.run(streamed())
    assert [(call["name"], call["args"]) for call in total.tool_calls] == want and total.usage_metadata["output_tokens"] > 5
    for method in ("json_schema", "json_mode", "function_calling"):
        # the script's tokens go their own way; what is asked is that the answer is an object of the schema
        text = "#json#" if method != "function_calling" else "#other#"
        found = model.with_structured_output(Weather, method=method, include_raw=True).invoke(text)
        assert found["parsing_error"] is None and isinstance(found["parsed"], Weather) or method == "json_mode", (method, found)
    responses: Any = ChatOpenAI(base_url=f"{server.url}/v1", api_key="x", model="m", use_responses_api=True, max_retries=0)
    assert responses.invoke("#hello#").text == "Hello, world!"
