"""Each `if_busy` through both families of clients, packed and dedicated, and over handles of other processes."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scale import ONE_PLACEMENT
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import Packed
from turnwise.actors.inference.engine import RunContext
from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.actors.inference.tools.tool import tool
from turnwise.errors import InvalidInputError, RunCancelledError, RunReplacedError
from turnwise.memory.conversation.blocks import ToolUse, User
from turnwise.memory.conversation.turns import Turn

QUIET: dict[str, Any] = {"if_busy": "debounce", "debounce_s": 0.2}


@tool(approval=True)
def look() -> str:
    """Look."""
    return "seen"


def answer(turn: Turn, context: RunContext) -> Any:
    """Call a tool first, if the first prompt is `go`; then answer with the prompts."""
    prompts = [block.text for block in turn.new_blocks if isinstance(block, User)]
    if prompts[0] == "go" and not turn.output:
        return ToolUse(call_id="1", name="look")
    return ", ".join(prompts)


@pytest.mark.by_turns
@ONE_PLACEMENT
def test_each_policy_by_blocking_calls(make_ray_manager: Callable[..., SessionManager], placement: Any) -> None:
    chat = make_ray_manager(engine=FunctionEngine(answer, tools=[look]), placement=placement).open(
        "chat", user_id="sarah"
    )
    active = chat.run("go")
    while not active.pending():
        time.sleep(0.02)
    kinds: list[str] = []
    dropped = chat.run("dropped", if_busy="drop", on_event=lambda event: kinds.append(event.kind))
    assert dropped == active and dropped.dropped and not active.dropped and not kinds
    joined = chat.run("joins", if_busy="inject")
    old = chat.run("old", if_busy="latest")
    first, second = chat.run("new", if_busy="latest"), chat.run("newer", if_busy="merge", labels={"n": "2"})
    active.approve("1")
    with pytest.raises(RunReplacedError) as replaced:
        old.wait(timeout_s=60)
    assert replaced.value.replaced_by == first.run_id and isinstance(replaced.value, RunCancelledError)
    with pytest.raises(RunReplacedError, match=old.run_id):
        joined.wait(timeout_s=60)  # it waited when that one came
    assert first.wait(timeout_s=60) == pickle.loads(pickle.dumps(second)).wait(timeout_s=60)
    assert second.wait().text == "new, newer" and second.info().run_id == first.run_id
    assert [event.run_id for event in second.events()][-1] == first.run_id and second.input() == first.input()
    active = chat.run("go")  # however long the calls take, the parts wait for it
    while not active.pending():
        time.sleep(0.02)
    parts = [chat.run(f"part {number}", **QUIET) for number in range(2)]
    active.reject("1")
    assert [part.wait(timeout_s=60).text for part in parts] == ["part 0, part 1"] * 2
    for wrong in (-1.0, 0.0, float("nan"), float("inf"), 1e300, "2", True):
        with pytest.raises(InvalidInputError, match="debounce_s"):
            chat.run("hello", if_busy="debounce", debounce_s=wrong)  # type: ignore[arg-type]


@pytest.mark.by_turns
async def test_each_policy_by_awaited_calls(
    make_ray_manager: Callable[..., SessionManager], tmp_path: Path, namespace: str
) -> None:
    engine = FunctionEngine(answer, tools=[look])
    settings: Any = {"namespace": namespace, "engine": engine, "placement": Packed(hosts=1)}
    async with AsyncSessionManager(f"sqlite:///{tmp_path}/chats.db", **settings) as manager:
        chat = await manager.open("other", user_id="sarah")
        active = await chat.run("go")
        while not await active.pending():
            await asyncio.sleep(0.02)
        joined = await chat.run("joins", if_busy="inject")
        assert (await chat.run("dropped", if_busy="drop")).dropped
        assert (await joined.status()) == "queued"
        await active.reject("1", "no need")
        assert (await joined).text == "go, joins" == (await active).text
        kinds = [event.kind async for event in joined.events()]
        assert "prompt_joined" in kinds and kinds[-1] == "run_completed"
        active = await chat.run("go")
        while not await active.pending():
            await asyncio.sleep(0.02)
        parts = [await chat.run(f"part {number}", **QUIET) for number in range(2)]
        await active.reject("1")
        assert {(await part).text for part in parts} == {"part 0, part 1"}
