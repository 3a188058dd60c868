"""Webhooks on Ray: the dispatcher's actor tells a receiver, whoever is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from patience import within
from scale import ONE_PLACEMENT
from servers.webhook_receiver import Receiver
from stored.audit import store_of
from stored.open_stores import run_with
from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.cluster.actor_names import dispatcher_name, find_actor
from turnwise.actors.hosting.placement import Placement
from turnwise.actors.hosting.store_spec import store_id_of
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.stores.base import SessionStore

WAIT_S = 60.0

until = within(WAIT_S)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@ONE_PLACEMENT
def test_a_receiver_is_told_though_the_dispatcher_is_killed(
    make_ray_manager: Callable[..., SessionManager],
    receiver: Receiver,
    placement: Placement,
    namespace: str,
    tmp_path: Path,
) -> None:
    import ray

    manager = make_ray_manager(placement=placement)
    webhook = manager.webhook(receiver.url, events=["run.completed"], allow_private=True)
    receiver.status = 503
    run = manager.open("chat").run("hello")
    run.wait()
    until(lambda: receiver.requests)
    actor: Any = find_actor(namespace, dispatcher_name(store_id_of(namespace, f"sqlite:///{tmp_path}/chats.db")))
    _, process_id, _ = ray.get(actor.where.remote())
    os.kill(process_id, signal.SIGKILL)
    receiver.status = 200

    async def calls(store: SessionStore) -> Sequence[Delivery]:
        return await store.deliveries(webhook_id=webhook.id)

    until(lambda: not run_with(store_of(manager), calls))
    assert len({headers["webhook-id"] for _, headers, _ in receiver.requests}) == 1 < len(receiver.requests)
    assert {told["data"]["run_id"] for told in receiver.told} == {run.run_id}
