"""`manager.hosts` finds the processes that host sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from engines import ScriptedEngine
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import Packed
from turnwise.memory.conversation.sessions import SessionKey

pytestmark = pytest.mark.ray


def test_packed_and_dedicated_hosts_say_what_they_have(
    make_ray_manager: Callable[..., SessionManager], namespace: str
) -> None:
    packed = make_ray_manager(placement=Packed(hosts=2))
    runs = [packed.open(f"chat-{number}", user_id="ann").run("hello") for number in range(3)]
    assert [run.wait().text for run in runs] == ["hello"] * 3
    hosts = packed.hosts()
    assert [host.name.rpartition("/")[2] for host in hosts] == ["0", "1"]
    assert all(host.is_packed and not host.is_replaced and host.pid and host.node_id and host.node for host in hosts)
    loads = [host.load for host in hosts if host.load]
    assert sum(load.sessions for load in loads) == 3
    assert sorted(key for load in loads for key in load.recent) == [SessionKey(f"chat-{n}", "ann") for n in range(3)]

    dedicated = make_ray_manager(store="memory://hosts")
    assert dedicated.hosts() == [], "no session was used"
    session = dedicated.open("alone")
    session.run("hello").wait()
    (host,) = dedicated.hosts()
    assert not host.is_packed and host.load and host.load.recent == (SessionKey("alone"),)
    info = session.info()
    assert (host.pid, host.node_id) == (info.pid, info.node_id)

    async def ask() -> None:
        settings = {"engine": ScriptedEngine(), "namespace": namespace}
        async with AsyncSessionManager("memory://hosts", **settings) as manager:  # type: ignore[arg-type]
            assert [info.name for info in await manager.hosts()] == [host.name]

    asyncio.run(ask())
