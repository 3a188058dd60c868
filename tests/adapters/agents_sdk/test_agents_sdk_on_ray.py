"""`AgentsSDKEngine` and `TurnwiseSession` end to end: real processes, real kills, a simulated provider over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, function_tool
from openai import AsyncOpenAI
from test_sessions_on_ray import kill

from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.session.config import SessionConfig
from turnwise.adapters import AgentsSDKEngine
from turnwise.errors import RunFailedError
from turnwise.testing import LocalProvider, tool_script

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

WAIT_S = 120.0

MakeManager = Callable[..., SessionManager]


def engine_of(url: str, kind: Any = OpenAIChatCompletionsModel, *, path: str = "", **settings: Any) -> AgentsSDKEngine:
    """Return an engine whose agent is made where the session runs: a closure, as users write them."""

    def note(text: str) -> None:
        with Path(path).open("a", encoding="utf-8") as notes:
            notes.write(f"{text}\n")

    def make() -> Agent[Any]:
        @function_tool
        def look() -> str:
            """Look around."""
            note("look")
            return "a cat"

        @function_tool(needs_approval=True)
        def pay(amount: int) -> str:
            """Pay."""
            note(f"pay {amount}")
            return f"paid {amount}"

        client = AsyncOpenAI(api_key="local-key", base_url=url, max_retries=0)
        return Agent(name="Clerk", tools=[look, pay], model=kind("gpt-x", client))

    return AgentsSDKEngine(make, **settings)


def test_an_approval_outlives_the_process_and_calls_are_made_once(
    make_ray_manager: MakeManager, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    with LocalProvider(reply=tool_script([[("look", {})], [("pay", {"amount": 5})], "Paid."])) as provider:
        engine = engine_of(provider.base_url, path=str(notes))
        url = f"sqlite:///{tmp_path}/chats.db"
        settings: dict[str, Any] = {"engine": engine, "config": SessionConfig(on_lost="resume")}
        manager = make_ray_manager(**settings)
        session = manager.open("trip", user_id="sarah")
        run = session.run("Pay.")
        request = next(event for event in run.events() if event.kind == "approval_requested")
        run.wait(until="settled")  # a call is asked for before the run is suspended
        kill(session)
        run.approve(request.call_id)
        turn = run.wait(WAIT_S)
        assert turn.text == "Paid." and notes.read_text().split("\n")[:-1] == ["look", "pay 5"]
        assert len(provider.requests) == 3
        assert [block.kind for block in turn.output] == ["tool_use", "tool_result", "tool_use", "tool_result", "text"]

        async def beside() -> str:
            async with AsyncSessionManager(url, namespace=f"test-{tmp_path.name}", **settings) as both:
                again = await (await both.open("trip", user_id="sarah")).run("Pay again.")
                async for event in again.events():
                    if event.kind == "approval_requested":
                        await again.reject(event.call_id, reason="enough")
                return (await again.wait(WAIT_S)).text

        assert asyncio.run(beside()) == "Paid."
        assert notes.read_text().count("pay") == 1, "the rejected call is not made"


def test_a_provider_that_dies_fails_the_run_and_the_session_goes_on(make_ray_manager: MakeManager) -> None:
    with LocalProvider(reply="one two three four five six seven", token_delay_s=1.0) as provider:
        manager = make_ray_manager(engine=engine_of(provider.base_url, OpenAIResponsesModel))
        session = manager.open()
        run = session.run("hello")
        next(event for event in run.events() if event.kind == "text_delta")
        port = provider.port
        provider.close()
        with pytest.raises(RunFailedError, match="did not answer to the end"):
            run.wait(WAIT_S)
    with LocalProvider(reply="I am back.", port=port):
        assert session.run("and now?").wait(WAIT_S).text == "I am back."
