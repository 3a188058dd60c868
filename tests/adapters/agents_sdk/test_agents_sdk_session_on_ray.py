"""`TurnwiseSession` against the contract of the Agents SDK, in one process of sessions on Ray."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.memory import Session as Contract, SessionSettings
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.client.session import AsyncSession
from turnwise.actors.hosting.placement import Packed
from turnwise.actors.inference.no_answer import NoAnswer
from turnwise.adapters import TurnwiseSession
from turnwise.errors import ConfigError, InvalidInputError, SessionBusyError
from turnwise.memory.values.ids import new_id

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

set_tracing_disabled(True)

MakeManager = Callable[..., SessionManager]

Opened = Callable[..., TurnwiseSession]

ITEMS: list[Any] = [
    {"role": "user", "content": "hello"},
    {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_image", "image_url": "data:image/png;base64,aGk="}],
    },
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x", "status": None},
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c1",
        "name": "look",
        "arguments": '{"a": 1}',
        "status": "completed",
    },
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "ünïcode 🐈"}]},
    {"type": "of_tomorrow", "deep": [{"number": 0.5, "none": None, "kind": "x"}]},
    {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "hi", "annotations": []}],
    },
]


@asynccontextmanager
async def opened(make_ray_manager: MakeManager, tmp_path: Path) -> AsyncIterator[Opened]:
    """Yield a function that opens one session, each time through an object of its own."""
    make_ray_manager(engine=NoAnswer(), placement=Packed(hosts=1))
    store, session_id = f"sqlite:///{tmp_path}/chats.db", new_id()
    options: dict[str, Any] = {"engine": NoAnswer(), "placement": Packed(hosts=1)}
    async with AsyncSessionManager(store, namespace=f"test-{tmp_path.name}", **options) as manager:
        session: AsyncSession = await manager.open(session_id)
        yield lambda **settings: TurnwiseSession(session, **settings)


def agent_of(*steps: Any, tools: Any = ()) -> tuple[Agent[Any], ScriptedModel]:
    model = ScriptedModel([[assistant_message(step)] if isinstance(step, str) else step for step in steps])
    return Agent(name="a", model=model, tools=list(tools)), model


async def _contract(make: Opened) -> None:
    session = make()
    assert isinstance(session, Contract) and await session.get_items() == [] and await session.pop_item() is None
    await session.add_items(ITEMS[:4])
    await session.add_items(ITEMS[4:])
    await session.add_items([])
    assert await session.get_items() == await make().get_items() == ITEMS, "exactly, and for other objects"
    assert list((await session.get_items())[3]) == list(ITEMS[3]), "the order of names too"
    assert await session.get_items(limit=2) == ITEMS[-2:] and await session.get_items(limit=0) == []
    few = make(session_settings=SessionSettings(limit=3))
    assert await few.get_items() == ITEMS[-3:] and await few.get_items(limit=1) == ITEMS[-1:]
    (await session.get_items())[0]["content"] = "changed"
    assert (await session.get_items())[0] == ITEMS[0]
    assert await make().pop_item() == ITEMS[-1] and await session.pop_item() == ITEMS[-2]
    assert await session.get_items() == ITEMS[:-2]
    with pytest.raises(InvalidInputError):
        await session.add_items([{"role": "user", "content": object()}])
    await make().clear_session()
    assert await session.get_items() == [] and await session.pop_item() is None
    await session.add_items(ITEMS[:1])
    assert await make().get_items() == ITEMS[:1]


async def _races(make: Opened) -> None:
    """Objects of many tasks add batches, pop and are cancelled: batches stay whole, and each item is popped once."""
    dice, added = random.Random(7), set[str]()
    popped: list[Any] = []

    async def add(session: TurnwiseSession, batch: int) -> None:
        await session.add_items([{"batch": batch, "at": index} for index in range(3)])
        added.add(str(batch))

    async def pop(session: TurnwiseSession) -> None:
        if (item := await session.pop_item()) is not None:
            popped.append(item)

    sessions = [make(if_busy="enqueue") for _ in range(4)]
    tasks = [asyncio.create_task(add(dice.choice(sessions), batch)) for batch in range(16)]
    await asyncio.sleep(0.02)
    for task in dice.sample(tasks, 5):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    items = await make().get_items()
    batches = [item["batch"] for item in items]
    assert [item["at"] for item in items] == [0, 1, 2] * (len(items) // 3)
    assert added <= set(map(str, batches)) and all(
        batches[index] == batches[index - index % 3] for index in range(len(batches))
    )
    await asyncio.gather(*(pop(session) for session in sessions * 3))
    remaining = await make().get_items()
    assert len(popped) == 12 and sorted(map(str, popped + remaining)) == sorted(map(str, items))
    assert remaining == items[:-12]


async def _runs(make: Opened) -> None:
    @function_tool
    def look() -> str:
        """Look."""
        return "a cat"

    agent, model = agent_of([function_call("look", {}, call_id="c1")], "A cat.", "Still a cat.", tools=[look])
    assert (await Runner.run(agent, "What is there?", session=make())).final_output == "A cat."
    assert (await Runner.run(agent, "Sure?", session=make())).final_output == "Still a cat."
    assert model.last_call
    kinds = [item.get("type") or item.get("role") for item in model.last_call.input]
    assert kinds == ["user", "function_call", "function_call_output", "message", "user"]

    broken = Agent(name="a", model=ScriptedModel([ValueError("broken")]))
    with pytest.raises(ValueError, match="broken"):
        await Runner.run(broken, "Break.", session=make())
    agent, _ = agent_of("Fine.")
    assert (await Runner.run(agent, "Go on.", session=make())).final_output == "Fine.", "its task begins another run"

    begun, finish = asyncio.Event(), asyncio.Event()

    async def slow(call: Any) -> Any:
        begun.set()
        await finish.wait()
        return [assistant_message("At last.")]

    first = asyncio.create_task(
        Runner.run(Agent(name="a", model=ScriptedModel([ModelStep.respond(slow)])), "Take your time.", session=make())
    )
    await begun.wait()
    before = await make().get_items()
    second_agent, model = agent_of("Me too.")
    with pytest.raises(SessionBusyError):
        await Runner.run(second_agent, "And me?", session=make())
    with pytest.raises(SessionBusyError):
        await make().add_items(ITEMS[:1])
    assert not model.calls and await make().get_items() == before, "nothing was asked, and nothing stored"
    second = asyncio.create_task(Runner.run(second_agent, "And me?", session=make(if_busy="enqueue")))
    await asyncio.sleep(0.2)
    assert not model.calls
    finish.set()
    assert (await first).final_output == "At last." and (await second).final_output == "Me too."
    assert model.last_call and "At last." in str(model.last_call.input), "the second run sees the answer of the first"
    prompts = [item.get("content") for item in await make().get_items() if item.get("role") == "user"]
    assert prompts[-2:] == ["Take your time.", "And me?"]


async def _waits(make: Opened) -> None:
    """A run with a call that waits for approval leaves the session, also if another call of the answer was made."""
    calls_made: list[str] = []

    @function_tool
    def look() -> str:
        """Look."""
        calls_made.append("look")
        return "a cat"

    @function_tool(needs_approval=True)
    def buy() -> str:
        """Buy."""
        calls_made.append("buy")
        return "bought"

    calls = [function_call("buy", {}, call_id="c1"), function_call("look", {}, call_id="c2")]
    agent, _ = agent_of(calls, "Bought.", tools=[look, buy])
    first = await Runner.run(agent, "Buy it.", session=make())
    assert first.interruptions and calls_made == ["look"]
    session = make()
    log = await session._read()  # noqa: SLF001 - as another process reads it
    assert log.open is None, "another process may resume it at once"
    state = first.to_state()
    state.approve(first.interruptions[0])
    assert (await Runner.run(agent, state, session=make())).final_output == "Bought." and calls_made == ["look", "buy"]
    kinds = [item.get("type") or item.get("role") for item in await make().get_items()]
    assert kinds.count("function_call") == kinds.count("function_call_output") == 2


class Wrapper:
    """As the SDK's context of a run: something that can be referred to weakly."""


async def _deaths(make: Opened) -> None:
    """A run that was killed leaves after its lease, and one of this process with its task, for objects of later on."""
    session = make(lease_s=60.0)
    await session.add_items(ITEMS[:1])
    await session._store({"open": "killed", "by": "elsewhere"})  # noqa: SLF001 - a run of another process
    with pytest.raises(SessionBusyError, match="killed"):
        await make(lease_s=60.0).pop_item()
    await session._store({"open": "killed", "by": "elsewhere", "at": time.time() - 61})  # noqa: SLF001 - of a minute ago
    await make(lease_s=60.0).add_items(ITEMS[1:2])
    assert await make().get_items() == ITEMS[:2]

    await asyncio.create_task(make().get_items(wrapper=Wrapper()))
    gc.collect()  # nobody keeps the task
    await make().add_items(ITEMS[2:3])
    assert len(await make().get_items()) == 3


async def _clears(make: Opened) -> None:
    """A clear that meets another change takes place before or behind it, and not while another run has the session."""
    session, second, wrapper = make(), make(), Wrapper()
    await session.add_items(ITEMS[:2])
    begun, end = asyncio.Event(), asyncio.Event()

    async def run() -> None:
        await second.get_items(wrapper=wrapper)
        begun.set()
        await end.wait()

    async def begin() -> None:
        tasks.append(asyncio.create_task(run()))
        await begun.wait()

    tasks: list[Any] = []
    real = session._read  # noqa: SLF001 - others come between two of its lines
    meanwhile: list[Any] = [lambda: second.add_items(ITEMS[:1]), begin]

    async def read() -> Any:
        log = await real()
        if meanwhile:
            await meanwhile.pop(0)()
        return log

    session._read = read  # type: ignore[method-assign] # noqa: SLF001 - then
    with pytest.raises(SessionBusyError):
        await session.clear_session()
    assert not meanwhile and len(await second.get_items()) == 3
    await second.clear_session(wrapper=wrapper)
    end.set()
    await tasks[0]
    assert await session.get_items() == [] == await second.get_items()


async def test_the_contract_holds_in_races_and_runs_do_not_interleave(
    make_ray_manager: MakeManager, tmp_path: Path
) -> None:
    for check in (_contract, _races, _runs, _waits, _deaths, _clears):
        async with opened(make_ray_manager, tmp_path) as make:
            await check(make)


def test_a_session_of_the_blocking_manager_works_too(make_ray_manager: MakeManager) -> None:
    manager = make_ray_manager(engine=NoAnswer(), placement=Packed(hosts=1))
    session = TurnwiseSession(manager.open("blocking"))
    agent, _ = agent_of("One.", "Two.")
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)  # `run_sync` takes this one, and would leave its own open
    try:
        for prompt, answer in (("first", "One."), ("second", "Two.")):
            assert Runner.run_sync(agent, prompt, session=session).final_output == answer
        assert len(loop.run_until_complete(session.get_items())) == 4
    finally:
        asyncio.set_event_loop(None)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    for wrong in ({"if_busy": "merge"}, {"lease_s": 0}):
        with pytest.raises(ConfigError):
            TurnwiseSession(manager.open("blocking"), **wrong)
