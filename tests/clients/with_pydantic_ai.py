"""pydantic-ai: two tools, a typed result, a stream; over Chat Completions and Responses."""

from __future__ import annotations

import asyncio
from typing import Any

from scripted_server import Scripted


def run(server: Scripted) -> None:
    from openai import AsyncOpenAI
    from pydantic import BaseModel
    from pydantic_ai import Agent, PromptedOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Weather(BaseModel):
        city: str
        degrees: int

    called: list[str] = []

    async def all_of_them() -> None:
        for kind in (OpenAIChatModel, OpenAIResponsesModel):
            client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)
            model: Any = kind("m", provider=OpenAIProvider(openai_client=client))
            called.clear()
            agent: Any = Agent(model)

            @agent.tool_plain
            def get_weather(city: str, note: str = "") -> str:
                """The weather."""
                called.append(f"{city} {note}")
                return "sunny"

            @agent.tool_plain
            def add(a: int, b: int) -> int:
                """The sum."""
                called.append(str(a + b))
                return a + b

            result = await agent.run("#two#")
            assert result.output == "It is sunny and five." and sorted(called) == ["5", 'Rome caf\u00e9 "x"'], (result, called)
            async with agent.run_stream("#hello#") as stream:
                assert await stream.get_output() == "Hello, world!"
            typed: Any = Agent(model, output_type=PromptedOutput(Weather))
            assert (await typed.run("#json#")).output == Weather(city="Rome", degrees=21)
            await client.close()

    asyncio.run(all_of_them())
