"""Search for sessions by title, metadata and time, and for runs of many sessions: in every store."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stored.open_stores import closing
from turnwise.errors import InvalidInputError
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.stores import searching
from turnwise.memory.stores.base import Commit, SessionOrder, SessionStore
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.memory.stores.encrypted.store import EncryptedStore
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.redis.store import RedisStore
from turnwise.memory.stores.searching import SessionFilter, find_runs, find_sessions
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.memory.values.frozen_json import freeze


@pytest.fixture(params=["memory", "encrypted", "sqlite", "postgresql", "redis"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], SessionStore]:
    if request.param == "memory":
        return InMemoryStore
    if request.param == "encrypted":
        return lambda: EncryptedStore(InMemoryStore(), Encryption(lambda user: user.encode().ljust(32, b".")))
    if request.param == "redis":
        return partial(RedisStore, request.getfixturevalue("redis_url"))
    url = f"sqlite:///{tmp_path}/store.db" if request.param == "sqlite" else request.getfixturevalue("database")
    return partial(SQLStore, url)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "SESSIONS_PAGE", 4)
    monkeypatch.setattr(searching, "RUNS_PAGE", 2)


async def test_pages_of_a_search_have_each_matching_session_once_newest_first(
    make_store: Callable[[], SessionStore],
) -> None:
    async with closing(make_store()) as store:
        sessions = []
        for number in range(11):
            title = [None, f"Trip to PARIS {number}", f"Taxes {number}"][number % 3]
            texts = {"title": title, "metadata": freeze({"kind": number % 2, "tags": ["a", number % 4]})}
            times = {"created_at": float(number // 2), "updated_at": 100.0 - number}
            sessions.append(await store.create(SessionRecord(session_id=f"s{number}", **texts, **times)))  # type: ignore[arg-type]
        sessions_by_order: dict[SessionOrder, list[SessionRecord]] = {}
        sessions_by_order["created_at"] = sorted(
            sessions, key=lambda session: (session.created_at, int(session.log)), reverse=True
        )
        sessions_by_order["updated_at"] = sorted(sessions, key=lambda session: session.updated_at, reverse=True)
        for order_by, ordered in sessions_by_order.items():
            for session_filter in (
                SessionFilter(title="paris"),
                SessionFilter(metadata=freeze({"kind": 1})),
                SessionFilter(metadata=freeze({"tags": ["a", 3]}), title="t"),
                SessionFilter(since=2.0, until=4.0),
                SessionFilter(until=95.0),
                SessionFilter(title="nothing"),
            ):
                start = -1e9 if session_filter.since is None else session_filter.since
                end = 1e9 if session_filter.until is None else session_filter.until
                candidates = [session for session in ordered if start <= getattr(session, order_by) < end]
                expected = [session.session_id for session in candidates if session_filter.matches(session)]
                for limit in (1, 2, 5, 100):
                    ids, cursor = list[str](), None
                    while True:
                        page = await find_sessions(store, session_filter, order_by=order_by, cursor=cursor, limit=limit)
                        ids += [session.session_id for session in page]
                        assert len(page) == limit or page.cursor is None
                        cursor = page.cursor
                        if cursor is None:
                            break
                        assert len(ids) < len(expected), "a cursor says that there is more"
                    assert ids == expected, (order_by, session_filter, limit)


async def test_pages_of_runs_have_each_run_of_all_sessions_once_newest_first(
    make_store: Callable[[], SessionStore],
) -> None:
    dice = random.Random(5)
    async with closing(make_store()) as store:
        runs = []
        for number in range(6):
            own = {"session_id": f"s{number}", "user_id": f"u{number % 2}", "agent": f"a{number % 3}"}
            await store.create(SessionRecord(**own, created_at=1.0, updated_at=1.0))  # type: ignore[arg-type]
            session = (await store.activate(SessionKey(own["session_id"], own["user_id"]))).session
            time = 1.0
            for index in range(dice.randint(0, 7)):
                time += dice.randint(0, 3)
                state: Any = dice.choice(("completed", "failed", "running"))
                run = RunRecord(
                    run_id=f"{number}-{index}",
                    session_id=f"s{number}",
                    turn_index=index,
                    state=state,
                    first_seq=1,
                    created_at=time,
                )
                session = session.committed(next_index=index + 1, updated_at=time + dice.randint(0, 2))
                turns = [TurnRecord(index=index, run_id=run.run_id, status=state)]
                await store.commit(
                    SessionKey(own["session_id"], own["user_id"]),
                    session.epoch,
                    Commit(session=session, turns=turns, new_run=run),
                )
                time = session.updated_at
                runs.append((replace(session), run))
        runs.sort(key=lambda entry: (-entry[1].created_at, entry[1].run_id))
        queries: Any = (
            *((None, None, None, None), ("u1", None, None, None), (None, "a2", "failed", None)),
            *((None, None, None, 6.0), ("u0", "a0", "completed", 3.0), ("nobody", None, None, None)),
            *((None, None, "running", None), ("u1", "a0", "running", 3.0), ("nobody", None, "running", None)),
        )
        for user_id, agent, state_filter, since in queries:
            expected = [
                run.run_id
                for session, run in runs
                if user_id in (None, session.user_id)
                and agent in (None, session.agent)
                and state_filter in (None, run.state)
                and run.created_at >= (since or 0)
            ]
            for limit in (1, 3, 100):
                ids, cursor = list[str](), None
                while True:
                    page = await find_runs(
                        store,
                        states=(state_filter,) if state_filter else None,
                        since=since,
                        cursor=cursor,
                        limit=limit,
                        user_id=user_id,
                        agent=agent,
                    )
                    ids += [run.run_id for run in page]
                    cursor = page.cursor
                    if cursor is None:
                        break
                assert ids == expected, (user_id, agent, state_filter, since, limit)
        for cursor in ("x", "nan:1", "1.0", ""):
            with pytest.raises(InvalidInputError, match="cursor"):
                await find_runs(store, cursor=cursor)
