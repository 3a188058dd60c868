"""Tools of a single run on Ray: parallel calls, a kill while the run waits, results from another process."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_agents_on_ray import WAIT_S, awaited
from test_sessions_on_ray import audit, kill

from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.engine import EngineBuilder
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.tools.tool import external_tool, tool
from turnwise.errors import ConfigError, InvalidInputError
from turnwise.memory.conversation.blocks import ToolResult, ToolUse
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.testing import LocalProvider, tool_script

WEATHER = external_tool(
    "weather",
    "The weather of a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
CITIES = [("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"})]


@pytest.mark.parametrize(("api", "is_encrypted"), [("chat", True), ("responses", False)], ids=["chat", "responses"])
def test_a_killed_run_that_waits_for_external_tools_goes_on(
    make_ray_manager: Callable[..., SessionManager], api: Any, is_encrypted: bool, tmp_path: Path
) -> None:
    encryption = Encryption(lambda user_id: user_id.encode().ljust(32, b".")) if is_encrypted else None
    with LocalProvider(reply=tool_script([CITIES, "done"])) as provider:
        engine = OpenAIEngine("local", api=api, base_url=provider.base_url)
        manager = make_ray_manager(engine=engine, encryption=encryption)
        chat = manager.open("chat", user_id="ann")
        run = chat.run("Where is it warmer?", instructions="Be brief.", tools=[WEATHER])
        calls = awaited(run)
        assert [(call.name, call.wants, dict(call.input)["city"]) for call in calls] == [
            ("weather", "result", "Oslo"),
            ("weather", "result", "Rome"),
        ]
        kill(chat)
        again = pickle.loads(pickle.dumps(run))
        again.provide(calls[1].call_id, "warm")
        assert again.status() == "awaiting_approval"
        again.provide(calls[0].call_id, {"degrees": 3})
        turn = again.wait(WAIT_S)
        assert turn.text == "done" and again.info().instructions == "Be brief."
        assert list(again.info().tools) == ["weather"]
        assert [type(block) for block in turn.output[:4]] == [ToolUse, ToolUse, ToolResult, ToolResult]
        later = chat.run("and now?", instructions="Be long.")
        assert later.info().tools == {} and later.wait(WAIT_S).text == "done"
        bodies = [request.body for request in provider.requests]
        instructions = [
            body["instructions"] if api == "responses" else body["messages"][0]["content"] for body in bodies
        ]
        assert instructions[:2] == ["Be brief."] * 2 and instructions[2:] == ["Be long."] * 2
        assert [len(body.get("tools", ())) for body in bodies] == [1, 1, 0, 0]
        with pytest.raises(InvalidInputError, match=r"tools\[0\]='look'.*pass it to the engine"):
            chat.run("look", tools=[look])
        with pytest.raises(InvalidInputError, match=r"instructions='  '.*blank"):
            chat.run("look", instructions="  ")
    if not is_encrypted:
        audit(manager, "chat", user_id="ann")
    else:
        assert b"Be brief." not in b"".join(file.read_bytes() for file in tmp_path.glob("chats.db*"))


async def test_run_once_takes_them_too_and_another_engine_refuses_them(tmp_path: Path) -> None:
    with LocalProvider(reply=tool_script([CITIES[:1], "done"])) as provider:
        engines: dict[str, EngineBuilder] = {
            "local": OpenAIEngine("local", base_url=provider.base_url),
            "echo": EchoEngine(),
        }
        url = f"sqlite:///{tmp_path}/chats.db"
        async with AsyncSessionManager(url, placement=InProcess(), engine=engines) as manager:
            run = await manager.run_once("Is it warm?", instructions="Be brief.", tools=[WEATHER])
            while not (calls := await run.pending()):
                await asyncio.sleep(0.02)
            await run.provide(calls[0].call_id, "cold")
            assert (await run.wait(WAIT_S)).text == "done"
            assert "hi" in (await (await manager.run_once("hi", engine="echo")).wait(WAIT_S)).text
            with pytest.raises(ConfigError, match=r"engine='large'.*the manager has 'local', 'echo'"):
                await manager.run_once("hi", engine="large")
            chat = await manager.open("chat", engine="echo")
            with pytest.raises(InvalidInputError, match="EchoEngine does not support instructions and tools of runs"):
                await chat.run("hi", tools=[WEATHER])
            assert await chat.runs() == []


@tool
def look(at: str) -> str:
    """Look."""
    return at
