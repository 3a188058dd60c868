"""Thousands of abandoned waits, end to end: who decides, cancels or reads gets through, and the process leaves."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from test_sessions_on_ray import python

from engines import Asking
from patience import until
from scale import share
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.client.session import AsyncSession
from turnwise.actors.cluster.actor_names import actor_name, find_actor
from turnwise.actors.hosting.store_spec import store_id_of
from turnwise.actors.hosting.waits import SLICE_S
from turnwise.actors.session.config import SessionConfig
from turnwise.memory.conversation.sessions import SessionKey

MANY = share(5_000, 3)
"""More than a session's process takes calls at once; 5,000 of them with `make races`."""

ANSWER_S = 20.0
"""How long a verb may take on a machine that is busy. One that waits for a place takes for ever."""

APPROVE = """
import pickle, sys
import ray
from engines import Asking
from turnwise import SessionManager

address, pickled = sys.argv[1:]
ray.init(address, log_to_driver=False)
url, namespace, run_id = pickle.loads(bytes.fromhex(pickled))
with SessionManager(url, namespace=namespace, engine=Asking()) as manager:
    run = manager.execution(run_id)
    run.approve("call")
    print(run.wait(60).text)
"""


async def abandon(run: AsyncExecutionHandle, count: int) -> None:
    """Let so many callers wait for a run or follow it, and leave."""

    async def follow() -> None:
        async for _ in run.events(after=10**9):
            raise AssertionError("there is no such event")

    callers: list[asyncio.Future[Any]] = [asyncio.ensure_future(run.wait()) for _ in range(count - count // 50)]
    callers += [asyncio.ensure_future(follow()) for _ in range(count // 50)]
    await asyncio.wait(callers, timeout=0.5)
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)


async def suspended(chat: AsyncSession) -> AsyncExecutionHandle:
    """Return a run that waits for approval."""
    run = await chat.run("act")
    assert (await run.wait(ANSWER_S, until="settled")).status == "running"
    assert await run.status() == "awaiting_approval"
    return run


def test_thousands_of_abandoned_waits_block_no_decision_cancel_or_read(
    make_ray_manager: Callable[..., SessionManager], ray_session: ModuleType, tmp_path: Path, namespace: str
) -> None:
    settings: dict[str, Any] = {"engine": Asking(), "config": SessionConfig(idle_s=1.0)}
    shown = make_ray_manager(**settings)
    url = f"sqlite:///{tmp_path}/chats.db"

    async def attack() -> str:
        async with AsyncSessionManager(url, namespace=namespace, **settings) as manager:
            chat, neighbour = await manager.open("chat"), await manager.open("neighbour")
            run = await suspended(chat)
            await abandon(run, MANY)
            await asyncio.wait_for(decide(run, chat, neighbour), ANSWER_S)
            run = await suspended(chat)
            await abandon(run, 1000)
            assert shown.execution(run.run_id).info().state == "awaiting_approval", "another manager reads"
            return run.run_id

    async def decide(run: AsyncExecutionHandle, chat: AsyncSession, neighbour: AsyncSession) -> None:
        assert (await chat.info()).active_run_id == run.run_id
        assert await (await chat.run("later", if_busy="enqueue")).cancel()
        assert await (await neighbour.run("act")).cancel()
        await run.approve("call")
        assert (await run.wait(ANSWER_S)).text == "done"

    run_id = asyncio.run(attack())

    def has_left() -> bool:
        return find_actor(namespace, actor_name(store_id_of(namespace, url), SessionKey("chat"))) is None

    until(has_left, SLICE_S + 20.0)  # a slice, and a busy machine
    pickled = pickle.dumps((url, namespace, run_id)).hex()
    process = python(APPROVE, ray_session.get_runtime_context().gcs_address, pickled)
    assert process.communicate(timeout=60)[0].strip() == "done"
