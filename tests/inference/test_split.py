"""`Split`: who has which engine, that it stays so, and what runs and filters know of it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from turnwise import AsyncSessionManager, EchoEngine, SessionManager
from turnwise.actors.hosting.placement import InProcess
from turnwise.actors.inference.named_engines import as_engine
from turnwise.engines import FunctionEngine, Split
from turnwise.errors import ConfigError, InvalidInputError
from turnwise.memory.conversation.sessions import SessionKey

USERS = [SessionKey("chat", f"user {number}") for number in range(20_000)]


def engines(shares: dict[str, float], **settings: Any) -> dict[str, Any]:
    return {
        "main": Split(shares, **settings),
        **{name: FunctionEngine(lambda _, name=name: name) for name in ("a", "b", "c")},
    }


def chosen(split: Split) -> list[str]:
    return [split.choose(key, {}) for key in USERS]


def test_shares_are_kept_and_each_process_chooses_the_same() -> None:
    split = Split({"a": 0.9, "b": 0.1, "c": 0})
    names = chosen(split)
    assert (names.count("a"), names.count("c")) == (18_024, 0)
    assert chosen(pickle.loads(pickle.dumps(split))) == names
    assert chosen(Split({"a": 90, "b": 10})) == names, "only their relations count"
    assert chosen(Split({"a": 0.9, "b": 0.1}, salt="other")) != names


def test_changed_shares_move_as_few_as_possible() -> None:
    before = chosen(Split({"a": 0.5, "b": 0.3, "c": 0.2}))
    after = chosen(Split({"a": 0.5, "b": 0.3, "c": 0.3}))
    moves = {(old, new) for old, new in zip(before, after, strict=True) if old != new}
    assert moves == {("a", "c"), ("b", "c")}, "nobody moves between two whose shares stay"
    without = chosen(Split({"a": 0.5, "b": 0.3}))
    assert {(old, new) for old, new in zip(before, without, strict=True) if old != new} == {("c", "a"), ("c", "b")}


def test_a_split_goes_by_user_session_or_label() -> None:
    by_user, by_session, by_label = (Split({"a": 1, "b": 1}, by=by) for by in ("user", "session", "label:team"))
    keys = [SessionKey(f"chat {number}", "ann") for number in range(50)]
    assert len({by_user.choose(key, {}) for key in keys}) == 1
    assert len({by_session.choose(key, {}) for key in keys}) == 2
    assert len({by_label.choose(key, {"team": "red"}) for key in keys}) == 1
    assert [by_label.choose(key, {}) for key in keys] == [by_session.choose(key, {}) for key in keys]


def test_runs_have_the_engine_that_was_chosen(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"
    with SessionManager(url, engine=engines({"a": 0.5, "b": 0.5}), placement=InProcess()) as manager:
        for number in range(12):
            chat = manager.open("chat", user_id=f"user {number}")
            answers = {chat.run("Who are you?").wait().text for _ in range(2)}
            assert answers == {chat.runs()[0].engine}
        names = [run.engine for run in manager.runs()]
        assert {*names} == {"a", "b"}
        for name in ("a", "b"):
            assert len(manager.runs(engine=name)) == names.count(name)
        spent = {row.engine: row.runs for row in manager.usage(by=["engine"])}
        assert spent == {name: names.count(name) for name in ("a", "b")}
        other = manager.open("other", engine="c")
        assert other.run("Who are you?").wait().text == "c"
        with pytest.raises(InvalidInputError, match="engine"):
            manager.runs(engine="")
    with SessionManager(url, engine=engines({"b": 1}), placement=InProcess()) as manager:
        assert manager.get("chat", user_id="user 1").run("And now?").wait().text == "b"


async def test_labels_choose_and_a_label_that_is_missing_leaves_it_to_the_session() -> None:
    split = engines({"a": 1, "b": 1}, by="label:team")
    async with AsyncSessionManager("memory://labels", engine=split, placement=InProcess()) as manager:
        chat = await manager.open("chat")
        for team in ("red", "blue", "green", "white"):
            run = await chat.run("Who are you?", labels={"team": team})
            expected = split["main"].choose(SessionKey("chat"), {"team": team})
            assert (await run.wait()).text == expected == (await chat.runs())[-1].engine
        once = await manager.run_once("Who are you?")
        assert (await once.wait()).text in ("a", "b")


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        (lambda: Split({}), "one of them must be above 0"),
        (lambda: Split({"a": 0.0}), "one of them must be above 0"),
        (lambda: Split({"a": float("nan")}), "a finite number from 0"),
        (lambda: Split({"a": 1}, by="label:"), 'must be "user", "session"'),
        (lambda: Split({"a": 1}, by="tenant"), 'must be "user", "session"'),
        (lambda: as_engine(Split({"a": 1})), "give it a name beside the engines"),
        (lambda: as_engine({"main": Split({"a": 1})}), "add 'a' to the engines"),
        (lambda: as_engine({"main": Split({"b": 1}), "b": Split({"a": 1}), "a": EchoEngine()}), "which is no Split"),
    ],
)
def test_what_cannot_be_split_is_refused_with_what_to_do(engine: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        engine()
