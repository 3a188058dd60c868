"""Reading changes nothing: neither who has a session, nor what runs in it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from engines import ScriptedEngine
from processes.packed_hosts import answer_of
from scale import share
from turnwise.actors.hosting import verbs
from turnwise.actors.hosting.packed_host import PackedHost
from turnwise.actors.hosting.placement import Packed
from turnwise.actors.hosting.stored_source import TAIL, StoredSource, UnattendedError
from turnwise.actors.hosting.verb_declaration import VerbCall
from turnwise.actors.hosting.wire import PackedOutcome, SessionRef
from turnwise.actors.hosting.worker_resources import WorkerResources
from turnwise.actors.session.config import SessionConfig
from turnwise.actors.session.core import SessionCore
from turnwise.actors.session.state.reads import SessionReads
from turnwise.actors.wire_version import packed
from turnwise.errors import RunNotFoundError, SessionFencedError, SessionNotFoundError, TurnNotFoundError
from turnwise.memory.conversation.events import RunCompleted
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.turns import Outcome, Turn, TurnRecord
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.event_store.encrypted import EncryptedHistory
from turnwise.memory.event_store.in_memory import InMemoryHistory
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.encrypted.settings import Encryption
from turnwise.memory.stores.encrypted.store import EncryptedStore
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.store_owner import Shared, StoreOwner

ENCRYPTION = Encryption(lambda user_id: user_id.encode().ljust(32, b"."))

KINDS = ("plain", "history", "encrypted")


class SharedStore(InMemoryStore, Shared):
    """A store of which it is known who else has it open."""

    others: Sequence[str] = ()

    def own(self, owner: StoreOwner) -> None:
        """Nobody else is kept out."""

    async def rivals(self) -> Sequence[str]:
        return self.others


def play(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 60))


def stores(kind: str) -> tuple[SessionStore, HistoryStore | None]:
    history = InMemoryHistory() if kind != "plain" else None
    if kind != "encrypted":
        return InMemoryStore(), history
    return EncryptedStore(InMemoryStore(), ENCRYPTION), EncryptedHistory(InMemoryHistory(), ENCRYPTION)


async def owned(store: SessionStore, history: HistoryStore | None = None) -> SessionCore:
    await store.create(SessionRecord(session_id="chat", user_id="ada"))
    return SessionCore(SessionKey("chat", "ada"), store, ScriptedEngine(), history=history)


def values_of(turn: Turn | None) -> Any:
    return turn and (turn.record, turn.blocks)


async def outcome(ask: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await ask()
    except (RunNotFoundError, TurnNotFoundError) as error:
        return str(error)


async def all_that_is_read(reads: SessionReads) -> dict[str, Any]:
    """Return what every read says, of which the store can know all."""
    session = await reads.session()
    runs = [replace(run, usage=None) for run in await reads.runs()]
    events, after = [], 0
    while page := (await reads.events(after, 7))[0]:
        events += [event for event in page if event.kind not in ("text_delta", "thinking_delta")]
        after = page[-1].seq
    ended = [run.run_id for run in runs if not run.is_open]
    messages = [message for message in (await reads.messages(None, 1000))[0] if not message.is_partial]
    return {
        "session": session,
        "latest": values_of(await reads.latest()),
        "turns": list(map(values_of, await reads.turns())),
        "turn": [values_of(await reads.turn(turn.index)) for turn in await reads.turns()],
        "no turn": await outcome(lambda: reads.turn(10_000)),
        "messages": [messages, reads.active_run_id or await reads.messages(None, 5)],
        "runs": runs,
        "run": [replace(await reads.run(run.run_id), usage=None) for run in runs],
        "no run": await outcome(lambda: reads.run("nobody's")),
        "pending": [await reads.pending(run.run_id) for run in runs],
        "active": (reads.active_run_id, reads.queued_run_ids),
        "ends": [values_of(end.turn) for name in ended if isinstance(end := await reads.wait(name), Outcome)],
        "events": events,
        "of runs": [[e for e in (await reads.events(run_id=name))[0] if e.kind != "text_delta"] for name in ended],
    }


@pytest.mark.by_turns
@pytest.mark.parametrize("kind", KINDS)
def test_reading_from_the_store_gives_the_owners_answers_and_does_not_take_the_session(kind: str) -> None:
    async def story(seed: int) -> None:
        dice = random.Random(f"{kind} {seed}")
        store, history = stores(kind)
        core = await owned(store, history)
        for number in range(dice.randint(1, 12)):
            match dice.choice(["append", "run", "run", "queue", "interrupt", "cancel"]):
                case "append":
                    await core.admission.append([f"note {number}"], f"key {number}")
                case "cancel" if core.reads.active_run_id:
                    await core.admission.cancel("enough")
                case "run" if not core.reads.active_run_id:
                    await core.admission.start([f"prompt {number}"], run_id=f"run {number}")
                    await core.reads.wait(f"run {number}")
                case "interrupt":
                    await core.admission.start(["slow 100000"], run_id=f"run {number}", if_busy="interrupt")
                case _:
                    await core.admission.start(["slow 100000"], run_id=f"run {number}", if_busy="enqueue")
            epoch = (await store.get(SessionKey("chat", "ada"))).epoch
            if core.state.journal.forwarder:
                await core.state.journal.forwarder.flush(5.0)
            reads = SessionReads(StoredSource(SessionKey("chat", "ada"), store, history))
            assert await all_that_is_read(reads) == await all_that_is_read(core.reads), f"seed {seed}, step {number}"
            assert (await store.get(SessionKey("chat", "ada"))).epoch == epoch
        await core.admission.end_session()

    for seed in range(share(40, 4)):
        play(story(seed))


async def test_the_last_turn_that_has_ended_is_found_behind_a_long_queue() -> None:
    store = InMemoryStore()
    await store.create(SessionRecord(session_id="chat"))
    core = SessionCore(SessionKey("chat"), store, ScriptedEngine(), SessionConfig(max_queued=1000))
    await core.admission.start(["first"], run_id="first")
    await core.reads.wait("first")
    for number in range(2 * TAIL + 3):
        await core.admission.start(["slow 100000"], run_id=f"run {number}", if_busy="enqueue")
    reads = SessionReads(StoredSource(SessionKey("chat"), store, None))
    assert values_of(await reads.latest()) == values_of(await core.reads.latest())
    assert reads.queued_run_ids == core.reads.queued_run_ids
    await core.admission.end_session()


async def test_a_wait_for_a_run_of_another_ray_does_not_interrupt_it() -> None:
    store = SharedStore()
    store.others = ["10.0.0.1:6379"]
    core = await owned(store)
    await core.admission.start(["slow 40"], run_id="run")
    reads = SessionReads(StoredSource(SessionKey("chat", "ada"), store, None))
    assert (await reads.wait("run", 0.01)).run.is_open
    waiting = asyncio.create_task(SessionReads(StoredSource(SessionKey("chat", "ada"), store, None)).wait("run"))
    after, done, events = 0, False, []
    while not done:
        page, after, done = await reads.events(after, run_id="run", timeout_s=20.0)
        events += page
    assert isinstance(events[-1], RunCompleted)
    ended = await waiting
    assert ended.run.state == "completed"
    assert (await store.get(SessionKey("chat", "ada"))).epoch == 1


@pytest.mark.parametrize("verb", ["wait", "events"])
async def test_a_run_that_no_process_can_be_running_is_ended_by_a_new_owner(verb: str) -> None:
    store = SharedStore()
    core = await owned(store)
    await core.admission.start(["slow 100000"], run_id="run")
    reads = SessionReads(StoredSource(SessionKey("chat", "ada"), store, None))
    requests: dict[str, Callable[[SessionReads], Coroutine[Any, Any, Any]]] = {
        "wait": lambda reads: reads.wait("run"),
        "events": lambda reads: reads.events(100, run_id="run", timeout_s=60.0),
    }
    with pytest.raises(UnattendedError):
        await requests[verb](reads)
    reading = asyncio.create_task(
        requests[verb](SessionReads(StoredSource(SessionKey("chat", "ada"), store, None, raises_unattended=False)))
    )
    await core.admission.cancel("enough")
    await reading


class TakenOverMeanwhile(InMemoryStore):
    """A store in which another process activates the session while it is being read, behind its row."""

    is_taken_over = True

    async def turns(self, key: SessionKey, *, after: int = -1, limit: int = 100) -> list[TurnRecord]:
        if not self.is_taken_over:
            self.is_taken_over = True
            await SessionCore(SessionKey("chat", "ada"), self, ScriptedEngine()).transactor.activate()
        return await super().turns(key, after=after, limit=limit)


async def test_a_follower_sees_the_end_of_a_run_that_is_repaired_while_the_store_is_read() -> None:
    store = TakenOverMeanwhile()
    owner = await owned(store)
    started = await owner.admission.start(["slow 1000"], run_id="run-1")
    last_seq = (await owner.reads.events(run_id=started.run_id))[1]
    store.is_taken_over = False
    reads = SessionReads(StoredSource(SessionKey("chat", "ada"), store, None))
    events, _, done = await reads.events(last_seq, run_id=started.run_id)
    assert done and [event.kind for event in events] == ["run_interrupted"]


async def test_a_session_that_is_not_there_cannot_be_read() -> None:
    reads = SessionReads(StoredSource(SessionKey("chat", "ada"), InMemoryStore(), None))
    for ask in (reads.latest, reads.turns, reads.runs, reads.events, reads.session):
        with pytest.raises(SessionNotFoundError):
            await ask()


def packed_host(store: SessionStore) -> PackedHost:
    async def keep(*_: Any) -> None:
        """Nothing is taken over."""

    engine = packed((ScriptedEngine(), SessionConfig(), None, (), None))
    resources = WorkerResources(lambda: store, lambda: None, "engine", engine)
    return PackedHost(
        resources, Packed(), node_id="node", save_override=keep, drop_override=lambda _: None, leave=lambda: None
    )


async def test_a_packed_host_reads_a_session_that_another_ray_has_and_takes_it_with_the_first_change() -> None:
    store = SharedStore()
    store.others = ["10.0.0.1:6379"]
    core = await owned(store)
    await core.admission.start(["slow 100000"], run_id="run")
    host = packed_host(store)

    async def ask(call: VerbCall[Any]) -> Any:
        return answer_of(await host.call(call.to(SessionRef(SessionKey("chat", "ada"))).pickled()))

    assert (await ask(verbs.latest(()))).record.run_id == "run"
    assert (await ask(verbs.info())).active_run_id == "run"
    assert (await ask(verbs.run("run"))).state == "running"
    turns, _ = await ask(verbs.turns(-1, 100, ()))
    assert len(turns) == 1
    assert (await ask(verbs.wait(0.01, "run", ()))).state == "running"
    assert (await store.get(SessionKey("chat", "ada"))).epoch == 1
    waiting = asyncio.create_task(ask(verbs.wait(None, "run", ())))
    await ask(verbs.append(("and?",), "key", ()))
    assert (await store.get(SessionKey("chat", "ada"))).epoch == 2
    ended = await waiting
    assert isinstance(ended, PackedOutcome) and ended.state == "interrupted"
    with pytest.raises(SessionFencedError):
        await core.admission.append(["late"], "late")


async def test_a_packed_host_settles_a_run_that_is_waited_for_and_was_lost() -> None:
    store = SharedStore()
    core = await owned(store)
    await core.admission.start(["slow 100000"], run_id="run")
    request = verbs.wait(None, "run", ()).to(SessionRef(SessionKey("chat", "ada")))
    ended = answer_of(await packed_host(store).call(request.pickled()))
    assert isinstance(ended, PackedOutcome) and ended.state == "interrupted"
