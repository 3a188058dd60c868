"""Case 65 on Ray: sessions at work while their PostgreSQL or Redis crashes, is restarted and freezes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scale import ONE_PLACEMENT, share
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.placement import Placement
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.session.config import SessionConfig
from turnwise.errors import StoreError
from turnwise.memory.stores.urls import open_store
from turnwise.testing.acknowledged import Acknowledged
from turnwise.testing.chaos import Bounds, chaos
from turnwise.testing.killers import Doing, Killer
from turnwise.testing.workload import Workload

if TYPE_CHECKING:
    from servers.postgres_server import PostgresServer
    from servers.redis_server import RedisServer

Outages = Mapping[str, Callable[[], None]]

EACH = share(2, 2)
"""How many outages of each kind there are: two with `make races`."""

FROZEN_S = 3.0
"""Longer than a statement may take here, and than a silent server is borne with."""


def ends(acknowledged: Acknowledged) -> int:
    return sum(note.kind == "end" for note in acknowledged)


def freeze(server: PostgresServer | RedisServer) -> None:
    with server.frozen():
        time.sleep(FROZEN_S)


@pytest.mark.usefixtures("ray_session")
@ONE_PLACEMENT
def test_sessions_outlive_crashes_restarts_and_freezes_of_their_postgresql(
    placement: Placement, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """Callers get a StoreError or a delay, and all goes on without anybody's help. Case 15 too."""
    outages: Outages = {
        "crash": partial(postgres_server.restart, "immediate"),
        "restart": partial(postgres_server.restart, "fast"),
        "freeze": partial(freeze, postgres_server),
    }
    outlive(outages, postgres_server.url(statement_timeout=1500), placement, tmp_path)


@pytest.mark.usefixtures("ray_session")
@ONE_PLACEMENT
def test_sessions_outlive_crashes_and_freezes_of_their_redis(
    placement: Placement, own_server: Callable[..., RedisServer], tmp_path: Path
) -> None:
    """The same with a Redis that writes to disk before it acknowledges."""
    server = own_server()

    def crash() -> None:
        server.kill()
        server.start()

    outages: Outages = {"crash": crash, "freeze": partial(freeze, server)}
    outlive(outages, f"{server.url}?socket_timeout=1.5", placement, tmp_path)


async def read_until_cancelled(manager: AsyncSessionManager) -> int:
    """Read from the store, again and again, until it is cancelled; return how often the store was away.

    What a session stores is tried again for a while, so that callers of sessions may notice nothing of a short outage.
    """
    refused = 0
    with suppress(asyncio.CancelledError):
        while True:
            try:
                await manager.list(limit=1)
            except StoreError:
                refused += 1
            await asyncio.sleep(0.1)
    return refused


def outlive(outages: Outages, url: str, placement: Placement, folder: Path) -> None:
    namespace = f"test-{folder.name}"  # whose actors end with the test
    acknowledged = Acknowledged(folder / "told.jsonl")

    def strikes() -> Iterator[str]:
        for kind in [*outages] * EACH:
            ended, deadline = ends(acknowledged), time.monotonic() + 60
            while ends(acknowledged) < ended + 3:  # a server that nobody asks may be away and no caller knows
                assert time.monotonic() < deadline, "the sessions do not go on"
                time.sleep(0.02)
            outages[kind]()
            yield kind

    def killers(*_: object) -> Iterator[tuple[Killer, float]]:
        remaining = strikes()
        yield Doing("outage", lambda: next(remaining, None)), 0.7

    async def story() -> None:
        config = SessionConfig(cancel_grace_s=0.2, store_retry_s=5.0)
        async with AsyncSessionManager(
            url, engine=EchoEngine(token_delay_s=0.01), config=config, namespace=namespace, placement=placement
        ) as manager:
            asking = asyncio.create_task(read_until_cancelled(manager))
            report = await chaos(
                manager,
                lambda: open_store(url),
                acknowledged,
                killers=killers,
                workload=Workload(sessions=3, callers=2, run_timeout_s=30.0),
                bounds=Bounds(faults=EACH * len(outages) + 2, most_s=120.0, settle_s=120.0),
            )
            asking.cancel()
            refused = report.refused["StoreError"] + await asking
        report.check()
        assert report.faults["outage"] >= EACH * len(outages) + 2, "of each, and two more looks for another"
        assert report.audit.counts["acknowledged prompt"] > 10
        assert refused > 0, report.refused
        assert not report.refused["SessionLostError"], report.refused

    asyncio.run(story())
