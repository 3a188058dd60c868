"""100,000 that are due at once in a file of SQLite: all are carried out, nobody waits for them, memory is bounded."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from stored.open_stores import run_with
from turnwise import EchoEngine, InProcess, SessionConfig, SessionManager
from turnwise.actors.dispatch.dispatcher import Dispatcher
from turnwise.actors.dispatch.webhook_post import UnreachableError
from turnwise.memory.conversation.blocks import User, encode
from turnwise.memory.conversation.events import RunCompleted
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.deliveries.payload import run_payload
from turnwise.memory.deliveries.records import Delivery, DeliveryChange
from turnwise.memory.deliveries.webhooks import WebhookRecord, calls_of, new_secret
from turnwise.memory.stores.base import Commit, SessionStore
from turnwise.memory.stores.urls import open_store

COUNT = int(os.environ.get("TURNWISE_COUNT", "100000"))

SESSIONS = 500

AT_ONCE = 1000

SOON_S = 10.0
"""After how many seconds at most what others wait for is carried out."""

MOST_MEMORY = 300 * 2**20
"""How many bytes the process may grow by."""

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]


def memory() -> int:
    return int(psutil.Process().memory_info().rss)


async def commit(store: SessionStore, key: SessionKey, deliveries: Sequence[Delivery]) -> None:
    session = (await store.activate(key)).session.committed()
    changes = [DeliveryChange(None, delivery) for delivery in deliveries]
    await store.commit(key, session.epoch, Commit(session=session, deliveries=changes))


def a_prompt(number: int, key: SessionKey) -> Delivery:
    payload = run_payload([encode(User(text=f"prompt {number}"))], {})
    return Delivery(
        session_id=key.session_id,
        user_id=key.user_id,
        delivery_id=f"{number:024x}",
        key=f"d{number}",
        payload=payload,
        occurs_at=float(number),
        due_at=float(number),
    )


def test_what_is_due_at_once_is_carried_out_and_delays_no_other_user(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    keys = [SessionKey(f"s{index}", "ada") for index in range(SESSIONS)]

    async def fill(store: SessionStore) -> None:
        for key in [*keys, SessionKey("other", "bob")]:
            await store.create(SessionRecord(**key._asdict()))
        for index, key in enumerate(keys):
            for first in range(index, COUNT, AT_ONCE * SESSIONS):
                numbers = range(first, min(COUNT, first + AT_ONCE * SESSIONS), SESSIONS)
                await commit(store, key, [a_prompt(number, key) for number in numbers])
        await commit(store, SessionKey("other", "bob"), [a_prompt(COUNT, SessionKey("other", "bob"))])

    run_with(open_store(url), fill)
    before, most, config = memory(), 0, SessionConfig(max_queued=1000)
    with SessionManager(url, engine=EchoEngine(), placement=InProcess(), config=config) as manager:
        began, other = time.monotonic(), manager.get("other", user_id="bob")
        while not other.runs():
            assert time.monotonic() < began + SOON_S, "another user waits for all of the first one's"
            time.sleep(0.1)
        while manager.schedules(user_id="ada", limit=1).items:
            most = max(most, memory())
            time.sleep(0.5)
        print(f"{COUNT} in {time.monotonic() - began:.0f} s, {(most - before) / 2**20:.0f} MB more at most")

        async def count(store: SessionStore) -> int:
            ids = {run.run_id for key in keys for run in await store.runs(key, limit=COUNT)}
            return len(ids)

        assert run_with(open_store(url), count) == COUNT
    assert most - before < MOST_MEMORY


def test_calls_of_a_dead_receiver_that_are_due_at_once_delay_no_other(tmp_path: Path) -> None:
    arrived: list[str] = []

    class Posts:
        """Receivers of which one never answers."""

        async def __call__(self, url: str, headers: Mapping[str, str], body: bytes, *, allow_private: bool) -> int:
            if url != "https://a.example":
                await asyncio.sleep(15.0)
                raise UnreachableError("it did not answer within 15 s")
            arrived.append(headers["webhook-id"])
            return 200

        async def close(self) -> None:
            pass

    async def no_session(delivery: Delivery) -> None:
        raise AssertionError(f"{delivery} is no call")

    async def send(store: SessionStore) -> None:
        a, dead = (
            WebhookRecord(
                webhook_id=name, url=f"https://{name}.example", events=("run.completed",), secret=new_secret()
            )
            for name in ("a", "dead")
        )
        for webhook in (a, dead):
            await store.change_webhook(None, webhook)
        key = SessionKey("chat")
        await store.create(SessionRecord(session_id="chat"))
        for first in range(0, COUNT, AT_ONCE):
            ends = [RunCompleted(**key._asdict(), seq=first + at, at=1.0, run_id="r") for at in range(1, AT_ONCE + 1)]
            calls = [change.after for change in calls_of([dead], ends) if change.after]
            await commit(store, key, calls)
        (last,) = calls_of([a], [RunCompleted(**key._asdict(), seq=COUNT + 1, at=2.0, run_id="r")])
        assert last.after
        await store.add_delivery(last.after)
        before, began = memory(), time.monotonic()
        sending = asyncio.create_task(Dispatcher(store, no_session, "h", post=Posts()).run())
        while not arrived:
            assert time.monotonic() < began + 6 * SOON_S, "it waits for all calls of the dead receiver"
            await asyncio.sleep(0.1)
        print(f"behind {COUNT} of a dead receiver: {time.monotonic() - began:.1f} s")
        assert memory() - before < MOST_MEMORY
        sending.cancel()
        await asyncio.wait([sending])

    run_with(open_store(f"sqlite:///{tmp_path}/chats.db"), send)
