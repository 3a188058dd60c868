"""How single blocks are taken out of what the next request continues; on `SessionCore` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines import ScriptedEngine
from memories.session_memories import MemoryStage
from scale import of_cases
from schedules import SESSION, inline
from stored.audit import check_session
from tools.agent_world import check_request
from turnwise.actors.inference.engine import RunContext, SessionView
from turnwise.actors.session.core import SessionCore
from turnwise.errors import InvalidInputError, InvalidPromptError, SessionBusyError, TurnNotFoundError
from turnwise.memory.archive.export import export_session, import_session
from turnwise.memory.conversation.blocks import AnyBlock, Image, Text, Thinking, ToolResult, ToolUse, User
from turnwise.memory.conversation.events import BlocksRemoved, WindowCompacted
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span, Spans, join, places
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.views.rebuild import rebuild
from turnwise.memory.event_store.in_memory import InMemoryHistory
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.memory.stores.encrypted.store import EncryptedStore
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.testing.exhaust import exhaust
from turnwise.testing.faults import Faults
from turnwise.testing.faulty_engine import FaultyEngine
from turnwise.testing.world import World
from windows.stage import Summarizer, chat, events_of, opened, prompts, said, summarize


def own(turn: Turn) -> list[Span]:
    return places(join(turn.record.prompt, turn.record.output))


def spans_at(turn: Turn, *numbers: int) -> Spans:
    """Return the spans of the turn's own blocks with these numbers."""
    return tuple(own(turn)[number] for number in numbers)


@pytest.mark.virtual_time
async def test_a_removed_prompt_and_answer_are_in_no_later_request_and_the_history_stays() -> None:
    stage = await MemoryStage.opened()
    turns = [await stage.say(prompt) for prompt in ("one", "two", "three")]
    assert await stage.core.removals.remove(1, spans_at(turns[1], 0), "first") == 1
    assert await stage.core.removals.remove(2, spans_at(turns[2], 1), "second") == 1
    fourth = await stage.say("four")
    assert said(stage.engine.given[-1]) == ["one", "three", "four"]
    assert [block.text for block in fourth.blocks if isinstance(block, Text)] == [
        "as to one",
        "as to two",
        "as to four",
    ]
    stored_turns = await stage.core.reads.turns()
    assert [turn.blocks for turn in stored_turns[:3]] == [turn.blocks for turn in turns], "snapshots never change"
    assert [turn.removed for turn in stored_turns] == [(), (0,), (1,), ()]
    first, second = await stage.events_of(BlocksRemoved)
    assert (first.turn_index, first.key, first.removed) == (1, "first", (("", *spans_at(turns[1], 0)[0][1:]),))
    assert second.seq > first.seq
    for core in (stage.core, stage.new_core()):
        assert [message.text for message in (await core.reads.messages(None, 100))[0]][:4] == [
            *("one", "as to one", "as to two", "three"),
        ]
        outcome = await core.reads.wait(f"run-{('two',)}-{{}}")
        assert outcome.turn and outcome.turn.removed == (0,)
    await check_session(stage.store, SESSION, user_id="ada")


@pytest.mark.virtual_time
async def test_messages_keep_their_numbers_and_name_their_places() -> None:
    stage = await MemoryStage.opened()
    turn = await stage.say("one", Image(url="https://example.org/a.png"), "two")
    before = (await stage.core.reads.messages(None, 100))[0]
    assert [message.places for message in before] == [
        join(spans_at(turn, 0, 1)),
        spans_at(turn, 2),
        spans_at(turn, 3),
    ]
    await stage.core.removals.remove(0, before[0].places, "key")
    after = (await stage.core.reads.messages(None, 100))[0]
    assert after == before[1:] and [message.number for message in after] == [1, 2]


@pytest.mark.virtual_time
async def test_whoever_removes_all_of_a_conversation_begins_anew() -> None:
    stage = await MemoryStage.opened()
    turns = [await stage.say(prompt) for prompt in ("one", "two")]
    for turn in turns:  # from the oldest on; what an answer replies to goes first
        for number in range(2):
            assert await stage.core.removals.remove(turn.index, spans_at(turn, number), f"{turn.index} {number}") == 1
    assert (await stage.core.reads.messages(None, 100))[0] == []
    await stage.say("three")
    assert stage.engine.given[-1] == (User(text="three"),)
    await check_session(stage.store, SESSION, user_id="ada")


CALL, RESULT = ToolUse(call_id="c", name="look"), ToolResult(call_id="c", text="seen")
HM = Thinking(text="hm", signature="signed")


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("number", "removed", "remaining"),
    [
        pytest.param(1, (1,), [Text(text="ok")], id="thoughts"),
        pytest.param(2, (2, 3), [Text(text="ok")], id="a call"),
        pytest.param(3, (3,), [Text(text="ok")], id="a result"),
        pytest.param(4, (4,), [HM, CALL, RESULT], id="a text"),
    ],
)
async def test_half_of_a_pair_is_never_sent(number: int, removed: tuple[int, ...], remaining: list[Any]) -> None:
    stage = await MemoryStage.opened()
    turn = await stage.say("look", HM, CALL, RESULT, Text(text="ok"), "well?")
    assert await stage.core.removals.remove(0, spans_at(turn, number), "key") == len(removed)
    assert (await stage.core.reads.turn(0)).removed == removed
    await stage.say("next")
    blocks = list(stage.engine.given[-1])
    assert blocks[1 : 1 + len(remaining)] == remaining and blocks[1 + len(remaining)] == User(text="well?")
    check_request(blocks)


@pytest.mark.virtual_time
async def test_a_prompt_that_waits_leaves_its_turn_and_the_turn_goes_with_its_last_one() -> None:
    stage = await MemoryStage.opened()
    await stage.say("one")
    for prompt in ("a", "b", "c"):
        await stage.core.admission.append([prompt], prompt)
    waiting = await stage.core.reads.turn(1)
    assert await stage.core.removals.remove(1, spans_at(waiting, 1), "key b") == 1
    assert said((await stage.core.reads.turn(1)).new_blocks) == ["a", "c"]
    with pytest.raises(InvalidInputError, match="read it again"):
        await stage.core.removals.remove(1, spans_at(waiting, 1), "another key")
    for core in (stage.core, stage.new_core()):
        assert await core.removals.remove(1, spans_at(waiting, 1), "key b") == 1, "the same call again"
    await stage.core.removals.remove(1, spans_at(waiting, 0, 2), "key a c")
    with pytest.raises(TurnNotFoundError):
        await stage.core.reads.turn(1)
    assert await stage.core.removals.remove(1, spans_at(waiting, 0, 2), "key a c") == 2
    assert await stage.core.admission.append(["b"], "b") == 1, "a repeated append restores no block"
    assert await stage.core.admission.append(["d"], "d") == 2
    turn = await stage.say("e")
    assert said(stage.engine.given[-1]) == ["one", "d", "e"] and turn.index == 2
    await check_session(stage.store, SESSION, user_id="ada")


@pytest.mark.virtual_time
async def test_a_waiting_call_goes_with_its_result_and_a_waiting_result_may_be_replaced() -> None:
    stage = await MemoryStage.opened()
    await stage.core.admission.append(["look", CALL, RESULT], "first")
    waiting = await stage.core.reads.turn(0)
    assert await stage.core.removals.remove(0, spans_at(waiting, 2), "result") == 1
    with pytest.raises(InvalidPromptError, match="'c' has no result"):
        await stage.core.admission.start(["and?"], run_id="refused")
    await stage.core.admission.append([ToolResult(call_id="c", text="better")], "second")
    waiting = await stage.core.reads.turn(0)
    assert await stage.core.removals.remove(0, spans_at(waiting, 1), "call") == 2
    await stage.say("and?")
    assert stage.engine.given[-1] == (User(text="look"), User(text="and?"))


@pytest.mark.virtual_time
async def test_a_busy_session_refuses_and_so_it_does_for_blocks_of_others() -> None:
    stage = await MemoryStage.opened(engine=ScriptedEngine())
    turn, second_turn = await stage.say("one"), await stage.say("two")
    with pytest.raises(InvalidInputError, match="turn 0"):
        await stage.core.removals.remove(0, spans_at(second_turn, 0), "key")
    for places_of_others in ((Span("another", 0, 1),), (Span(own(turn)[0].log, 0, 999),)):
        with pytest.raises(InvalidInputError):
            await stage.core.removals.remove(0, places_of_others, "key")
    with pytest.raises(TurnNotFoundError):
        await stage.core.removals.remove(7, spans_at(turn, 0), "key")
    await stage.core.admission.start(["slow 100000"], run_id="slow")
    await stage.core.admission.start(["more"], run_id="queued", if_busy="enqueue")
    with pytest.raises(SessionBusyError, match="slow"):
        await stage.core.removals.remove(0, spans_at(turn, 0), "key")
    await stage.core.admission.end_session()
    assert await stage.events_of(BlocksRemoved) == []
    assert (
        await stage.core.removals.remove(0, spans_at(turn, 0), "key") == 1
        and await stage.core.removals.remove(0, spans_at(turn, 0), "new") == 0
    )


@pytest.mark.virtual_time
async def test_a_summary_of_a_removed_block_gives_way_to_the_others_that_it_replaced() -> None:
    stage = await opened(summarize(Summarizer()))
    await chat(stage, *prompts(0, 12))
    latest = await stage.core.reads.latest()
    assert latest and said(latest.blocks)[0].startswith("summary")
    turn = await stage.core.reads.turn(1)
    assert await stage.core.removals.remove(1, spans_at(turn, 0), "key") == 1
    head = stage.core.state.head
    assert head
    base = said(await stage.core.state.journal.blocks.read(head.base))
    assert prompts(1, 2)[0] not in base and [text for text in base if "prompt" in text] == [
        *prompts(0, 1),
        *prompts(2, 12),
    ]
    await chat(stage, *prompts(12, 20))
    for text in stage.engine.given[-1]:
        assert prompts(1, 2)[0] not in str(text)
    await check_session(stage.store, SESSION, compacts=True)


@pytest.mark.virtual_time
async def test_a_compaction_under_way_that_has_summarised_the_block_is_dropped() -> None:
    stage = await opened(summarize(Summarizer(delay_s=30.0)))
    for prompt in prompts(0, 20):
        if not stage.core.compaction.is_under_way:
            await chat(stage, prompt, pause_s=0.1)
    turn = await stage.core.reads.turn(2)
    await stage.core.removals.remove(2, spans_at(turn, 0, 1), "key")
    await stage.core.compaction.wait()
    assert await events_of(stage, WindowCompacted) == []
    await chat(stage, "last")
    assert not [block for block in stage.engine.given[-1] if prompts(2, 3)[0] in str(block)]


@pytest.mark.virtual_time
async def test_a_fork_of_an_earlier_turn_has_what_was_removed_later() -> None:
    stage = await MemoryStage.opened()
    turns = [await stage.say(prompt) for prompt in ("one", "two", "three")]
    await stage.core.removals.remove(2, spans_at(turns[2], 0), "a")
    await stage.core.removals.remove(1, spans_at(turns[1], 0, 1), "b")
    for fork_at, expected in ((None, ["one"]), (2, ["one", "two", "three"]), (1, ["one", "two"])):
        await stage.core.forking.fork(fork_at, f"fork {fork_at}")
        engine = ScriptedEngine()
        fork = SessionCore(SessionKey(f"fork {fork_at}", "ada"), stage.store, engine, off_loop=inline)
        (first,) = await fork.reads.turns()
        assert first.removed == ((0,) if fork_at is None else ())
        run = await fork.admission.start(["next"], run_id=f"run {fork_at}")
        outcome = await fork.reads.wait(run.run_id)
        assert outcome.turn and said(outcome.turn.blocks) == [*expected, "next"]
    await stage.core.forgetting.delete()
    assert said(
        (
            await SessionCore(
                SessionKey("fork None", "ada"), stage.store, ScriptedEngine(), off_loop=inline
            ).reads.turns()
        )[1].blocks
    ) == [
        "one",
        "next",
    ]


@pytest.mark.virtual_time
@pytest.mark.parametrize("removed_first", [True, False])
async def test_a_turn_can_be_forgotten_and_blocks_of_it_removed(removed_first: bool) -> None:
    stage = await MemoryStage.opened()
    turns = [await stage.say(prompt) for prompt in ("one", "two", "three")]
    changes = [stage.core.removals.remove(1, spans_at(turns[1], 0), "a"), stage.core.forgetting.forget_turn(1)]
    for change in changes if removed_first else changes[::-1]:
        await change
    await stage.core.removals.remove(2, spans_at(turns[2], 0), "b")
    await stage.core.forgetting.forget_turn(0)  # nothing precedes what is left: the answer to the third
    await stage.say("four")
    assert stage.engine.given[-1] == (User(text="four"),)
    await stage.core.forgetting.clear(keep_last=1)
    await stage.say("five")
    assert said(stage.engine.given[-1]) == ["four", "five"]


@pytest.mark.virtual_time
async def test_what_stays_of_a_cleared_session_is_valid_after_a_removal() -> None:
    stage = await MemoryStage.opened()
    turns = [await stage.say(prompt) for prompt in ("one", "two")]
    await stage.core.removals.remove(1, spans_at(turns[1], 0), "a")
    await stage.core.forgetting.clear(keep_last=1)
    await stage.say("three")
    check_request(stage.engine.given[-1])
    assert "'one'" not in str(stage.engine.given[-1])


async def test_events_alone_tell_what_later_runs_were_given() -> None:
    store, history = InMemoryStore(), InMemoryHistory()
    await store.create(SessionRecord(session_id=SESSION))
    core = SessionCore(SessionKey(SESSION), store, ScriptedEngine(), history=history)
    forwarder = core.state.journal.forwarder
    assert forwarder
    for number, prompt in enumerate(("one", "two", "three")):
        run = await core.admission.start([prompt], run_id=prompt)
        outcome = await core.reads.wait(run.run_id)
        assert outcome.turn
        await forwarder.flush(5)
        assert rebuild(await history.events(SessionKey(SESSION))) == list(outcome.turn.blocks)
        await core.removals.remove(number, spans_at(outcome.turn, 0), prompt)
    await check_session(store, SESSION, history=history)


class Looks:
    """Calls `look` once, then answers."""

    def build(self, session: SessionView) -> Looks:
        return self

    async def run(self, turn: Turn, context: RunContext) -> list[AnyBlock]:
        return [HM, CALL, RESULT, Text(text="ok")]


@pytest.mark.parametrize("kind", ["sqlite", "encrypted"])
async def test_a_removal_is_there_after_a_restart_and_in_an_archive(kind: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chats.db"

    def opened_store() -> Any:
        store = SQLStore(url)
        return (
            EncryptedStore(store, Encryption(lambda user: user.encode().ljust(32, b".")))
            if kind == "encrypted"
            else store
        )

    store = opened_store()
    await store.create(SessionRecord(session_id=SESSION))
    core = SessionCore(SessionKey(SESSION), store, Looks())
    for prompt in ("one", "two"):
        run = await core.admission.start([prompt], run_id=prompt)
        await core.reads.wait(run.run_id)
    first, second = await core.reads.turns()
    await core.removals.remove(0, spans_at(first, 2, 4), "a")  # the call, with its result, and the text
    await core.removals.remove(1, spans_at(second, 0), "b")
    await store.close()
    store = opened_store()
    with (tmp_path / "archive").open("w") as file:
        await export_session(store, SessionKey(SESSION), file.write)
    with (tmp_path / "archive").open() as file:
        await import_session(store, file, session_id="copy")
    for session_id in (SESSION, "copy"):
        core = SessionCore(SessionKey(session_id), store, ScriptedEngine())
        assert [turn.removed for turn in await core.reads.turns()] == [(2, 3, 4), (0,)]
        run = await core.admission.start(["three"], run_id=f"three {session_id}")
        outcome = await core.reads.wait(run.run_id)
        assert outcome.turn and said(outcome.turn.blocks) == ["one", "three"]
    await store.close()


@pytest.mark.by_turns
@pytest.mark.usefixtures("quiet")
def test_no_fault_at_any_point_leaves_a_removal_half_done() -> None:
    async def life(faults: Faults) -> None:
        world = World(faults, engine=FaultyEngine(faults, word_s=0.01))
        await world.create()
        for prompt in ("one", "two"):
            await world.ask("admission.start", [prompt], run_id=prompt, timeout_s=5.0)
            await world.ask("reads.wait", prompt)
        await world.ask("admission.append", ["waits"], "waits")
        first, _, waiting = await world.ask("reads.turns")
        assert await world.ask("removals.remove", 0, spans_at(first, 0), "prompt") == 1
        assert await world.ask("removals.remove", 2, spans_at(waiting, 0), "pending") == 1
        store = world.store.inner
        assert [turn.index for turn in await store.turns(SessionKey("session"))] == [0, 1]
        assert [event.key for event in await store.events(SessionKey("session")) if event.kind == "blocks_removed"] == [
            "prompt",
            "pending",
        ]
        await world.ask("admission.start", ["three"], run_id="three", timeout_s=5.0)
        outcome = await world.ask("reads.wait", "three")
        assert outcome.turn and said(outcome.turn.blocks) == ["two", "three"]
        (await world.audit()).check()

    assert exhaust(life, **of_cases())["kill"] > 20
