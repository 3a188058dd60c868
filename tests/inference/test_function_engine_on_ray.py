"""Engines made of functions and of scripts, in sessions on Ray."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engines import process_of
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.engine import RunContext
from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import ConfigError, InvalidInputError, RunCancelledError, RunFailedError
from turnwise.memory.conversation.blocks import Text, User
from turnwise.memory.conversation.turns import Turn
from turnwise.testing import Pause, ScriptedAnswer, ScriptedEngine

ManagerMaker = Callable[..., SessionManager]


@tool(approval=True, repeatable=True)
def pay(euros: int) -> str:
    """Pay the bill."""
    return f"paid {euros}"


@tool(repeatable=True)
def search(text: str) -> str:
    """Search slowly."""
    time.sleep(1)
    return f"all about {text}"


def test_a_generator_sees_the_conversation_streams_and_is_cancelled(make_manager: ManagerMaker, tmp_path: Path) -> None:
    closed = tmp_path / "closed"

    def recount(turn: Turn, context: RunContext) -> Iterator[str]:
        """Travels by value, with the path that it refers to."""
        try:
            for block in turn.blocks:
                if isinstance(block, User):
                    yield f"{block.text};"
            while "slow" in str(turn.asked):
                yield "."
                time.sleep(0.01)
            yield context.session.user_id
        finally:
            closed.write_text(turn.id)

    manager = make_manager(engine=FunctionEngine(recount))
    chat = manager.open(user_id="sarah")
    assert chat.run("one").wait().text == "one;sarah"
    slow = chat.run("two, slow")
    next(event for event in slow.events() if event.kind == "text_delta" and "." in event.text)
    slow.cancel("enough")
    with pytest.raises(RunCancelledError) as cancelled:
        slow.wait()
    assert cancelled.value.turn and cancelled.value.turn.text.startswith("one;two, slow;.")
    assert cancelled.value.turn.text.endswith(".")
    while closed.read_text() != cancelled.value.turn.id:
        time.sleep(0.01)
    assert chat.run("three").wait().text == "one;two, slow;three;sarah"
    with pytest.raises(InvalidInputError, match="takes="):
        chat.run("four", params={"temperature": 0.1})


async def test_blocking_functions_of_one_process_run_side_by_side(tmp_path: Path) -> None:
    def meet(turn: Turn) -> str:
        (tmp_path / turn.session_id).touch()
        while len(list(tmp_path.glob("chat-*"))) < 3:
            time.sleep(0.01)
        return "met"

    settings: dict[str, Any] = {"engine": FunctionEngine(meet), "placement": InProcess()}
    async with AsyncSessionManager("memory://functions", namespace=f"test-{tmp_path.name}", **settings) as manager:
        chats = [await manager.open(f"chat-{number}") for number in range(3)]
        runs = [await chat.run("hello") for chat in chats]
        assert [turn.text for turn in await asyncio.gather(*(run.wait() for run in runs))] == ["met"] * 3


async def test_an_async_generator_streams_in_the_async_family(tmp_path: Path) -> None:
    async def count(turn: Turn) -> AsyncIterator[str]:
        for number in range(3):
            await asyncio.sleep(0.01)
            yield f"{number} "
        raise ValueError("that is all")

    settings: dict[str, Any] = {"engine": FunctionEngine(count), "placement": InProcess()}
    async with AsyncSessionManager(f"memory://counts-{tmp_path.name}", **settings) as manager:
        run = await (await manager.open()).run("hello")
        text = "".join([event.text async for event in run.events() if event.kind == "text_delta"])
        with pytest.raises(RunFailedError, match="that is all") as failed:
            await run.wait()
        assert failed.value.turn and failed.value.turn.text == text == "0 1 2 "


def test_a_function_that_cannot_be_pickled_is_refused(make_ray_manager: ManagerMaker) -> None:
    lock = threading.Lock()

    def locked(turn: Turn) -> str:
        with lock:
            return "never"

    with pytest.raises(ConfigError, match="cannot be pickled"):
        make_ray_manager(engine=FunctionEngine(locked)).open()


def test_a_scripted_agent_survives_an_approval_a_kill_and_a_fork(make_ray_manager: ManagerMaker) -> None:
    script: list[ScriptedAnswer] = [
        ["Let me pay.", ("pay", {"euros": 5})],
        "It is paid.",
        ["Let me", ConnectionError("the line broke")],
        ("search", {"text": "whales"}),
        "They sleep.",
        [Pause(0.01), '{"days": 3}'],
    ]
    engine = ScriptedEngine(script, tools=[pay, search])
    chat = make_ray_manager(engine=engine, config=SessionConfig(on_lost="resume")).open()

    paying = chat.run("Pay.")
    next(event for event in paying.events() if event.kind == "approval_requested")
    (call,) = paying.pending()
    paying.approve(call.call_id)
    assert paying.wait().text == "It is paid."

    with pytest.raises(RunFailedError, match="the line broke") as failed:
        chat.run("How do whales sleep?").wait()
    assert failed.value.turn and failed.value.turn.output == (Text(text="Let me", interrupted=True),)

    looking = chat.run("How do whales sleep?")
    next(event for event in looking.events() if event.kind == "tool_started")
    os.kill(process_of(chat.info()), signal.SIGKILL)
    assert looking.wait().text == "They sleep."

    fork = chat.fork()
    for session in (chat, fork):
        assert session.run("How many days?", output=dict[str, int], model="large").wait().parsed == {"days": 3}
    with pytest.raises(RunFailedError, match="the script has 6 answers"):
        fork.run("And now?").wait()
