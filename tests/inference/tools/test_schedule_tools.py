"""`schedule_tools`: reminders that a model sets, lists, changes and cancels."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from turnwise import SessionManager
from turnwise.actors.hosting.identity import identity
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.engine import SessionView
from turnwise.actors.inference.tools.context import ToolContext
from turnwise.actors.inference.tools.tool import Tool
from turnwise.actors.session.core import SessionCore
from turnwise.engines import schedule_tools
from turnwise.errors import ConfigError, ToolError, TurnwiseError
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.deliveries.schedules import When
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing.fixtures.frozen_clock import NEW_YEAR, FrozenClock
from turnwise.testing.fixtures.make_manager import MakeManager
from turnwise.testing.scripted_engine import RecordingEngine, ScriptedAnswer

pytest_plugins = ["turnwise.testing.pytest_plugin"]

DAY_S = 86_400.0


class Model:
    """Calls the tools in sessions of one store, whose clock begins with the year 2026 in UTC."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.clock = FrozenClock()
        self.store = InMemoryStore(clock=self.clock)
        self.tools = {tool.name: tool for tool in tools}
        self.cores: dict[SessionKey, SessionCore] = {}
        self.calls = 0

    async def call(
        self, name: str, *, session: str = "chat", user: str = "ada", call_id: str | None = None, **arguments: Any
    ) -> Any:
        """Return the result of a call, from JSON."""
        key = SessionKey(session, user)
        if key not in self.cores:
            await self.store.create(SessionRecord(session_id=session, user_id=user))
            self.cores[key] = SessionCore(key, self.store, EchoEngine())
            await self.cores[key].transactor.activate()
        self.calls += 1
        context = ToolContext(
            session=SessionView(session_id=session, user_id=user, agent=None, metadata={}),
            run_id="run",
            turn_index=0,
            call_id=call_id or f"call-{self.calls}",
            schedules=self.cores[key].reminders,
        )
        tool = self.tools[name]
        assert tool.is_async and tool.repeatable
        return json.loads(await tool(**tool.with_context(tool.check(arguments), context)))


async def test_a_reminder_comes_after_a_while() -> None:
    model = Model(schedule_tools())
    tea = (await model.call("set_reminder", text="The tea.", after_s=600))["set"]
    assert tea["next"] == "Thursday 2026-01-01T00:10 UTC"
    assert (await model.call("change_reminder", id=tea["id"], after_s=1200.5))["changed"]["next"].endswith("00:20 UTC")
    (delivery,) = await model.store.deliveries()
    assert delivery.occurs_at == NEW_YEAR + 1200.5
    for wrong in ({"after_s": 0}, {"after_s": -1}, {"after_s": 1e12}, {"after_s": 5, "cron": "0 9 * * *"}):
        with pytest.raises((ToolError, ValueError), match="after_s"):
            await model.call("set_reminder", text="The tea.", **wrong)
    assert len(await model.store.deliveries()) == 1


async def test_a_reminder_is_listed_changed_and_cancelled() -> None:
    model = Model(schedule_tools(timezone="Europe/Lisbon"))
    empty = await model.call("list_reminders")
    assert empty == {"now": "Thursday 2026-01-01T00:00 Europe/Lisbon", "reminders": []}
    plants = (await model.call("set_reminder", text="Water the plants.", at="2026-07-02T09:00"))["set"]
    assert plants["next"] == "Thursday 2026-07-02T09:00 Europe/Lisbon"
    (delivery,) = await model.store.deliveries()
    assert delivery.occurs_at == NEW_YEAR + 182 * DAY_S + 8 * 3600.0, "which is in summer"
    news = (await model.call("set_reminder", text="Tell the news.", cron="0 9 * * MON-FRI"))["set"]
    assert (news["next"], news["cron"]) == ("Thursday 2026-01-01T09:00 Europe/Lisbon", "0 9 * * MON-FRI")
    figs = {"text": "Water the figs.", "cron": "0 8 * * *"}
    changed = (await model.call("change_reminder", id=plants["id"], **figs))["changed"]
    assert changed.items() >= figs.items()
    assert await model.call("change_reminder", id=news["id"], at="2026-01-03T10:00") == {
        "changed": {"id": news["id"], "text": "Tell the news.", "next": "Saturday 2026-01-03T10:00 Europe/Lisbon"}
    }
    assert await model.call("cancel_reminder", id=news["id"]) == {"cancelled": news["id"]}
    assert "nothing_changed" in await model.call("cancel_reminder", id=news["id"])
    assert (await model.call("list_reminders"))["reminders"] == [changed]


async def test_a_model_has_its_own_reminders_only() -> None:
    model = Model(schedule_tools())
    await model.call("list_reminders")
    core = model.cores[SessionKey("chat", "ada")]
    program = await core.scheduling.add(["report"], When(after_s=DAY_S), delivery_id="report")
    mine = (await model.call("set_reminder", text="mine", at="2026-01-02T09:00"))["set"]
    assert (await model.call("list_reminders"))["reminders"] == [mine]
    for session in ("chat", "other"):
        assert "nothing_changed" in await model.call("cancel_reminder", id=program.key, session=session)
    with pytest.raises(ToolError, match="no reminder has this id"):
        await model.call("change_reminder", id=program.key, text="nothing")
    with pytest.raises(ToolError, match="no reminder has this id"):
        await model.call("change_reminder", id=mine["id"], text="nothing", session="other")
    assert len(await model.store.deliveries()) == 2


async def test_a_repeated_call_sets_nothing_twice_not_even_when_it_has_come() -> None:
    model = Model(schedule_tools(most=1))
    arguments: dict[str, Any] = {"text": "once", "at": "2026-01-02T09:00", "call_id": "same"}
    first = await model.call("set_reminder", **arguments)
    assert (await model.call("set_reminder", **arguments))["set"]["id"] == first["set"]["id"]
    (delivery,) = await model.store.deliveries()
    core = model.cores[SessionKey("chat", "ada")]
    started = await core.admission.deliver(delivery.key, delivery.delivery_id, delivery.revision)
    assert started and (await core.reads.wait(started.run_id)).run.state == "completed"
    await model.call("set_reminder", **arguments)
    assert not await model.store.deliveries()


async def test_the_reminders_of_a_user_are_bounded_over_all_sessions() -> None:
    model = Model(schedule_tools(most=2))
    for session in ("one", "two"):
        await model.call("set_reminder", session=session, text="a", at="2026-01-02T09:00")
    with pytest.raises(ToolError, match="2 reminders already"):
        await model.call("set_reminder", session="three", text="a", at="2026-01-02T09:00")
    await model.call("set_reminder", user="alan", text="a", at="2026-01-02T09:00")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "give one of at, after_s and cron"),
        ({"at": "2026-01-02T09:00", "cron": "0 9 * * *"}, "one of at, after_s and cron"),
        ({"at": "2025-12-31T09:00"}, "has passed: it is Thursday 2026-01-01T00:00 UTC"),
        ({"at": "tomorrow"}, "is no time: write it as 2026-12-31T09:00"),
        ({"at": "2026-01-02T09:00", "until": "2026-02-01T09:00"}, "give cron, too"),
        ({"cron": "*/5 * * * *"}, "every 3600 seconds at most"),
        ({"cron": "0,1 9 * * *"}, "every 3600 seconds at most"),
        ({"cron": "every day"}, "It is refused: .*fields"),
        ({"cron": "0 9 * * *", "until": "2025-01-01T00:00"}, "It is refused"),
    ],
)
async def test_a_time_that_cannot_be_is_refused_in_words_for_the_model(arguments: Any, words: str) -> None:
    model = Model(schedule_tools())
    with pytest.raises(ToolError, match=words):
        await model.call("set_reminder", text="a word", **arguments)
    assert not await model.store.deliveries()


async def test_without_a_session_or_a_store_the_model_is_told_to_go_on() -> None:
    model = Model(schedule_tools())
    view = SessionView(session_id="chat", user_id="ada", agent=None, metadata={})
    context = ToolContext(session=view, run_id="run", turn_index=0, call_id="call")
    with pytest.raises(ToolError, match="no reminders here"):
        await model.tools["list_reminders"](context=context)
    await model.call("list_reminders")
    await model.store.close()
    with pytest.raises(TurnwiseError, match="Go on without it"):
        await model.call("list_reminders")


def test_the_tools_are_settings() -> None:
    assert [tool.name for tool in schedule_tools(change=False)] == ["set_reminder", "list_reminders"]
    assert identity(schedule_tools()) == identity(schedule_tools()) != identity(schedule_tools(most=3))
    for tool in schedule_tools():
        assert "limits" not in tool.parameters["properties"] and "context" not in tool.parameters["properties"]
    with pytest.raises(ConfigError, match="Europe/Atlantis"):
        schedule_tools(timezone="Europe/Atlantis")
    with pytest.raises(ConfigError, match="most"):
        schedule_tools(most=0)


def test_a_model_reminds_tomorrow_at_nine(
    turnwise_manager: MakeManager[SessionManager], frozen_clock: FrozenClock
) -> None:
    script: list[ScriptedAnswer] = [
        [("set_reminder", {"text": "Ada wants to water the plants.", "at": "2026-01-02T09:00"})],
        "I will.",
        "Ada, water the plants!",
    ]
    engine = RecordingEngine(script, tools=schedule_tools())
    chat = turnwise_manager(engine).open("chat")
    assert chat.run("Remind me tomorrow at nine to water the plants.").wait().text == "I will."
    frozen_clock.advance(DAY_S + 9 * 3600.0)
    until = time.monotonic() + 20.0
    while len(chat.runs()) < 2:
        assert time.monotonic() < until, "nobody has reminded her"
        time.sleep(0.02)
    turn = chat.execution(chat.runs()[-1].run_id).wait()
    assert turn.text == "Ada, water the plants!"
    assert "Thursday 2026-01-01T00:00 UTC" in str(turn.asked[0])
    assert getattr(turn.asked[1], "text", "") == "Ada wants to water the plants."
    assert str(turn.asked[0]).count("The user says nothing. This is a reminder that you set on") == 1
    assert turn.run_id and turn.run_id.startswith("reminder-")
