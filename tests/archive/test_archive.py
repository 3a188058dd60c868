"""Exports and imports: an imported session is the exported one, and an import is whole or leaves nothing."""

import asyncio
import hashlib
import json
import math
import random
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from processes.forks import Fork
from scale import share
from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.session.core import SessionCore
from turnwise.errors import (
    ArchiveError,
    CorruptRecordError,
    DuplicateKeyError,
    RunNotFoundError,
    SessionChangedError,
    SessionExistsError,
    SessionNotFoundError,
    StoreError,
)
from turnwise.memory.archive.block_positions import PAGE
from turnwise.memory.archive.export import export_session, import_session
from turnwise.memory.archive.importer import UNFINISHED
from turnwise.memory.conversation.blocks import Block, Summary, Text, ToolUse, User, decode, encode
from turnwise.memory.conversation.events import Event, PromptAppended, RunCompleted, UnknownEvent, WindowCompacted
from turnwise.memory.conversation.runs import RunOrigin, RunRecord
from turnwise.memory.conversation.sessions import Inherited, SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span, Spans
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.deliveries.payload import run_payload
from turnwise.memory.deliveries.records import Delivery
from turnwise.memory.deliveries.schedules import Schedule
from turnwise.memory.event_store.in_memory import InMemoryHistory
from turnwise.memory.stores.base import Commit, SessionStore
from turnwise.memory.stores.conformance.fixtures import NESTED, TEXT, USAGE
from turnwise.memory.stores.encrypted.records import SEALED
from turnwise.memory.stores.in_memory import InMemoryStore
from turnwise.memory.stores.sql.store import SQLStore
from turnwise.memory.values.frozen_json import freeze
from turnwise.testing.audit import audit

USER = "Jürgen \u2028 🦀"
S = SessionKey("s", USER)

PARAMS = freeze({"temperature": 0.5, "stop": [TEXT], "tool_choice": "required", "metadata": {"team": "blue"}})


def play(story: Awaitable[Any]) -> Any:
    async def call() -> Any:
        return await story

    return asyncio.run(call())


async def exported(store: SessionStore, key: SessionKey = S, **settings: Any) -> list[str]:
    lines: list[str] = []
    await export_session(store, key, lines.append, **settings)
    return lines


class Writer:
    """Writes random records to a session."""

    def __init__(self, store: SessionStore, session: SessionRecord, words: random.Random) -> None:
        self.store = store
        self.session = session
        self.words = words

    async def add(self, *blocks: Block, **parts: Any) -> Span:
        size, log = self.session.log_size, self.session.log
        seqs = [event.seq for event in parts.get("events", ())]
        indices = [turn.index + 1 for turn in parts.get("turns", ())]
        self.session = self.session.committed(
            log_size=size + len(blocks),
            seq=max([self.session.seq, *seqs]),
            next_index=max([self.session.next_index, *indices]),
            **parts.pop("row", {}),
        )
        commit = Commit(session=self.session, blocks=[encode(block) for block in blocks], **parts)
        await self.store.commit(self.session.key, self.session.epoch, commit)
        return Span(log, size, size + len(blocks))

    async def talk(self, before: Spans, state: Any = "completed") -> TurnRecord:
        """Commit a turn on top of these spans, with a run and events; leave gaps between indices and numbers."""
        words, session = self.words, self.session
        index, seq = session.next_index + words.randrange(3), session.seq + words.choice([1, 2, 10_000_000])
        blocks: list[Block] = [User(text=f"{TEXT} {index}"), Text(text="so far")]
        if state != "completed":
            blocks.append(ToolUse(call_id="c", name="look"))
        span = Span(session.log, session.log_size, session.log_size + len(blocks))
        prompt, output = Span(span.log, span.start, span.start + 1), Span(span.log, span.start + 1, span.stop)
        run_id = f"{session.session_id}-{index}"
        about: dict[str, Any] = {**session.key._asdict(), "at": 1.5}
        is_open = state in ("running", "queued", "awaiting_approval")
        turn = TurnRecord(
            index=index,
            parent=words.choice([None, f"{session.session_id}#0", "other#3"]),
            run_id=run_id,
            status="running" if state == "awaiting_approval" else state,
            prompt=(prompt,),
            appended=words.choice([(), (prompt,)]),
            input=() if state == "queued" else (*before, prompt),
            output=() if state == "queued" else (output,),
            carried=words.choice([(), before]),
            usage=words.choice([None, USAGE]),
            metadata=words.choice([freeze({}), NESTED]),
            forgotten=words.random() < 0.2,
        )
        run = RunRecord(
            run_id=run_id,
            **session.key._asdict(),
            turn_index=index,
            state=state,
            first_seq=seq,
            created_at=1.5,
            calls=freeze({"c": {"name": "look"}}) if is_open else freeze({}),
            labels=freeze({TEXT: TEXT}),
            origin=words.choice([RunOrigin(), RunOrigin(f"key {index}", "f" * 64)]),
            model=words.choice([None, "m"]),
            params=words.choice([freeze({}), PARAMS]),
            output=words.choice([None, freeze({"schema": NESTED, "retries": 2})]),
            instructions=words.choice([None, "be brief"]),
            tools=words.choice([freeze({}), freeze({"look": {"description": "", "parameters": {"type": "object"}}})]),
        )
        events: list[Event] = [
            PromptAppended(seq=seq, turn_index=index, key=f"k{index}", **about),
            UnknownEvent(seq=seq + 2, stored_kind="new", payload=NESTED, **about),
            WindowCompacted(seq=seq + 3, strategy="x", tokens_before=2, tokens_after=1, summary=(0, 1), **about),
        ]
        if not is_open:
            events.append(RunCompleted(seq=seq + 4, run_id=run_id, span=(output.start, output.stop), **about))
        await self.add(*blocks, turns=[turn], new_run=run, events=events)
        return turn


async def write_fork(store: SessionStore, seed: int) -> None:
    """Write a session `s`, a fork of one of a fork's, with something of everything; the others are deleted."""
    words = random.Random(seed)
    spans: list[Span] = []
    parent = None
    writer = Writer(store, SessionRecord(session_id=""), words)
    for name in ("first", "second", "s"):
        turn = also = None
        if parent:
            chosen = tuple(words.sample(spans, 2))
            turn = TurnRecord(index=3, status="completed", parent=parent, input=chosen[:1], output=chosen[1:])
            also = tuple(spans)
        row: dict[str, Any] = {"metadata": NESTED, "memory": "read", "saved": 1, "ttl_s": words.choice([None, 60.5])}
        row |= {"model": words.choice([None, "m"]), "params": words.choice([freeze({}), PARAMS])}
        await store.create(
            SessionRecord(
                session_id=name,
                user_id=USER,
                agent="a",
                parent=parent,
                next_index=4 if parent else 0,
                **row,
            ),
            turn,
            also or (),
        )
        writer = Writer(store, (await store.activate(SessionKey(name, USER))).session, words)
        for _ in range(words.randrange(3, 6)):
            before = tuple(words.sample(spans, min(len(spans), 2)))
            spans += [*(await writer.talk(before)).output]
            folded = [(span.log, span.start) for span in words.sample(spans, 1)]
            of = [tuple(span) for span in words.sample(spans, min(len(spans), 2))]
            spans.append(await writer.add(Summary(text="in short", of=of, folded=folded)))  # type: ignore[arg-type]
        parent = f"{name}#3"
    for state in words.choice([(), ("running",), ("awaiting_approval", "queued"), ("running", "queued", "queued")]):
        await writer.talk(tuple(spans[:1]), state)
    prompt = await writer.add(User(text="later"), row={"usage": USAGE, "status": "active", "updated_at": 77.25})
    pending = TurnRecord(index=writer.session.next_index, prompt=(prompt,), appended=(prompt,))
    await writer.add(turns=[pending], dropped_turns=[4], forget_events=writer.session.seq // 2)
    for number in range(words.randrange(1, 4)):
        await store.add_delivery(
            Delivery(
                **S._asdict(),
                delivery_id=f"id {number}",
                key=f"key {number} {TEXT}".replace("\0", ""),
                revision=words.randrange(1, 9),
                kind=words.choice(["prompt", "message"]),
                payload=run_payload([encode(User(text=TEXT))], {"labels": {"a": "b"}, "timeout_s": 2.5}),
                occurs_at=77.25,
                due_at=words.choice([None, 99.5]),
                schedule=words.choice([None, Schedule(cron="0 9 * * *", timezone="Europe/Lisbon", until=1e9)]),
                missed=words.choice(["run_once", "skip", "run_all"]),
                if_busy=words.choice(["enqueue", "inject"]),
                attempts=words.randrange(3),
                why=words.choice([None, TEXT]),
            )
        )
    for name in words.choice([(), ("first",), ("first", "second")]):
        await store.delete(SessionKey(name, USER))


@pytest.mark.by_turns
async def test_an_imported_session_is_exported_to_the_same_archive(tmp_path: Path, database: str) -> None:
    """Random forks with summaries, gaps and open runs, from SQLite to PostgreSQL to memory."""

    async def story(seed: int, stores: list[SessionStore]) -> None:
        first, *copies = stores
        await write_fork(first, seed)
        lines = await exported(first)
        whole = "".join(lines)
        for store in copies:
            await import_session(store, lines)
            assert "".join(await exported(store)) == whole
        assert "".join(await exported(first)) == whole
        await import_session(first, lines, session_id="copy")  # beside the original, with other run ids
        copied = await exported(first, SessionKey("copy", USER))
        await import_session(copies[-1], copied, session_id="copy 2")
        record = await copies[-1].get(SessionKey("copy 2", USER))
        original = await copies[-1].get(S)
        assert record == replace(original, session_id="copy 2", log=record.log, revision=record.revision)
        deliveries = [await copies[-1].deliveries(user_id=USER, session_id=name) for name in ("s", "copy 2")]
        assert [
            sorted((replace(one, delivery_id="", session_id="") for one in of_session), key=lambda one: one.key)
            for of_session in deliveries
        ] == [[replace(one, delivery_id="", session_id="") for one in deliveries[0]]] * 2
        assert len({one.delivery_id for of_session in deliveries for one in of_session}) == 2 * len(deliveries[0])
        assert len(copied) == len(lines) and copied != lines
        await copies[-1].delete(S)
        await copies[-1].delete(SessionKey("copy 2", USER))
        assert copies[-1].size_chars == 0  # type: ignore[attr-defined]

    for seed in range(share(8, 2)):
        stores: list[SessionStore] = [
            SQLStore(f"sqlite:///{tmp_path}/{seed}.db"),
            SQLStore(database),
            InMemoryStore(),
        ]
        await story(seed, stores)
        await stores[1].delete(S)
        for store in stores:
            await store.close()


def test_an_import_has_everything_that_was_exported() -> None:
    """It is compared with the records of the original, which has spans in other logs."""

    async def story(seed: int) -> None:
        store, target = InMemoryStore(), InMemoryStore()
        await write_fork(store, seed)
        record, imported = await store.get(S), await import_session(target, await exported(store))
        renumbered: dict[str, Any] = {"log": "", "log_size": 0, "seq": 0, "epoch": 0, "revision": 0}
        assert replace(imported, **renumbered) == replace(record, **renumbered)
        assert imported == await target.get(S)
        assert await target.deliveries() == await store.deliveries() != []
        runs, old_runs = await target.runs(S), await store.runs(S)
        assert [run.turn_index for run in runs] == [run.turn_index for run in old_runs]
        opened = {run.turn_index for run in old_runs if run.is_open}
        assert [run for run in runs if run.turn_index not in opened] == [run for run in old_runs if not run.is_open]
        turns = await target.turns(S)
        for old, new in zip(await store.turns(S), turns, strict=True):
            if old.index not in opened:
                spans = {"prompt": (), "input": (), "output": (), "appended": (), "carried": ()}
                assert replace(old, **spans) == replace(new, **spans)  # type: ignore[arg-type]
                for part in spans:
                    pair = [await s.blocks(getattr(turn, part)) for s, turn in ((store, old), (target, new))]
                    blocks = [[without_places(decode(text)) for text in texts] for texts in pair]
                    assert blocks[0] == blocks[1]
        events = await target.events(S, limit=10_000)
        old_events = await store.events(S, limit=10_000)
        assert events[: len(old_events)] == old_events
        ends = events[len(old_events) :]
        assert [(end.kind, end.turn_index) for end in ends] == [("run_interrupted", index) for index in sorted(opened)]
        for run in runs:
            assert not run.is_open
            if run.turn_index in opened:
                (turn,) = [turn for turn in turns if turn.index == run.turn_index]
                assert run.state == turn.status == "interrupted" and run.why
                texts = await target.blocks((*turn.input, *turn.output))
                assert sum(decode(text).kind == "tool_use" for text in texts) == sum(
                    decode(text).kind == "tool_result" for text in texts
                )
        for block in [decode(text) for text in await target.blocks([Span(imported.log, 0, imported.log_size)])]:
            if isinstance(block, Summary):
                assert await target.blocks([Span(*place) for place in block.of])
                assert all(log == imported.log for log, *_ in (*block.of, *block.folded))

    for seed in range(20):
        play(story(seed))


def without_places(block: Block) -> Block:
    return block.model_copy(update={"of": (), "folded": ()}) if isinstance(block, Summary) else block


async def test_a_session_of_several_pages_is_imported_whole_and_continues() -> None:
    """Case 45: the audit holds after the import, after the next run, and after a fork of it."""

    store, target = InMemoryStore(), InMemoryStore()
    await store.create(SessionRecord(session_id="s"))
    core = SessionCore(SessionKey("s"), store, EchoEngine())
    for number in range(PAGE + 5):
        await core.admission.start([f"prompt {number}"], run_id=f"r{number}")
        await core.reads.wait(f"r{number}")
    fork = await core.forking.fork(None, "f")
    core = SessionCore(SessionKey("f"), store, EchoEngine())
    await core.admission.start(["in the fork"], run_id="f")
    await core.reads.wait("f")
    for name in ("s", fork.session_id):
        await import_session(target, await exported(store, SessionKey(name)))
        again = SessionCore(SessionKey(name), target, EchoEngine())
        await again.admission.start(["after the import"], run_id=f"after {name}")
        outcome = await again.reads.wait(f"after {name}")
        assert outcome.turn and outcome.turn.text == "after the import"
        assert len(outcome.turn.blocks) >= 2 * PAGE + 12
    (await audit(target, ["s", "f"], imported=True)).check()


async def test_events_of_a_history_are_exported_and_imported_into_the_store() -> None:
    store, target, history = InMemoryStore(), InMemoryStore(), InMemoryHistory()
    await store.create(SessionRecord(session_id="s"))
    writer = Writer(store, (await store.activate(SessionKey("s"))).session, random.Random(1))
    for _ in range(PAGE // 2):
        await writer.talk(())
    events = await store.events(SessionKey("s"), limit=10_000)
    plain = await exported(store, SessionKey("s"))
    await history.append(SessionKey("s"), events[: len(events) // 2])
    await writer.add(forget_events=events[len(events) // 3].seq)
    assert len(await store.events(SessionKey("s"), limit=10_000)) < len(events)
    assert await exported(store, SessionKey("s"), history=history) == plain
    await import_session(target, await exported(store, SessionKey("s"), history=history))
    assert await target.events(SessionKey("s"), limit=10_000) == events


async def test_exporting_a_session_that_changes_meanwhile_fails_and_leaves_no_archive() -> None:
    store = InMemoryStore()
    lines: list[str] = []
    await write_fork(store, 3)
    writer = Writer(store, (await store.activate(S)).session, random.Random(1))

    class Busy(InMemoryStore):
        def __getattribute__(self, name: str) -> Any:
            return getattr(store, name) if name != "events" else object.__getattribute__(self, name)

        async def events(self, *args: Any, **kwargs: Any) -> Any:
            if len(lines) < 100:
                await writer.add(row={"updated_at": 99.0})
            return await store.events(*args, **kwargs)

    with pytest.raises(SessionChangedError, match="'s'"):
        await export_session(Busy(), S, lines.append)
    with pytest.raises(ArchiveError, match="it is missing"):
        await import_session(InMemoryStore(), lines)
    with pytest.raises(SessionNotFoundError):
        await exported(store, SessionKey("nobody"))


def sealed(lines: list[str]) -> list[str]:
    """Return lines with an end that fits them."""
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    return [*lines, f"{json.dumps({'end': {'lines': len(lines), 'sha256': digest}})}\n"]


@pytest.fixture(scope="module")
def lines() -> list[str]:
    async def story() -> list[str]:
        store = InMemoryStore()
        await write_fork(store, 3)
        return await exported(store)

    archive: list[str] = play(story())
    return archive


async def refuse(lines: list[str]) -> ArchiveError:
    """Return the error of an import that leaves nothing."""
    store = InMemoryStore()
    with pytest.raises(ArchiveError) as error:
        await import_session(store, lines)
    assert await store.count() == 0 and store.size_chars == 0 and await store.deliveries() == []
    for run_id in set(re.findall(r'"run_id": *"([^"]+)"', "".join(map(str, lines)))):
        with pytest.raises(RunNotFoundError):
            await store.run(run_id)
    return error.value


async def test_an_archive_that_is_cut_off_anywhere_imports_nothing(lines: list[str]) -> None:
    for count in range(len(lines)):
        assert (await refuse(lines[:count])).line == count + 1
        assert (await refuse([*lines[:count], lines[count][:-9]])).line in (count + 1, count + 2)
    assert (await refuse([*lines, "{}"])).line == len(lines) + 1


async def test_an_archive_with_a_changed_letter_imports_nothing(lines: list[str]) -> None:
    words = random.Random(0)
    for _ in range(share(150, 3)):
        index = words.randrange(len(lines) - 1)
        line = lines[index]
        spot = words.randrange(len(line) - 1)
        letter = words.choice([letter for letter in '0a"}{,' if letter != line[spot]])
        error = await refuse([*lines[:index], line[:spot] + letter + line[spot + 1 :], *lines[index + 1 :]])
        assert index + 1 <= error.line <= len(lines) + 1


Change = Callable[[dict[str, Any]], Any]


def nested(depth: int) -> dict[str, Any]:
    return {"": nested(depth - 1)} if depth else {}


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        ("turnwise_archive", lambda line: line.update(turnwise_archive=2), "it has version 2, and this turnwise reads"),
        ("turnwise_archive", lambda line: line.pop("turnwise_archive"), "not the first line of an archive"),
        ("turnwise_archive", lambda line: line.update(session_id=""), "it is blank"),
        ("turnwise_archive", lambda line: line.update(session=[]), "must be an object"),
        ("turnwise_archive", lambda line: line["session"].update(epoch=7), "without session_id, user_id, log, epoch"),
        ("turnwise_archive", lambda line: line["session"].update(log_size=1), "replaces|names|blocks"),
        (
            "turnwise_archive",
            lambda line: line["session"].update(next_index=4),
            "turn .* follows turn 3, and new turns begin at 4",
        ),
        ("turnwise_archive", lambda line: line["session"].update(seq=4), "the session's last event is 4"),
        ("turnwise_archive", lambda line: line["session"].update(status="x"), "status must be 'active' or 'ended'"),
        ("turnwise_archive", lambda line: line["session"].update(created_at=math.inf), "no number that stores"),
        ("turnwise_archive", lambda line: line["session"].update(updated_at=math.nan), "no number that stores"),
        ("turnwise_archive", lambda line: line["session"].update(ttl_s=math.inf), "no number that stores"),
        ("turnwise_archive", lambda line: line["session"].update(metadata={SEALED: "tw1:"}), "is encrypted"),
        ("turnwise_archive", lambda line: line["session"].update(metadata=nested(600)), "nested too deeply"),
        ("block", lambda line: line.update(block=7), "a block must be text"),
        ("block", lambda line: line.update(extra=7), "it has none of"),
        ("turn", lambda line: line["turn"].update(index=-1), "turn -1 follows"),
        ("turn", lambda line: line["turn"].update(status="running"), "no open runs"),
        ("turn", lambda line: line["turn"].update(input=[["1", 0, 1]]), "blocks 0 to 1 of log '1'"),
        ("turn", lambda line: line["turn"].update(output=[["", 0, 10**6]]), "to 1000000"),
        ("run", lambda line: line["run"].update(state="queued"), "no open runs"),
        ("run", lambda line: line["run"].update(turn_index=10**6), "the run of turn 1000000"),
        ("run", lambda line: line["run"].pop("created_at"), "created_at"),
        ("event", lambda line: line["event"].__setitem__(0, 0), "event 0 follows"),
        ("event", lambda line: line["event"].pop(), "no event"),
        ("event", lambda line: line["event"].__setitem__(6, "{"), "no event"),
        ("delivery", lambda line: line["delivery"].update(session_id="t"), "without session_id"),
        ("delivery", lambda line: line["delivery"].pop("occurs_at"), "occurs_at"),
        ("delivery", lambda line: line["delivery"].update(missed="x"), "missed must be"),
        ("delivery", lambda line: line["delivery"].update(revision=-1), "revision=-1"),
        ("delivery", lambda line: line["delivery"].update(due_at=-1.0), "due_at"),
        ("delivery", lambda line: line["delivery"].update(schedule={"cron": "x"}), "cron"),
        ("delivery", lambda line: line["delivery"].update(payload={"prompts": ["x"]}), "payload"),
    ],
)
def test_an_impossible_line_is_refused_by_its_number(lines: list[str], kind: str, change: Change, reason: str) -> None:
    """Also when the checksum fits."""
    index = next(index for index, line in enumerate(lines) if line.startswith(f'{{"{kind}"'))
    changed = json.loads(lines[index])
    change(changed)
    error = play(refuse(sealed([*lines[:index], f"{json.dumps(changed)}\n", *lines[index + 1 : -1]])))
    assert error.line == index + 1 or kind == "turnwise_archive"
    with pytest.raises(ArchiveError, match=reason):
        raise error


async def test_lines_in_another_order_are_refused(lines: list[str]) -> None:
    turn = next(index for index, line in enumerate(lines) if line.startswith('{"turn"'))
    swapped = [*lines[: turn - 1], lines[turn], lines[turn - 1], *lines[turn + 1 : -1]]
    assert (await refuse(sealed(swapped))).line == turn  # which comes before the last block
    assert (await refuse(sealed([lines[0], *lines[:-1]]))).line == 2


async def test_an_import_does_not_change_a_session_with_its_id(lines: list[str]) -> None:
    store = InMemoryStore()
    there = await store.create(SessionRecord(session_id="s", user_id=USER))
    with pytest.raises(SessionExistsError, match="'s'"):
        await import_session(store, lines)
    assert await store.get(S) == there
    imported = await import_session(store, lines, session_id="t", now=123.5)
    assert (imported.session_id, imported.updated_at) == ("t", 123.5)
    run = (await store.runs(SessionKey("t", USER)))[0]
    copy = [line.replace('"session_id":"s"', '"session_id":"u"') for line in lines[:-1]]
    copy = [line.replace('"run_id":"s-', f'"run_id":"{run.run_id}') for line in copy]
    same = [line for line in copy if f'"run_id":"{run.run_id}' in line and line.startswith('{"run"')]
    copied = json.loads(same[0])["run"]["run_id"]
    copy = [line.replace(f'"{copied}"', f'"{run.run_id}"') for line in copy]
    with pytest.raises(DuplicateKeyError):
        await import_session(store, sealed(copy))
    assert await store.count() == 2
    for name in ("s", "t"):
        await store.delete(SessionKey(name, USER))
    assert store.size_chars == 0


def test_a_failed_or_cancelled_import_leaves_nothing(lines: list[str]) -> None:
    class Failing(InMemoryStore):
        """Fails, or waits for ever, at one of its verbs."""

        def __init__(self, commits_left: int, fails: bool) -> None:
            super().__init__()
            self.commits_left, self.fails, self.waits = commits_left, fails, asyncio.Event()

        async def fault(self) -> None:
            self.commits_left -= 1
            if self.commits_left == 0 and self.fails:
                raise StoreError("away")
            if self.commits_left == 0:
                self.waits.set()
                for _ in range(20):  # long enough to be cancelled in
                    await asyncio.sleep(0)

        async def activate(self, *args: Any, **kwargs: Any) -> Any:
            await self.fault()
            return await super().activate(*args, **kwargs)

        async def commit(self, key: SessionKey, epoch: int, commit: Commit) -> None:
            await self.fault()
            await super().commit(key, epoch, commit)
            await self.fault()

    async def story(fails: bool) -> int:
        for index in range(1, 100):
            store = Failing(index, fails)
            task = asyncio.ensure_future(import_session(store, lines))
            if not fails:
                waits = asyncio.ensure_future(store.waits.wait())
                await asyncio.wait([waits, task], return_when="FIRST_COMPLETED")
                waits.cancel()
                if not task.done():
                    task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is None:
                assert len(await exported(store)) == len(lines)
                break
            assert await store.count() == 0 and store.size_chars == 0
        return index

    for fails in (True, False):
        assert 10 < play(story(fails)) < 99


def test_a_kill_during_an_import_leaves_a_session_marked_as_unfinished(lines: list[str], url: str) -> None:
    """Case 63: what came in is deleted with one call, and then the import can be repeated."""
    count = max(index for index, line in enumerate(lines) if line.startswith('{"run"'))

    def first_lines() -> Iterator[str]:
        yield from lines[:count]
        print("there", flush=True)
        sys.stdin.readline()

    with Fork(lambda: asyncio.run(import_session(SQLStore(url), first_lines()))) as process:
        assert process.out.readline() == "there\n"

    async def story() -> None:
        store = SQLStore(url)
        half = await store.get(S)
        assert half.metadata == UNFINISHED and half.status == "ended"
        with pytest.raises(SessionExistsError):
            await import_session(store, lines)
        await store.delete(S)
        run_id = json.loads(next(line for line in lines if line.startswith('{"run"')))["run"]["run_id"]
        with pytest.raises(RunNotFoundError):
            await store.run(run_id)
        with pytest.raises(CorruptRecordError):
            await store.blocks([Span(half.log, 0, 1)])
        await import_session(store, lines)
        assert await exported(store) == lines
        await store.close()

    play(story())


def test_an_agent_that_is_imported_under_its_own_id_is_its_callers_again() -> None:
    async def story() -> None:
        store, lines = InMemoryStore(), list[str]()
        await store.create(
            SessionRecord(session_id="agent", user_id="ann", called_by="chat", inherited=Inherited(depth=1))
        )
        await export_session(store, SessionKey("agent", "ann"), lines.append)
        same = await import_session(InMemoryStore(), lines)
        assert (same.called_by, same.depth) == ("chat", 1)
        for session_id, user_id in (("copy", None), (None, "bob")):
            copy = await import_session(InMemoryStore(), lines, session_id=session_id, user_id=user_id)
            assert (copy.called_by, copy.depth) == (None, 0)

    play(story())
