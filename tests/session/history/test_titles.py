"""Titles that a session's engine gives it: once, beside what follows, whatever fails or dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from scale import of_cases
from turnwise import InProcess, SessionManager
from turnwise.actors.inference.function_engine import FunctionEngine
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.engines.budget import Budget
from turnwise.actors.session.history.titles import INSTRUCTIONS, LAST_INDEX, title_of
from turnwise.memory.conversation.blocks import System, Text, User
from turnwise.memory.conversation.events import TitleChanged
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.usage import Usage
from turnwise.testing.exhaust import exhaust
from turnwise.testing.faults import Faults
from turnwise.testing.world import World

KEY = SessionKey("session")

pytestmark = pytest.mark.usefixtures("quiet")


class Titled:
    """A session whose engine answers prompts at once, and requests for titles after a while."""

    def __init__(self, faults: Faults | None = None, *, title: str = "Boats", pause_s: float = 0.0, **settings: Any):
        self.title, self.pause_s = title, pause_s
        self.requests: list[str] = []
        config = SessionConfig(title="auto", cancel_grace_s=0.1, idle_s=1e9, **settings)
        self.world = World(faults or Faults(), engine=FunctionEngine(self._answer), config=config)

    async def _answer(self, turn: Turn) -> AsyncIterator[str]:
        if System(text=INSTRUCTIONS) not in turn.blocks:
            yield "Boats float."
            return
        self.requests.append(next(block.text for block in turn.blocks if isinstance(block, User)))
        await asyncio.sleep(self.pause_s)
        if not self.title:
            raise ValueError("no idea")
        yield self.title

    async def run(self, prompt: str) -> None:
        await self.world.start(prompt)
        await self.world.wait(prompt)

    async def stored(self) -> str | None:
        title: str | None = (await self.world.store.inner.get(KEY)).title
        return title

    async def titles(self) -> list[str | None]:
        """Return the titles that events tell of."""
        events = await self.world.store.inner.events(KEY)
        return [event.title for event in events if event.kind == "title_changed"]


async def titled(faults: Faults | None = None, **settings: Any) -> Titled:
    session = Titled(faults, **settings)
    await session.world.create()
    return session


@pytest.mark.virtual_time
async def test_the_first_turn_gives_the_session_its_title() -> None:
    session = await titled(title='**Title: "How boats  float."**')
    await session.run("Why do boats float?")
    await asyncio.sleep(1)
    assert await session.stored() == "How boats float" and await session.titles() == ["How boats float"]
    assert session.requests == ["User: Why do boats float?\n\nAssistant: Boats float."]
    await session.run("And stones?")
    await asyncio.sleep(1)
    assert len(session.requests) == 1
    turns = await session.world.ask("reads.turns")
    assert [block.text for turn in turns for block in turn.blocks if isinstance(block, Text)] == ["Boats float."] * 3


@pytest.mark.virtual_time
async def test_what_it_costs_is_the_session_s() -> None:
    session = await titled()
    await session.run("Why?")
    before = (await session.world.store.inner.run("Why?")).usage or Usage()
    await asyncio.sleep(1)
    assert (await session.world.store.inner.get(KEY)).usage.calls == before.calls + 1


@pytest.mark.virtual_time
async def test_it_delays_no_run_and_leaves_a_caller_s_title() -> None:
    session = await titled(pause_s=50.0)
    await session.run("one")
    await session.run("two")
    assert asyncio.get_running_loop().time() < 10 and await session.stored() is None
    await session.world.ask("row.update", "mine", None)
    await asyncio.sleep(100)
    assert await session.stored() == "mine" and await session.titles() == ["mine"]


@pytest.mark.virtual_time
async def test_later_turns_try_again_and_then_it_stays_without() -> None:
    session = await titled(title="")
    for number in range(LAST_INDEX + 3):
        await session.run(f"prompt {number}")
        await asyncio.sleep(1)
    assert len(session.requests) == LAST_INDEX + 1 and await session.stored() is None
    session = await titled(title="")
    await session.run("first")
    await asyncio.sleep(1)
    session.title = "Second try"
    await session.run("second")
    await asyncio.sleep(1)
    assert await session.stored() == "Second try"


@pytest.mark.virtual_time
async def test_a_session_that_has_spent_its_budget_gets_none() -> None:
    session = await titled(session_budget=Budget(calls=1))
    await session.run("Why?")
    await asyncio.sleep(1)
    assert session.requests == [] and await session.stored() is None


def test_a_title_is_given_once_whatever_fails_or_dies() -> None:
    async def life(faults: Faults) -> None:
        session = await titled(faults)
        for prompt in ("one", "two", "three"):
            await session.run(prompt)
            await asyncio.sleep(60)
        await session.world.ask("transactor.activate")
        title, event_titles = await session.stored(), await session.titles()
        assert (title, event_titles) in [("Boats", ["Boats"]), (None, [])], (title, event_titles)

    exhaust(life, **of_cases())


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ("Boats", "Boats"),
        ("\n\n  “Why  boats\tfloat”. \nbecause", "Why boats float"),
        ("# Titel: Boote", "Titel: Boote"),
        ("title: Boats", "Boats"),
        ("...", ""),
        ("", ""),
        ("\x1b[31mred", "␛[31mred"),
        ("x" * 200, "x" * 79 + "…"),
        ("船はなぜ浮くのか。", "船はなぜ浮くのか。"),
    ],
)
def test_a_title_is_one_line_of_words(answer: str, title: str) -> None:
    assert title_of(answer) == title


def test_a_program_sees_the_title_in_lists_and_in_what_it_follows() -> None:
    def answer(turn: Turn) -> str:
        return "Why boats float" if System(text=INSTRUCTIONS) in turn.blocks else "They are light."

    config = SessionConfig(title="auto")
    with SessionManager("memory://", engine=FunctionEngine(answer), placement=InProcess(), config=config) as manager:
        session = manager.open("boats")
        session.run("Why do boats float?").wait()
        (change,) = session.events(kinds=["title_changed"], wait_s=30)
        assert isinstance(change, TitleChanged) and change.title == "Why boats float"
        assert [record.title for record in manager.list(title="float")] == ["Why boats float"]
        session.update(title="")
        manager.open(session.session_id, title="")  # no title is no other title
        (removed,) = session.events(change.seq, kinds=["title_changed"])
        assert isinstance(removed, TitleChanged) and removed.title is None and session.info().session.title is None
