"""A store that is restored under live sessions, end to end: a packed host, a real file, several users."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.hosting.placement import Packed
from turnwise.actors.inference.echo import EchoEngine
from turnwise.errors import SessionNotFoundError, SessionRevertedError
from turnwise.testing.acknowledged import prompts_of

if TYPE_CHECKING:
    from servers.redis_server import RedisServer

WAIT_S = 120.0


def copy(source: Path, target: Path) -> None:
    """Copy a database into another, under the hands of those who use either."""
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target, timeout=60)) as new:
        old.backup(new)


def test_a_restore_under_live_sessions_mixes_no_users_and_bricks_no_session(
    make_ray_manager: Callable[..., SessionManager], tmp_path: Path
) -> None:
    live, saved = tmp_path / "chats.db", tmp_path / "saved.db"
    manager = make_ray_manager(engine=EchoEngine(), placement=Packed(hosts=1))
    carol = manager.open("carol's", user_id="carol")
    carol.run("kept").wait(WAIT_S)
    copy(live, saved)
    alice = manager.open("alice's", user_id="alice")
    secret = alice.run("a secret").wait(WAIT_S)
    undone = carol.run("gone").wait(WAIT_S)
    copy(saved, live)

    # Alice's process still has her session. The next ones get nothing of it, under another id or her own.
    bobs, bobs_alices = manager.open("bob's", user_id="bob"), manager.open("alice's", user_id="bob")
    assert (bobs.latest(), bobs_alices.latest(), bobs_alices.turns()) == (None, None, [])
    assert prompts_of(bobs.run("hello").wait(WAIT_S).blocks) == ["hello"]
    with pytest.raises(SessionNotFoundError):
        alice.run("another secret")
    assert prompts_of(bobs_alices.run("hello again").wait(WAIT_S).blocks) == ["hello again"]
    for ask in (alice.latest, alice.turns, alice.info):
        with pytest.raises(SessionNotFoundError):
            ask()

    # Carol is told that a turn of hers is missing, and goes on.
    with pytest.raises(SessionRevertedError):
        carol.run("after")
    after = carol.run("after").wait(WAIT_S)
    assert prompts_of(after.blocks) == ["kept", "after"] and after.index > undone.index
    assert [prompts_of(turn.new_blocks) for turn in carol.turns()] == [["kept"], ["after"]]
    assert "session_reverted" in [event.kind for event in carol.events()]
    assert (prompts_of(undone.blocks), prompts_of(secret.blocks)) == (["kept", "gone"], ["a secret"])


def test_a_redis_that_is_emptied_under_a_live_host_shows_nothing_of_what_it_had(
    make_ray_manager: Callable[..., SessionManager], redis_server: RedisServer, redis_url: str
) -> None:
    manager = make_ray_manager(store=redis_url, engine=EchoEngine(), placement=Packed(hosts=1))
    old = manager.open("chat")
    old.run("a secret").wait(WAIT_S)
    with redis_server.client as client:
        client.flushall()

    new = manager.open("chat")
    assert (new.latest(), new.turns(), new.events()) == (None, [], [])
    with pytest.raises(SessionNotFoundError):
        old.latest()
    assert prompts_of(new.run("hello").wait(WAIT_S).blocks) == ["hello"]
    with pytest.raises(SessionNotFoundError):
        old.run("another secret")
    assert [prompts_of(turn.new_blocks) for turn in new.turns()] == [["hello"]]
