"""What `turnwise top` and `tail` show: tokens a second, and whose each session is."""

import asyncio
import functools
import io
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.console import Console

from turnwise.actors.hosting.wire import HostInfo, HostLoad
from turnwise.cli.common import reading
from turnwise.cli.tail import line_of
from turnwise.cli.top import NEWEST, RATE_S, Rate, Snapshot, look, render
from turnwise.memory.conversation.events import PromptAppended
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.memory.stores.urls import open_store


def at(seconds: float, tokens: int) -> Snapshot:
    return Snapshot(at=seconds, sessions={}, runs=(), tokens=tokens, hosts=None)


def test_the_first_look_has_no_rate() -> None:
    assert Rate().add(at(100, 5_000)) == 0


def test_tokens_are_averaged_over_the_last_seconds() -> None:
    rate = Rate()
    rate.add(at(0, 1_000))
    assert rate.add(at(2, 1_100)) == 50
    assert rate.add(at(RATE_S, 1_200)) == 200 / RATE_S
    assert rate.add(at(2 + RATE_S, 1_200)) == 100 / RATE_S, "the look at 0 is too old"
    assert rate.add(at(100, 1_200)) == 0


def test_deleted_sessions_make_no_negative_rate() -> None:
    rate = Rate()
    rate.add(at(0, 1_000))
    assert rate.add(at(1, 200)) == 0


def test_tokens_that_turnwise_counted_itself_are_marked() -> None:
    usage = Usage(input_tokens=1_000, output_tokens=20, counted_tokens=700)
    run = RunRecord(
        run_id="r", session_id="s", turn_index=0, state="running", first_seq=1, created_at=90.0, usage=usage
    )
    sessions = {"active": 1, "ended": 0}
    snapshot = Snapshot(at=100, sessions=sessions, runs=(run,), tokens=1_020, counted_tokens=700, hosts=None)
    page = Console(width=160, record=True, file=io.StringIO())
    page.print(render("sqlite:///a.db", snapshot, 0.0))
    text = page.export_text()
    assert "700 of them counted here" in text and "1,020 (700 counted here)" in text
    assert snapshot.as_json(0.0)["counted_tokens"] == 700


def test_top_shows_the_user_of_each_run() -> None:
    about: dict[str, Any] = {
        "created_at": 1.0,
        "session_id": "chat",
        "turn_index": 0,
        "state": "running",
        "first_seq": 1,
    }
    runs = tuple(RunRecord(run_id=f"of {user}", user_id=user, **about) for user in ("ann", "bob"))
    snapshot = Snapshot(at=100, sessions={"active": 1, "ended": 0}, runs=runs, tokens=0, hosts=None)
    page = Console(width=160, record=True, file=io.StringIO())
    page.print(render("sqlite:///a.db", snapshot, 0.0))
    lines = [line.split() for line in page.export_text().splitlines()]
    assert ["running", "chat", "ann", "of", "ann"] in [line[:5] for line in lines]
    assert [run["user_id"] for run in snapshot.as_json(0.0)["open_runs"]] == ["ann", "bob"]


def test_top_tells_what_is_in_the_store_from_what_a_namespace_has_loaded() -> None:
    load = HostLoad(sessions=3, recent=())
    hosts = tuple(HostInfo(name=f"a/hosts/{number}", is_packed=True, load=load) for number in range(2))
    about: dict[str, Any] = {"at": 100, "sessions": {"active": 100_000, "ended": 5}, "runs": (), "tokens": 0}
    snapshot = Snapshot(**about, hosts=hosts, namespace="chats", has_more=frozenset({"queued"}))
    page = Console(width=200, record=True, file=io.StringIO())
    page.print(render("sqlite:///a.db", snapshot, 0.0))
    text = page.export_text()
    assert "100,000 active sessions in the store" in text and "6 loaded in namespace chats" in text
    assert "0 or more queued" in text and "0 running" in text
    assert snapshot.as_json(0.0)["loaded"] == 6
    assert Snapshot(**about, hosts=None).as_json(0.0)["loaded"] is None


def test_top_reads_no_sessions_without_open_runs_but_those_that_changed_last(tmp_path: Path) -> None:
    """However many sessions there are."""
    url, reads = f"sqlite:///{tmp_path}/many.db", list[str]()

    async def look_at_many() -> Snapshot:
        store = open_store(url)
        for number in range(2 * NEWEST):
            await store.create(SessionRecord(session_id=f"s-{number}"))
        await store.close()
        with patch.object(SQLStore, "runs", counted(SQLStore.runs, reads)):
            async with reading(url) as manager:
                return await look(manager)

    assert asyncio.run(look_at_many()).sessions["active"] == 2 * NEWEST
    assert len(reads) <= NEWEST


def counted(method: Any, calls: list[str]) -> Any:
    @functools.wraps(method)
    async def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(method.__name__)
        return await method(*args, **kwargs)

    return call


def test_tail_names_the_users_of_sessions_except_the_default_one() -> None:
    for user, name in (("ann", "chat of ann"), ("default", "chat")):
        event = PromptAppended(session_id="chat", user_id=user, seq=1, at=0.0)
        assert line_of(event, has_session=True).split("  ")[0].endswith(f" {name}")
        assert "ann" not in line_of(event, has_session=False)
