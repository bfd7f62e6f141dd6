"""openai-agents: an agent with two tools, over Chat Completions and over Responses, streamed too."""

from __future__ import annotations

import asyncio
from typing import Any

from scripted_server import Scripted


def run(server: Scripted) -> None:
    from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    called: list[tuple[str, Any]] = []

    @function_tool
    def get_weather(city: str, note: str = "") -> str:
        """The weather in a city."""
        called.append(("get_weather", (city, note)))
        return "sunny"

    @function_tool
    def add(a: int, b: int) -> int:
        """The sum."""
        called.append(("add", (a, b)))
        return a + b

    async def all_of_them() -> None:
        for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
            for streamed in (False, True):
                called.clear()
                client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)
                agent = Agent(name="a", instructions="Be brief.", tools=[get_weather, add], model=kind("m", client))
                if streamed:
                    going = Runner.run_streamed(agent, "#two#")
                    async for _ in going.stream_events():
                        pass
                    final = going.final_output
                else:
                    final = (await Runner.run(agent, "#two#")).final_output
                assert final == "It is sunny and five.", final
                assert sorted(called) == [("add", (2, 3)), ("get_weather", ("Rome", 'caf\u00e9 "x"'))], called
                await client.close()

    asyncio.run(all_of_them())
