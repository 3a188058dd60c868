"""How a turn is answered anew, and how an earlier version of it is shown again; on `SessionCore` alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from memories.session_memories import Book, MemoryStage
from scale import of_cases, share
from schedules import SESSION, World as RacingWorld, explore, inline
from stored.audit import check_session, turns_of
from turnwise.actors.session.core import SessionCore
from turnwise.errors import (
    ArchiveError,
    EmptyTurnError,
    IdempotencyConflictError,
    InvalidInputError,
    NoActiveRunError,
    SessionBusyError,
    SessionEndedError,
    SessionInUseError,
    StoreError,
    TooManyVersionsError,
    TurnNotFoundError,
    TurnReplacedError,
)
from turnwise.memory.archive.export import export_session, import_session
from turnwise.memory.conversation.blocks import AnyBlock, Image, User
from turnwise.memory.conversation.branches import (
    Branch,
    are_valid,
    first_change,
    is_shown,
    replacing,
    showing,
    versions_of,
)
from turnwise.memory.conversation.events import Event, RunStarted, TurnReplaced, TurnsCleared
from turnwise.memory.conversation.runs import IfBusy
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import join
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.views.rebuild import rebuild
from turnwise.memory.deliveries.schedules import When
from turnwise.memory.providers.message_reading import read_messages
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.testing.audit import audit
from turnwise.testing.exhaust import exhaust
from turnwise.testing.faults import Faults
from turnwise.testing.faulty_engine import FaultyEngine
from turnwise.testing.world import World
from windows.stage import Talker, said

KEY = SessionKey(SESSION, "ada")


async def rerun(stage: MemoryStage, prompt: str | None = None, at: int | None = None, **options: Any) -> Turn:
    """Answer a turn anew; return the new one, once it has ended."""
    prompts = None if prompt is None else [prompt]
    options = {"run_id": f"rerun {prompt} {at} {len(stage.engine.given)}", **options}
    started = await stage.core.admission.rerun(prompts, at, **options)
    outcome = await stage.core.reads.wait(started.run_id)
    assert outcome.turn and outcome.turn.index == started.turn_index
    return outcome.turn


async def shown(stage: MemoryStage) -> list[int]:
    return [turn.index for turn in await stage.core.reads.turns()]


def core_of(key: SessionKey, store: Any) -> SessionCore:
    clock = asyncio.get_running_loop().time
    return SessionCore(key, store, Talker(), clock=clock, off_loop=inline)


def numbers(turn: Turn) -> list[tuple[int, ...]]:
    return [tuple(version) for version in turn.versions]


EVENTS = ("one terminal event, the last", "the events tell each turn")
"""The laws of events."""


async def check(stage: MemoryStage) -> None:
    """Audit the store, and check that the events tell the conversation as it is shown."""
    findings = (await audit(stage.store, [SESSION], user_id="ada")).violations
    # A clear takes events of runs along, and not the runs; and it changes the turns that remain.
    without = EVENTS if await stage.events_of(TurnsCleared) else ()
    assert [finding for finding in findings if finding.law not in without] == []
    events: list[Event] = []
    while page := (await stage.core.reads.events(events[-1].seq if events else 0))[0]:
        events += page
    latest = await stage.core.reads.latest()
    assert rebuild(events) == (list(latest.blocks) if latest else [])


@pytest.mark.virtual_time
async def test_a_turn_is_answered_anew_and_what_followed_stays_with_its_first_version() -> None:
    stage = await MemoryStage.opened()
    first = [await stage.say(prompt) for prompt in ("one", "two", "three")]
    new = await rerun(stage, "another two", at=1)
    assert said(stage.engine.given[-1]) == ["one", "another two"]
    assert new.parent == first[1].parent and numbers(new) == [(1, 1, False), (2, 3, True)] and new.version == 2
    assert await shown(stage) == [0, 3]
    last = await stage.say("four")
    assert said(last.blocks) == ["one", "another two", "four"]
    for index, turn in enumerate(first):
        assert (await stage.core.reads.turn(index)).blocks == turn.blocks
    hidden = await stage.core.reads.turn(2)
    assert not hidden.is_shown and [version.is_shown for version in hidden.versions] == [False]
    (event,) = await stage.events_of(TurnReplaced)
    assert (event.turn_index, event.replaced) == (3, 1)
    await check(stage)
    stage.new_core()
    assert await shown(stage) == [0, 3, 4]
    assert [message.text for message in (await stage.core.reads.messages(None, 100))[0]] == [
        *("one", "as to one", "another two", "as to another two", "four", "as to four"),
    ]
    await check(stage)


@pytest.mark.virtual_time
async def test_a_chosen_version_comes_with_what_was_answered_after_it() -> None:
    stage = await MemoryStage.opened()
    for prompt in ("one", "two", "three"):
        await stage.say(prompt)
    await rerun(stage, "another two", at=1)
    await stage.say("four")
    for core in (stage.core, stage.new_core()):
        assert await core.versions.choose(1, "first")  # the second time by a repeated call
    assert await shown(stage) == [0, 1, 2]
    assert not await stage.core.versions.choose(2, "shown already")
    latest = await stage.core.reads.latest()
    assert latest and latest.index == 2
    assert (await stage.core.reads.session()).branches == ((3, 1), (5, 3))
    await check(stage)
    for number, choice in enumerate((3, 1, 4, 0, 2, 3)):  # going to and fro adds no branch
        await stage.core.versions.choose(choice, f"choice {number}")
    assert len((await stage.core.reads.session()).branches) <= 2
    assert await shown(stage) == [0, 3, 4]
    await stage.core.versions.choose(1, "last")
    stage.new_core()
    five = await stage.say("five")
    assert said(five.blocks) == ["one", "two", "three", "five"]
    assert await shown(stage) == [0, 1, 2, 5]
    assert not await stage.core.versions.choose(1, "again")
    await stage.core.versions.choose(4, "the other one")
    six = await stage.say("six")
    assert said(six.blocks) == ["one", "another two", "four", "six"]
    await stage.core.versions.choose(1, "and back")
    assert await shown(stage) == [0, 1, 2, 5]
    await check(stage)


@pytest.mark.virtual_time
async def test_what_is_read_to_answer_anew_does_not_grow_with_the_turns_before() -> None:
    counts: list[int] = []
    for length in (20, 200):
        stage = await MemoryStage.opened()
        messages = [{"role": role, "content": f"{n}"} for n in range(length) for role in ("user", "assistant")]
        await stage.core.importing.import_turns(read_messages(messages))
        await stage.say("last")
        turns = await stage.core.reads.turns()
        store: Any = stage.core.state.journal.store
        read, records = store.turns, list[int]()

        async def counting(*args: Any, read: Any = read, records: list[int] = records, **options: Any) -> Any:
            page = await read(*args, **options)
            records.append(len(page))
            return page

        store.turns = counting
        turn = await rerun(stage, "instead", turns[-1].index)
        store.turns = read
        assert turn.parent is not None and turn.parent.endswith(f"#{turns[-2].index}")
        counts.append(sum(records))
    assert counts[0] == counts[1] < 20, counts


@pytest.mark.virtual_time
async def test_the_last_turn_is_answered_anew_with_its_own_prompts() -> None:
    stage = await MemoryStage.opened()
    picture = Image(url="https://example.org/a.png")
    await stage.core.admission.append([picture], "key")
    await stage.say("what is it?")
    again = [await rerun(stage) for _ in range(3)]
    assert [turn.asked for turn in again] == [(picture, User(text="what is it?"))] * 3
    assert [turn.version for turn in again] == [2, 3, 4]
    assert len({join(turn.record.prompt) for turn in again}) == 3, "each block belongs to one turn"
    assert await shown(stage) == [3]
    assert numbers(await stage.core.reads.turn(0)) == [(1, 0, False), (2, 1, False), (3, 2, False), (4, 3, True)]
    await check(stage)


@pytest.mark.virtual_time
@pytest.mark.parametrize("policy", ["rollback", "cancel", "interrupt"])
async def test_a_new_version_that_is_dropped_shows_the_earlier_one_again(policy: Any) -> None:
    stage = await MemoryStage.opened(on_cancel="discard" if policy == "cancel" else "keep")
    for prompt in ("one", "two", "three"):
        await stage.say(prompt)
    await rerun(stage, "another three", at=2)
    await stage.core.versions.choose(2, "key")
    started = await stage.core.admission.rerun(["another two"], 1, run_id="dropped")
    await asyncio.sleep(0.001)
    assert await shown(stage) == [0, 4]
    if policy == "cancel":
        assert await stage.core.admission.cancel("no", started.run_id)
        await stage.core.admission.start(["next"], run_id="next")
    else:
        await stage.core.admission.start(["next"], run_id="next", if_busy=policy)
    outcome = await stage.core.reads.wait("next")
    assert outcome.turn
    if policy == "interrupt":
        assert said(outcome.turn.blocks) == ["one", "another two", "next"] and await shown(stage) == [0, 4, 5]
    else:
        assert said(outcome.turn.blocks) == ["one", "two", "three", "next"] and await shown(stage) == [0, 1, 2, 5]
        assert [event.turn_index for event in await stage.events_of(TurnReplaced)] == [3, 2, 4, 1]
    await check(stage)
    stage.new_core()
    assert len(await shown(stage)) > 2
    await check(stage)


class BrokenError(Exception):
    """What an engine raises."""


@pytest.mark.virtual_time
async def test_a_run_that_fails_is_a_version_and_loses_none() -> None:
    stage = await MemoryStage.opened()
    turn = await stage.say("one")
    run = stage.engine.run

    async def fail(turn: Turn, context: Any) -> Sequence[AnyBlock]:
        raise BrokenError

    stage.engine.run = fail
    failed = await rerun(stage, "another one")
    assert failed.status == "failed" and numbers(failed) == [(1, 0, False), (2, 1, True)]
    stage.engine.run = run
    assert (await rerun(stage)).text == "as to another one"
    await stage.core.versions.choose(0, "key")
    assert (await stage.core.reads.latest()) == await stage.core.reads.turn(turn.index)
    await check(stage)


@pytest.mark.virtual_time
async def test_who_saw_an_older_conversation_is_told_which_turn_is_shown() -> None:
    stage = await MemoryStage.opened()
    for prompt in ("one", "two", "three"):
        await stage.say(prompt)
    await rerun(stage, "another two", at=1)
    for index in (1, 2):
        with pytest.raises(TurnReplacedError) as caught:
            await rerun(stage, "late", at=index)
        assert (caught.value.index, caught.value.shown_index) == (index, 3)
    with pytest.raises(TurnNotFoundError):
        await rerun(stage, at=9)
    await stage.core.admission.start(["runs"], run_id="runs")
    for call in (stage.core.admission.rerun(None, None, run_id="x"), stage.core.versions.choose(1, "x")):
        with pytest.raises(SessionInUseError, match="runs"):
            await call
    await stage.core.reads.wait("runs")
    await stage.core.admission.append(["waits"], "waits")
    for call in (stage.core.admission.rerun(None, None, run_id="x"), stage.core.versions.choose(1, "x")):
        with pytest.raises(InvalidInputError, match="wait for a run"):
            await call
    await stage.core.admission.start([], run_id="taken")
    await stage.core.reads.wait("taken")
    with pytest.raises(TurnNotFoundError):
        await stage.core.versions.choose(9, "x")
    await stage.core.admission.end_session()
    with pytest.raises(SessionEndedError):
        await rerun(stage, at=0)
    assert await stage.core.versions.choose(1, "of an ended session")
    await check(stage)


@pytest.mark.virtual_time
async def test_an_empty_session_or_turn_has_nothing_to_answer_anew() -> None:
    stage = await MemoryStage.opened()
    with pytest.raises(TurnNotFoundError):
        await rerun(stage)
    await stage.core.admission.say("Hello!", run_id="greeting")
    with pytest.raises(EmptyTurnError):
        await rerun(stage)
    assert said((await rerun(stage, "go on", at=0)).blocks) == ["go on"]
    await check(stage)


@pytest.mark.virtual_time
async def test_a_repeated_call_returns_the_run_of_the_first() -> None:
    stage = await MemoryStage.opened()
    await stage.say("one")
    options: dict[str, Any] = {"idempotency_key": "key"}
    first = await stage.core.admission.rerun(["two"], 0, run_id="first", **options)
    for core in (stage.core, stage.new_core()):
        assert await core.admission.rerun(["two"], 0, run_id="first", **options) == first, "the same delivery again"
        assert await core.admission.rerun(["two"], 0, run_id="second", **options) == first, "the same key again"
    assert await stage.core.admission.rerun(["two"], 1, run_id="third", **options) == first, "of the turn that it made"
    with pytest.raises(IdempotencyConflictError):
        await stage.core.admission.rerun(["three"], 0, run_id="third", **options)
    await stage.core.reads.wait("first")
    assert len(await stage.core.reads.runs()) == 2
    await check(stage)


@pytest.mark.virtual_time
async def test_blocks_that_were_removed_or_forgotten_come_back_with_no_version() -> None:
    stage = await MemoryStage.opened()
    turns = [await stage.say(prompt) for prompt in ("one", "two", "three", "four")]
    await rerun(stage, "another four", at=3)
    await stage.core.removals.remove(1, join(turns[1].record.prompt, turns[1].record.output), "two")
    await stage.core.forgetting.forget_turn(0)
    await stage.core.versions.choose(3, "first version")
    assert said((await stage.say("five")).blocks) == ["three", "four", "five"]
    await rerun(stage, "another three", at=2)
    assert said(stage.engine.given[-1]) == ["another three"]
    await check(stage)
    await stage.core.forgetting.forget_turn(3)  # of another version
    await stage.core.versions.choose(3, "what was forgotten")
    assert said((await stage.say("six")).blocks) == ["three", "five", "six"]
    with pytest.raises(EmptyTurnError):
        await rerun(stage, at=3)
    await check(stage)


@pytest.mark.virtual_time
async def test_forks_continue_what_is_shown_or_the_turn_that_is_named() -> None:
    stage = await MemoryStage.opened()
    for prompt in ("one", "two"):
        await stage.say(prompt)
    await rerun(stage, "another two")
    for at, session_id, prompts in ((None, "shown", ["one", "another two"]), (1, "hidden", ["one", "two"])):
        fork = await stage.core.forking.fork(at, session_id)
        assert fork.branches == ()
        core = core_of(fork.key, stage.store)
        started = await core.admission.start(["next"], run_id=f"next {session_id}")
        outcome = await core.reads.wait(started.run_id)
        assert outcome.turn and said(outcome.turn.blocks) == [*prompts, "next"]
        again = await core.admission.rerun(["instead"], fork.next_index - 1, run_id=f"again {session_id}")
        outcome = await core.reads.wait(again.run_id)
        assert outcome.turn and said(outcome.turn.blocks) == ["one", "instead"]
        assert [version.turn_index for version in outcome.turn.versions] == [fork.next_index - 1, again.turn_index]
        await core.versions.choose(fork.next_index - 1, "key")
        await check_session(stage.store, session_id, user_id="ada")


@pytest.mark.virtual_time
async def test_imports_prompts_timers_and_texts_of_the_session_follow_what_is_shown() -> None:
    stage = await MemoryStage.opened()
    for prompt in ("one", "two"):
        await stage.say(prompt)
    await rerun(stage, "another two")
    await stage.core.versions.choose(1, "first")
    old = [{"role": "user", "content": "old"}, {"role": "assistant", "content": "long ago"}]
    assert await stage.core.importing.import_turns(read_messages(old)) == 3
    await stage.core.versions.choose(2, "second")
    await stage.core.admission.say("By the way!", run_id="said")
    assert await shown(stage) == [0, 2, 4]
    await stage.core.versions.choose(3, "third")
    await stage.core.admission.append(["appended"], "appended")
    stage.new_core()
    assert await shown(stage) == [0, 1, 3, 5]
    assert said((await stage.say("five")).blocks) == ["one", "two", "old", "appended", "five"]
    when = When(after_s=1.0)
    await stage.core.scheduling.add(["later"], when, delivery_id="timer", options={})
    assert await stage.core.admission.deliver("timer", "timer", 1)
    outcome = await stage.core.reads.wait("timer-1")
    assert outcome.turn and said(outcome.turn.blocks)[-2:] == ["five", "later"]
    assert await shown(stage) == [0, 1, 3, 5, 6]
    await check(stage)


@pytest.mark.virtual_time
async def test_an_archive_has_all_versions() -> None:
    stage = await MemoryStage.opened()
    for prompt in ("one", "two", "three"):
        await stage.say(prompt)
    await rerun(stage, "another two", at=1)
    await stage.core.versions.choose(1, "key")
    lines: list[str] = []
    await export_session(stage.store, KEY, lines.append)
    for number, store in enumerate((stage.store, InMemoryStore())):
        session = await import_session(store, lines, session_id=f"copy{number}")
        core = core_of(session.key, store)
        assert [turn.index for turn in await core.reads.turns()] == [0, 1, 2]
        assert await core.versions.choose(3, "key of the copy")
        assert [said(turn.asked) for turn in await core.reads.turns()] == [["one"], ["another two"]]
        await check_session(store, session.session_id, user_id="ada", imported=True)


@pytest.mark.parametrize("branches", [[[9, 1]], [[2, 3]], [[0, 0]], [[2, -1]], [[2, 1], [1, 0]], [[1, 0]] * 501])
def test_branches_that_no_session_can_have_are_refused(branches: list[list[int]]) -> None:
    assert not are_valid(tuple(Branch(*branch) for branch in branches), next_index=4)


@pytest.mark.virtual_time
async def test_an_archive_with_impossible_branches_is_refused() -> None:
    stage = await MemoryStage.opened()
    await stage.say("one")
    await rerun(stage)
    lines: list[str] = []
    await export_session(stage.store, KEY, lines.append)
    assert lines[0].count('"branches":[[1,0]]') == 1
    lines[0] = lines[0].replace('"branches":[[1,0]]', '"branches":[[7,0]]')
    with pytest.raises(ArchiveError, match="branches"):
        await import_session(InMemoryStore(), lines)


@pytest.mark.virtual_time
@pytest.mark.parametrize("keep_last", range(5))
async def test_clearing_keeps_the_newest_shown_turns(keep_last: int) -> None:
    stage = await MemoryStage.opened()
    for prompt in ("one", "two", "three", "four"):
        await stage.say(prompt)
    await rerun(stage, "another two", at=1)  # turn 4
    await stage.say("after it")  # turn 5
    await stage.core.versions.choose(1, "key")
    await stage.say("five")  # turn 6
    assert await shown(stage) == [0, 1, 2, 3, 6]
    await stage.core.forgetting.clear(keep_last)
    remaining = [0, 1, 2, 3, 6][5 - keep_last :] if keep_last else []
    assert await shown(stage) == remaining
    stored = {turn.index for turn in await stage.store.turns(KEY)}
    assert stored == {index for index in range(7) if remaining and index >= remaining[0]}
    await check(stage)
    if 4 in stored:
        versions = [version.turn_index for version in (await stage.core.reads.turn(4)).versions]
        assert versions == ([1, 4] if keep_last > 3 else [remaining[0], 4])
        await stage.core.versions.choose(4, "another key")
        assert await shown(stage) == [*(index for index in remaining if index < versions[0]), 4, 5]
        await check(stage)
    await stage.say("six")
    await rerun(stage)
    await check(stage)


@pytest.mark.virtual_time
async def test_memories_get_each_version_and_a_run_recalls_none_that_is_not_shown() -> None:
    book = Book()
    stage = await MemoryStage.opened(book)
    await stage.say("the cat sleeps")
    await stage.say("where is the dog")
    await stage.core.ingestion.wait_for_memory()
    await rerun(stage, "where is the cat")
    recalled = [block.text for block in stage.engine.given[-1] if block.kind == "recalled"]
    assert recalled and "sleeps" in recalled[0] and "dog" not in recalled[0]
    await stage.core.ingestion.wait_for_memory()
    assert sorted(index or 0 for index in book.turns) == [0, 1, 2]
    stage.new_core()
    await stage.core.versions.choose(1, "key")
    stage.new_core()
    await stage.core.ingestion.wait_for_memory()
    assert (await stage.core.reads.session()).saved >= 1


@pytest.mark.virtual_time
async def test_a_version_that_memories_lack_is_saved_though_another_one_is_shown() -> None:
    book = Book()
    book.fails = OSError("away")
    stage = await MemoryStage.opened(book)
    for prompt in ("one", "two"):
        await stage.say(prompt)
    await rerun(stage, "another two")
    await stage.core.versions.choose(1, "key")
    book.fails = None
    stage.new_core()
    assert await stage.core.ingestion.wait_for_memory()
    assert book.turns == [0, 1, 2]


@pytest.mark.virtual_time
async def test_a_session_has_a_bounded_number_of_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.actors.session.history.versions.MAX_BRANCHES", 3)
    stage = await MemoryStage.opened()
    await stage.say("one")
    for _ in range(3):
        await rerun(stage)
    with pytest.raises(TooManyVersionsError, match="fork"):
        await rerun(stage)
    with pytest.raises(TooManyVersionsError, match="fork"):
        await stage.core.versions.choose(0, "key")
    await stage.say("two")
    await stage.core.forgetting.clear(1)
    await rerun(stage)
    await check(stage)


def test_branches_of_branches() -> None:
    branches = replacing((), 2, 5)
    assert branches == (Branch(5, 2),)
    assert [index for index in range(9) if is_shown(branches, index)] == [0, 1, 5, 6, 7, 8]
    again = replacing(branches, 5, 7)
    assert [version.turn_index for version in versions_of(again, 2)] == [2, 5, 7]
    inner = replacing(showing(again, 5, 8), 6, 8)
    assert [version.turn_index for version in versions_of(inner, 8)] == [6, 8]
    assert not is_shown(inner, 7) and is_shown(inner, 5) and not is_shown(inner, 6)
    assert first_change(again, inner) == (7, 5)
    assert showing(inner, 8, 9) == inner and is_shown(showing(inner, 3, 9), 4)


@pytest.mark.by_turns
@pytest.mark.usefixtures("quiet")
def test_no_fault_at_any_point_loses_a_version_or_answers_twice() -> None:
    async def life(faults: Faults) -> None:
        world = World(faults, engine=FaultyEngine(faults, word_s=0.01))
        await world.create()
        for prompt in ("one", "two"):
            await world.ask("admission.start", [prompt], run_id=prompt, timeout_s=5.0)
            await world.ask("reads.wait", prompt)
        await world.ask("admission.rerun", ["other"], 0, run_id="other", timeout_s=5.0)
        outcome = await world.ask("reads.wait", "other")
        assert outcome.turn and said(outcome.turn.blocks) == ["other"] and outcome.turn.index == 2
        assert await world.ask("versions.choose", 1, "choice")
        await world.ask("admission.rerun", None, None, run_id="again", timeout_s=5.0)
        outcome = await world.ask("reads.wait", "again")
        assert outcome.turn and said(outcome.turn.blocks) == ["one", "two"] and outcome.turn.index == 3
        assert [turn.index for turn in await world.ask("reads.turns")] == [0, 3]
        events = await world.store.inner.events(SessionKey("session"))
        assert [(event.turn_index, event.replaced) for event in events if isinstance(event, TurnReplaced)] == [
            (2, 0),
            (0, 2),
            (3, 1),
        ]
        (await world.audit()).check()

    assert exhaust(life, **of_cases())["kill"] > 20


@pytest.mark.by_turns
@pytest.mark.usefixtures("quiet")
def test_no_fault_at_any_point_of_a_rollback_hides_the_earlier_version() -> None:
    async def life(faults: Faults) -> None:
        world = World(faults, engine=FaultyEngine(faults, word_s=0.05))
        await world.create()
        for prompt in ("one", "two"):
            await world.ask("admission.start", [prompt], run_id=prompt, timeout_s=5.0)
            await world.ask("reads.wait", prompt)
        await world.ask("admission.rerun", ["a long edit"], 0, run_id="edit", timeout_s=5.0)
        await world.ask("admission.start", ["three"], run_id="three", if_busy="rollback", timeout_s=5.0)
        outcome = await world.ask("reads.wait", "three")
        shown = [turn.index for turn in await world.ask("reads.turns")]
        edited = await world.ask("reads.run", "edit")
        if edited.state == "cancelled":
            assert said(outcome.turn.blocks) == ["one", "two", "three"] and shown == [0, 1, 3]
        else:  # its process was killed, or it ended before
            assert said(outcome.turn.blocks) == ["a long edit", "three"] and shown == [2, 3]
        (await world.audit(discards=True)).check()

    assert exhaust(life, **of_cases())["kill"] > 20


OUTCOMES = (TurnReplacedError, SessionBusyError, TurnNotFoundError, InvalidInputError, NoActiveRunError)


@pytest.mark.by_turns
def test_reruns_race_each_other_and_all_else_and_lose_nothing() -> None:
    async def schedule(seed: int) -> None:
        world = RacingWorld(seed, kinds=("answer", "raise", "tools", "stubborn"))
        await world.create()
        for prompt in ("one", "two", "three"):
            await world.core.reads.wait((await world.core.admission.start([prompt], run_id=prompt)).run_id)
        admission, accepted = world.core.admission, list[str]()

        def any_of(*policies: IfBusy) -> IfBusy:
            return world.random.choice(policies)

        async def attempt(name: str, call: Any) -> Any:
            await world.pause()
            while True:
                try:
                    result = await call()
                except OUTCOMES as error:
                    return error
                except StoreError:  # nobody knows whether it was stored: repeat it
                    await asyncio.sleep(0.01)
                    continue
                accepted.append(name)
                return result

        def rerun_at(number: int, at: int | None) -> Any:
            return partial(admission.rerun, [f"edit {number}"], at, run_id=f"rerun{number}")

        calls = [(f"rerun{number}", rerun_at(number, at)) for number, at in enumerate((1, 1, 0, 2, None))]
        calls += [
            (
                "run",
                partial(admission.start, ["run"], run_id="run", if_busy=world.random.choice(("reject", "enqueue"))),
            ),
            ("stop", partial(admission.start, ["stop"], run_id="stop", if_busy=any_of("rollback", "interrupt"))),
            ("cancel", partial(admission.cancel, "stop")),
            ("append", partial(admission.append, ["appended"], "key")),
            ("choose", partial(world.core.versions.choose, 1, "choice")),
            ("clear", partial(world.core.forgetting.clear, 3)),
        ]
        chosen = calls[:5] + world.random.sample(calls[5:], 3)
        world.store.fail_rate = world.random.choice((0.0, 0.1))
        await asyncio.gather(*(attempt(*call) for call in chosen))
        world.store.fail_rate = 0.0
        for run in await world.core.reads.runs():
            await world.core.reads.wait(run.run_id)
        if world.random.random() < 0.5:
            world.core = world.new_core()
        turns = await world.core.reads.turns()
        findings = (await audit(world.store.inner, [SESSION])).violations
        events = await world.store.inner.events(SessionKey(SESSION))
        without = EVENTS if any(isinstance(event, TurnsCleared) for event in events) else ()
        assert [finding for finding in findings if finding.law not in without] == []
        stored = await turns_of(world.store.inner, SessionKey(SESSION))
        assert {turn.index for turn in turns} == {turn.index for turn in stored if turn.is_shown}
        runs = {run.run_id: run for run in await world.core.reads.runs()}
        assert {name for name in accepted if name.startswith("rerun")} == {name for name in runs if "rerun" in name}
        for event in events:
            if isinstance(event, RunStarted) and event.run_id and "rerun" in event.run_id:
                assert said(world.engine.given[event.run_id])[-1] == event.run_id.replace("rerun", "edit ")

    explore(share(2000, 40), schedule)
