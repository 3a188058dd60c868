"""`PydanticAIEngine` end to end: real processes, real kills, a simulated provider over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from test_sessions_on_ray import kill

from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.session.config import SessionConfig
from turnwise.adapters import PydanticAIEngine
from turnwise.testing import LocalProvider, tool_script

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

WAIT_S = 120.0

MakeManager = Callable[..., SessionManager]


def engine_of(url: str, path: str) -> PydanticAIEngine:
    """Return an engine whose agent is made where the session runs: a closure, as users write them."""

    def note(text: str) -> None:
        with Path(path).open("a", encoding="utf-8") as notes:
            notes.write(f"{text}\n")

    def make() -> Agent[Any, Any]:
        model = AnthropicModel("claude", provider=AnthropicProvider(base_url=url, api_key="local"))
        agent: Agent[Any, Any] = Agent(model, name="clerk")

        @agent.tool_plain
        def look() -> str:
            note("look")
            return "a cat"

        @agent.tool_plain(requires_approval=True)
        def pay(amount: int) -> str:
            note(f"pay {amount}")
            return f"paid {amount}"

        return agent

    return PydanticAIEngine(make, name="clerk")


def test_an_approval_outlives_the_process_and_calls_are_made_once(
    make_ray_manager: MakeManager, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    with LocalProvider(reply=tool_script([[("look", {})], [("pay", {"amount": 5})], "Paid."])) as provider:
        engine = engine_of(provider.anthropic_url, str(notes))
        settings: dict[str, Any] = {"engine": engine, "config": SessionConfig(on_lost="resume")}
        session = make_ray_manager(**settings).open("trip", user_id="sarah")
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
            url = f"sqlite:///{tmp_path}/chats.db"
            async with AsyncSessionManager(url, namespace=f"test-{tmp_path.name}", **settings) as both:
                again = await (await both.open("trip", user_id="sarah")).run("Pay again.")
                async for event in again.events():
                    if event.kind == "approval_requested":
                        await again.reject(event.call_id, reason="enough")
                return (await again.wait(WAIT_S)).text

        assert asyncio.run(beside()) == "Paid."
        assert notes.read_text().count("pay") == 1, "the rejected call is not made"
