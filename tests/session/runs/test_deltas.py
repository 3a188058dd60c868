"""Deltas of a streamed answer: which part each continues, and which is the last of its part."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from schedules import SESSION, inline
from turnwise.actors.inference.engine import InferenceRunner, SessionView, StepContext
from turnwise.actors.inference.openai.engine import OpenAIEngine
from turnwise.actors.inference.tools.loop import ToolLoop
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import tool
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.state.event_log import EventLog
from turnwise.memory.conversation.blocks import AnyBlock, Block, Text, Thinking, ToolResult, ToolUse
from turnwise.memory.conversation.events import (
    CustomEvent,
    Event,
    ModelCallStarted,
    RunEnded,
    SessionEnded,
    TextDelta,
    ThinkingDelta,
    ToolStarted,
)
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.stores.base import Commit
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing import LocalProvider
from turnwise.testing.scripted_engine import ScriptedEngine


@tool
def look() -> str:
    """Look."""
    return "sun"


class Streaming:
    """Streams these parts, with pauses where there is a number, and returns an answer or a call of `look`."""

    def __init__(self, *calls: Sequence[str | Block | float]) -> None:
        self.calls = calls

    def build(self, session: SessionView) -> InferenceRunner:
        return ToolLoop(self, ToolRegistry(look))

    async def run(self, turn: Turn, context: StepContext) -> Sequence[AnyBlock]:
        number = sum(isinstance(block, ToolResult) for block in turn.output)
        for part in self.calls[number]:
            if isinstance(part, float):
                await asyncio.sleep(part)
            else:
                context.emit(part)
        text = "".join(part for part in self.calls[number] if isinstance(part, str))
        return [Text(text=text)] if number + 1 == len(self.calls) else [ToolUse(call_id="a", name="look")]


async def a_core(engine: Any) -> SessionCore:
    store = InMemoryStore()
    await store.create(SessionRecord(session_id=SESSION))
    return SessionCore(SessionKey(SESSION), store, engine, off_loop=inline)


async def events_of(core: SessionCore, run_id: str = "run") -> list[Event]:
    await core.admission.start(["go"], run_id=run_id)
    await core.reads.wait(run_id)
    events, _, _ = await core.reads.events(run_id=run_id)
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    return list(events)


def deltas_of(events: Sequence[Event]) -> list[tuple[str, int, str, bool]]:
    deltas = [event for event in events if isinstance(event, TextDelta | ThinkingDelta)]
    return [(event.kind[:-6], event.index, event.text, event.final) for event in deltas]


@pytest.mark.virtual_time
async def test_each_part_has_one_last_delta() -> None:
    parts: list[str | Block | float] = [
        Thinking(text="a"),
        Thinking(text="b", signature="s"),
        Thinking(text="c"),
        "d",
        1.0,
        "e",
        "f",
        1.0,
    ]
    core = await a_core(Streaming([*parts, Thinking(text="g"), "h"]))
    events = await events_of(core)
    assert deltas_of(events) == [
        ("thinking", 0, "a", False),
        ("thinking", 0, "b", True),
        ("thinking", 1, "c", False),
        ("thinking", 1, "", True),
        ("text", 2, "d", False),
        ("text", 2, "e", False),
        ("text", 2, "f", False),
        ("text", 2, "", True),
        ("thinking", 3, "g", False),
        ("thinking", 3, "", True),
        ("text", 4, "h", False),
        ("text", 4, "", True),
    ]
    assert isinstance(events[-1], RunEnded)


@pytest.mark.virtual_time
async def test_text_that_waits_for_its_interval_is_the_last_delta_itself() -> None:
    core = await a_core(Streaming(["a", "b"]))
    assert deltas_of(await events_of(core)) == [("text", 0, "a", False), ("text", 0, "b", True)]


@pytest.mark.virtual_time
async def test_a_part_that_shows_nothing_has_no_delta() -> None:
    core = await a_core(Streaming([Thinking(redacted="x"), Thinking(signature="s"), "a"]))
    assert deltas_of(await events_of(core)) == [("text", 2, "a", False), ("text", 2, "", True)]


@pytest.mark.virtual_time
async def test_parts_end_with_their_model_call() -> None:
    core = await a_core(Streaming(["a", 1.0], ["b", 1.0]))
    events = await events_of(core)
    assert deltas_of(events) == [
        *(("text", 0, "a", False), ("text", 0, "", True), ("text", 0, "b", False), ("text", 0, "", True))
    ]
    kinds = [type(event) for event in events]
    assert kinds.index(ToolStarted) > kinds.index(TextDelta) + 1, "before the events of the call's end"
    assert kinds.count(ModelCallStarted) == 2


@pytest.mark.virtual_time
async def test_an_event_after_a_part_has_the_number_that_its_caller_is_told() -> None:
    core = await a_core(Streaming(["a", 1.0, Thinking(redacted="x"), 60.0]))
    await core.admission.start(["go"], run_id="run")
    await asyncio.sleep(2)
    number = await core.additions.add_event("mine", {}, key="key", run_id="run")
    assert [event.seq for event in (await core.reads.events())[0] if isinstance(event, CustomEvent)] == [number]
    await asyncio.sleep(60)


@pytest.mark.virtual_time
async def test_a_run_that_is_queued_after_a_part_begins_with_its_own_event() -> None:
    core = await a_core(Streaming(["a", 1.0, Thinking(redacted="x"), 60.0]))
    await core.admission.start(["go"], run_id="run")
    await asyncio.sleep(2)
    await core.admission.start(["and go"], run_id="next", if_busy="enqueue")
    events, _, _ = await core.reads.events(run_id="next")
    assert events[0].seq == (await core.reads.run("next")).first_seq
    await asyncio.sleep(200)


@pytest.mark.virtual_time
async def test_a_cancel_ends_the_part() -> None:
    core = await a_core(Streaming(["a", 60.0]))
    await core.admission.start(["go"], run_id="run")
    await asyncio.sleep(1)
    await core.admission.cancel("enough", "run")
    events, _, _ = await core.reads.events(run_id="run")
    assert deltas_of(events) == [("text", 0, "a", False), ("text", 0, "", True)]
    assert isinstance(events[-1], RunEnded)


@pytest.mark.virtual_time
async def test_an_empty_last_delta_wakes_no_follower() -> None:
    """A follower on Ray makes as many calls as before: the delta comes with the event after it."""
    core = await a_core(Streaming([Thinking(text="a"), 1.0, "b", 1.0]))
    pages: list[list[Event]] = []
    await core.admission.start(["go"], run_id="run")
    after, done = 0, False
    while not done:
        page, after, done = await core.reads.events(run_id="run", after=after, timeout_s=60)
        pages.append(list(page))
    empty = [[delta for delta in deltas_of(page) if not delta[2]] for page in pages]
    assert sum(map(len, empty)) == 2
    assert all(len(events) < len(page) for events, page in zip(empty, pages, strict=True)), "an empty delta came alone"


def an_event(seq: int) -> Event:
    return SessionEnded(session_id="s", seq=seq, at=0.0)


async def test_a_quiet_event_is_published_before_the_next_one() -> None:
    log = EventLog(5, is_live=True)
    for _ in range(2):
        log.publish_live(an_event, quietly=True)
    next_event = asyncio.ensure_future(log.wait_for_event(60))
    await asyncio.sleep(0)
    assert log.since(0, 10) == [] and log.published == 5
    log.publish_live(an_event)
    await next_event
    assert [event.seq for event in log.since(0, 10)] == [6, 7, 8]
    log.publish_live(an_event, quietly=True)
    assert log.reserve(2) == 10
    assert [event.seq for event in log.since(8, 10)] == [], "its commit is not stored yet"
    log.publish_live(an_event, quietly=True)
    log.publish([an_event(10), an_event(11)])
    assert [event.seq for event in log.since(8, 10)] == [9, 10, 11, 12]
    log.publish_live(an_event, quietly=True)
    log.abandon()
    log.publish()
    assert log.since(12, 10) == [] and log.published == 12


def test_a_live_event_has_no_number_once_its_run_has_ended() -> None:
    """The session's next process gives the numbers after the last commit to stored events."""
    log = EventLog(5, is_live=True)
    assert log.reserve(1) == 6
    log.publish_live(an_event)
    log.publish_live(an_event, quietly=True)
    log.publish([an_event(6)], is_live=False)
    log.publish_live(an_event)
    assert [event.seq for event in log.since(0, 10)] == [6] and log.next_seq() == 7
    log.publish([an_event(log.reserve(1))], is_live=True)
    log.publish_live(an_event)
    assert [event.seq for event in log.since(6, 10)] == [7, 8]


async def test_a_follower_misses_nothing_of_a_process_that_comes_after_a_talkative_engine() -> None:
    """An engine that goes on talking while the end of its run is stored takes no number of the next process."""
    store = InMemoryStore()
    await store.create(SessionRecord(session_id="s"))
    core = SessionCore(SessionKey("s"), store, ScriptedEngine(["one"]))
    commit_quietly, ending = store.commit, list[Any]()

    async def talked_over(key: SessionKey, epoch: int, commit: Commit) -> None:
        if (run := core.state.active) and any(event.terminal for event in commit.events):
            ending.append(run)
            core.state.publish_live(run, TextDelta, {"text": "and another thing"})
        await commit_quietly(key, epoch, commit)

    store.commit = talked_over  # type: ignore[method-assign]
    await core.admission.start(["go"], run_id="run")
    await core.reads.wait("run")
    seen, _, _ = await core.reads.events(after=0, limit=1000)
    assert ending and (await store.get(SessionKey("s"))).seq == seen[-1].seq
    later_core = SessionCore(SessionKey("s"), store, ScriptedEngine(["two"]))
    await later_core.admission.start(["go on"], run_id="later")
    await later_core.reads.wait("later")
    followed, _, _ = await later_core.reads.events(after=seen[-1].seq, limit=1000, run_id="later")
    stored = [
        event.seq for event in await store.events(SessionKey("s"), after=0, limit=1000) if event.run_id == "later"
    ]
    assert set(stored) <= {event.seq for event in followed}


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_both_apis_say_which_delta_is_the_last(api: Any) -> None:
    reply = {"role": "assistant", "reasoning_content": "Let me see.", "content": "It is sunny now."}
    with LocalProvider(reply=reply) as provider:
        core = await a_core(OpenAIEngine("local", base_url=provider.base_url, api=api))
        deltas = deltas_of(await events_of(core))
        await core.ownership.leave()
    last = [index for _, index, _, final in deltas if final]
    assert last == [0, 1], deltas
    for number, expected in enumerate(("Let me see.", "It is sunny now.")):
        assert "".join(text for _, index, text, _ in deltas if index == number) == expected
        assert [final for _, index, _, final in deltas if index == number][-1] is True
    assert Counter(kind for kind, *_ in deltas).keys() == {"thinking", "text"}


@pytest.mark.virtual_time
async def test_no_delta_ends_in_half_a_character() -> None:
    first, second = "\ud83c", "\udf1e"
    parts: list[str | Block | float] = [
        Thinking(text="a" + first),
        Thinking(text=second),
        Thinking(text=first),
        "b" + first,
        1.0,
        second + "c",
        first,
    ]
    core = await a_core(Streaming(parts))
    events = await events_of(core)
    deltas = [event for event in events if isinstance(event, TextDelta | ThinkingDelta)]
    for delta in deltas:
        delta.text.encode()
    texts = {
        kind: "".join(delta.text for delta in deltas if isinstance(delta, kind)) for kind in (ThinkingDelta, TextDelta)
    }
    assert texts == {
        ThinkingDelta: "a\N{SUN WITH FACE}\N{REPLACEMENT CHARACTER}",
        TextDelta: "b\N{SUN WITH FACE}c\N{REPLACEMENT CHARACTER}",
    }
    (answer,) = [event for event in events if isinstance(event, RunEnded)]
    assert answer.blocks == (Text(text="b\N{SUN WITH FACE}c\N{REPLACEMENT CHARACTER}"),)
