"""Laws of `SessionStore` about records: they are read as they were written."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any, get_args

from turnwise.errors import CorruptRecordError, DuplicateKeyError, SessionFencedError, SessionNotFoundError
from turnwise.memory.conversation.blocks import Text, User, encode
from turnwise.memory.conversation.codec import decoded_events
from turnwise.memory.conversation.events import (
    KINDS,
    Event,
    Places,
    RunCompleted,
    RunStarted,
    StoresBlocks,
    UnknownEvent,
)
from turnwise.memory.conversation.runs import RunOrigin, RunState
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import Span, Spans
from turnwise.memory.conversation.turns import TurnRecord, TurnStatus
from turnwise.memory.conversation.usage import Usage
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.conformance.fixtures import (
    NESTED,
    TEXT,
    USAGE,
    Owner,
    a_run,
    a_session,
    a_turn,
    an_event,
    held,
    own,
    state_of,
    unchanged,
)
from turnwise.memory.stores.conformance.laws import Law, collector, equal, refuses
from turnwise.memory.stores.reading import FindsRemovals, KeepsEventRows, read_blocks
from turnwise.memory.values.frozen_json import FrozenDict, freeze

LAWS: list[Law] = []
"""All laws of this file, in order."""

_law = collector(LAWS)


@_law
async def check_every_field_of_a_turn_comes_back(store: SessionStore) -> None:
    """A turn that is stored again replaces all fields of the earlier one."""
    owner, another = await own(store), await own(store, "another")
    span, far = await owner.commit("a", "b", "c"), await another.commit("d", "e")
    parts: dict[str, Spans] = {
        "prompt": (span, far),
        "appended": (Span(span.log, 1, 2),),
        "input": (Span(far.log, 1, 2), Span(span.log, 2, 3), Span(span.log, 0, 1)),
        "output": (Span(span.log, 0, 2),),
    }
    texts = {"parent": "an'other#1", "turn_id": "t'\"\\%ü", "run_id": "run", "stop_reason": TEXT}
    turns = [
        a_turn(7, **parts, **texts, usage=USAGE, metadata=NESTED, marks=NESTED, created_at=1763700000.123456),
        a_turn(7),
    ]
    turns += [a_turn(7, forgotten=True), a_turn(7, prompt=(span,), removed=(Span(span.log, 1, 2), far))]
    turns += [a_turn(7, status=status, usage=Usage(), stop_reason="") for status in get_args(TurnStatus)]
    for turn in (*turns, turns[0], turns[1]):
        await owner.commit(turns=[turn])
        equal(await store.turns(SessionKey("s")), [turn], "the turn as it was put last")


@_law
async def check_carried_spans_of_a_turn_come_back(store: SessionStore) -> None:
    """`turns` and `activate` return the last stored `carried` of ended and of open turns, also if it is empty."""
    owner, another = await own(store), await own(store, "another")
    span, far = await owner.commit("a", "b", "c"), await another.commit("d", "e")
    statuses: list[TurnStatus] = ["completed", "running", "queued", "pending"]
    plain = [a_turn(index, status=status, input=(span,)) for index, status in enumerate(statuses)]
    lists: list[Spans] = [(Span(far.log, 1, 2), Span(span.log, 2, 3), Span(span.log, 0, 1)), (span, far), (), (far,)]
    await owner.commit(turns=plain)
    await owner.commit(new_run=a_run("r", 1))
    await owner.commit(new_run=a_run("q", 2, "queued"))
    for shift in range(len(lists) + 1):
        expected = [lists[(shift + index) % len(lists)] for index in range(len(plain))]
        await owner.commit(turns=[replace(turn, carried=new) for turn, new in zip(plain, expected, strict=True)])
        activation = await store.activate(SessionKey("s"))
        owner = Owner(store, activation.session)
        for subject, turns in (
            ("turns", await store.turns(SessionKey("s"))),
            ("an activation", [*([activation.head] if activation.head else []), *activation.open_turns]),
        ):
            equal(turns, plain, f"the turns of {subject}")
            equal([turn.carried for turn in turns], expected, f"what they carry, of {subject}")
    await owner.commit(turns=plain[:2])
    equal([turn.carried for turn in await store.turns(SessionKey("s"))], [(), (), *lists[2:]], "what is left of it")


@_law
async def check_events_come_as_rows(store: SessionStore) -> None:
    """Their rows are those that `events` decodes, in the same pages."""
    if not isinstance(store, KeepsEventRows):
        return
    owner, key = await own(store), SessionKey("s")
    await owner.commit(events=[an_event(seq, f"e{seq}" if seq % 2 else None) for seq in range(1, 8)])
    for after, limit in ((0, 100), (2, 3), (7, 1)):
        rows = await store.event_rows(key, after=after, limit=limit)
        equal(decoded_events(key, rows), await store.events(key, after=after, limit=limit), "the events of the rows")
    await refuses(SessionNotFoundError, store.event_rows(SessionKey("nobody")), "the rows of no session")


@_law
async def check_turns_that_lost_something_are_found(store: SessionStore) -> None:
    """Those that were forgotten, and those of which blocks were removed, come in pages by index, and no others."""
    if not isinstance(store, FindsRemovals):
        return
    owner = await own(store)
    span = await owner.commit("a", "b")
    turns = [a_turn(index, prompt=(span,)) for index in range(12)]
    first = (Span(span.log, 0, 1),)
    less = [replace(turns[2], forgotten=True), *(replace(turns[index], removed=first) for index in (5, 6, 11))]
    await owner.commit(turns=turns)
    equal(await store.turns_with_removals(SessionKey("s")), [], "the turns that have lost something, of which are none")
    await owner.commit(turns=less)
    equal(await store.turns_with_removals(SessionKey("s")), less, "the turns that have lost something")
    equal(await store.turns_with_removals(SessionKey("s"), after=2, limit=2), less[1:3], "a page of them")
    await owner.commit(turns=[turns[5]], dropped_turns=[6])
    equal(await store.turns_with_removals(SessionKey("s"), after=2), [less[-1]], "those that are left")
    await refuses(SessionNotFoundError, store.turns_with_removals(SessionKey("nobody")), "the turns of no session")


@_law
async def check_turns_and_events_come_back_that_are_stored_with_their_runs(store: SessionStore) -> None:
    """Also what the run says too, if a store has that only once; later commits change no more than they name."""
    owner, another = await own(store), await own(store, "another")
    log, events, turns = owner.session.log, list[Event](), list[TurnRecord]()
    usages = (USAGE, None, Usage(), Usage(seconds=0.1234567891, calls=1), Usage(cost=1e-15))
    labels: tuple[dict[str, str], ...] = ({}, {TEXT: TEXT})
    for index, (usage, own_labels) in enumerate(product(usages, labels)):
        run = a_run([f"r'\"{index}", f"{index:024x}"][index % 2], index, labels=freeze(own_labels))
        about: dict[str, Any] = {
            "session_id": "s",
            "at": 1763700000.123456 + index,
            "turn_index": index,
            "run_id": run.run_id,
        }
        about |= {"labels": own_labels, "turn_id": TEXT if index % 3 == 1 else None}
        places: Places = (("", 5, 2**40),) if index % 4 else (("", 1, 2), (another.session.log, 0, 3))
        started = RunStarted(seq=2 * index + 1, prompt=places, input=None if index % 5 else places, **about)
        end = replace(run, state="completed", usage=usage, stop_reason=[None, "", TEXT][index % 3], ended_at=9.0)
        span = (7, 2**40) if index % 4 else None
        told: dict[str, Any] = {
            "usage": usage if index % 7 else USAGE,
            "stop_reason": end.stop_reason if index % 8 else "other",
        }
        ended = RunCompleted(seq=2 * index + 2, span=span, key=f"e{index}" if index % 2 else None, **told, **about)
        parent = [None, f"s#{index - 1}", "another#1"][index % 3]
        new = a_turn(index, status="running", run_id=run.run_id, parent=parent, prompt=(Span(log, 0, 1),))
        final: dict[str, Any] = {"usage": usage if index in (1, 4, 5) else None, "created_at": 1.5 + index % 2}
        # The usage of turns may be rounded, that of events not.
        turn = replace(new, status="completed", stop_reason=[None, "", TEXT][index % 3], **final)
        if index % 2:  # as for a run that says a text
            await owner.commit(turns=[turn], new_run=end, events=[started, ended])
        else:
            await owner.commit(turns=[new], new_run=run, events=[started])
            equal((await store.turns(SessionKey("s")))[-1], new, "a turn whose run has begun")
            await owner.commit(turns=[turn], runs=[end], events=[ended])
        events += [started, ended]
        turns.append(turn)
    key = SessionKey("s")
    equal(
        [await store.run(event.run_id or "") for event in events[::2]], await store.runs(key), "the runs by their ids"
    )
    equal(await store.turns(key), turns, "the turns of runs")
    again = owner.commit(new_run=a_run(f"{1:024x}", len(turns)))
    await refuses(DuplicateKeyError, again, "a run with the id of another")
    equal((await store.state(key)).head, turns[-1], "the last turn")
    turns[0] = replace(turns[0], forgotten=True, usage=None, prompt=())
    turns[2] = replace(turns[2], marks=NESTED)
    await owner.commit(turns=[turns[0], turns[2]], dropped_turns=[1])
    equal(await store.turns(key), [turns[0], *turns[2:]], "turns that have changed")
    equal(await store.events(key), events, "the events of runs")
    equal(await store.events(key, after=3, limit=3), events[3:6], "a page of them")
    equal(await store.event_of_key(key, "e1"), events[3], "an event that is found by its key")


@_law
async def check_turns_are_dropped(store: SessionStore) -> None:
    """A commit drops turns before it stores others. Dropping a turn that does not exist does nothing."""
    owner = await own(store)
    await owner.commit(turns=[a_turn(index) for index in range(5)])
    await owner.commit(dropped_turns=[1, 3, 99], turns=[a_turn(3, status="queued"), a_turn(7)])
    remaining = [a_turn(0), a_turn(2), a_turn(3, status="queued"), a_turn(4), a_turn(7)]
    equal(await store.turns(SessionKey("s")), remaining, "turns that are left")


@_law
async def check_every_field_of_a_run_comes_back(store: SessionStore) -> None:
    """A commit changes the fields that may change, in the runs that it names."""
    owner = await own(store)
    times = {"created_at": 1763700000.123456, "started_at": 0.1 + 0.2, "ended_at": 9.0, "timeout_s": 0.25}
    spent = {"usage": USAGE, "stop_reason": TEXT, "code": "step_limit", "calls": NESTED, "resumes": 3}
    texts = {"why": TEXT, "labels": freeze({TEXT: TEXT, "": ""}), "origin": RunOrigin("k'\"\\%", "f" * 64, "ü%'")}
    texts |= {"parent": "p'\"\\%", "engine": "e'\"\\%", "successor": "s'\"\\%\\ü"}
    request: dict[str, Any] = {"model": "m'%\"\\ü", "params": NESTED, "output": NESTED}
    request |= {"instructions": TEXT, "tools": NESTED, "overflow": NESTED}
    request |= {"trace": freeze({"traceparent": "00-1-2-01", "parent": "3"})}
    runs = {
        "r'%\"\\ü": a_run(
            "r'%\"\\ü", 2, "failed", **times, **texts, **spent, **request, first_seq=2**40, memory="read"
        ),
        "plain": a_run("plain", 3, model="m", params=NESTED[TEXT][0], output=freeze({"name": TEXT, "schema": {}})),
        "equipped": a_run("equipped", 4, instructions=TEXT, tools=NESTED[TEXT][0]),
        "empty": a_run(
            "empty", 5, why="", started_at=0.0, ended_at=0.0, timeout_s=0.0, usage=Usage(), stop_reason="", memory="off"
        ),
        "traced": a_run("traced", 6, trace=freeze({"traceparent": "00-1-2-01"})),
        "joining": a_run(
            "joining", 7, origin=RunOrigin(joins=True), overflow=freeze({"strategy": TEXT, "turns": 2**40})
        ),
        "saying": a_run("saying", 8, output=freeze({"says": TEXT})),
    }
    for run in runs.values():
        await owner.commit(new_run=run)
    for index, state in enumerate((None, *get_args(RunState))):
        if state:
            new = {
                "usage": Usage(calls=index),
                "stop_reason": state,
                "code": "budget",
                "successor": "other run",
                "resumes": index,
                "calls": NESTED[TEXT][0],
            }
            changes = new if index % 2 else dict.fromkeys(new) | {"resumes": 0, "calls": FrozenDict()}
            changes |= {"state": state, "first_seq": 77, "started_at": 2.5, "ended_at": None, "why": f"{state} {TEXT}"}
            runs["plain"] = replace(runs["plain"], **changes)
            await owner.commit(runs=[runs["plain"]])
        for run in runs.values():
            equal(await store.run(run.run_id), run, "the run by its id")
        equal(await store.runs(SessionKey("s")), list(runs.values()), "the runs of the session")
        equal(await store.run_of_key(SessionKey("s"), "k'\"\\%"), runs["r'%\"\\ü"], "the run of the key")
    await owner.commit(runs=[replace(run, state="cancelled", why=run.run_id) for run in runs.values()])
    equal(
        [run.why for run in await store.runs(SessionKey("s"))], list(runs), "reasons of runs that were changed at once"
    )


@_law
async def check_every_event_comes_back(store: SessionStore) -> None:
    """Of all kinds that are stored and of unknown ones, with all fields but the blocks, which the session's log has."""
    compaction_fields: dict[str, Any] = {"summary": (2**40, 2**41), "usage": USAGE}
    parts: dict[str, dict[str, Any]] = {
        "model_call_ended": {"call": 0, "seconds": 0.1 + 0.2, "stop_reason": TEXT, "usage": USAGE},
        "tool_started": {"call_id": TEXT, "name": ""},
        "tool_ended": {"call_id": "", "name": TEXT, "is_error": True, "seconds": 1e-9, "tries": 7},
        "approval_requested": {"call_id": "c", "name": "n", "input": NESTED, "wants": "budget", "why": TEXT},
        "call_decided": {"call_id": "c", "verdict": "provided"},
        "run_resumed": {"why": TEXT},
        "memory_behind": {"memory": "", "why": TEXT},
        "memory_caught_up": {"memory": TEXT},
        "turn_not_saved": {"memory": TEXT, "why": ""},
        "prompt_joined": {"joined": "r'%\"\\ü"},
        "blocks_removed": {"removed": (("", 2**40, 2**41), ("7", 0, 1))},
        "message_marked": {"number": 2**31, "name": TEXT, "value": NESTED[TEXT][0], "by": TEXT},
        "member_changed": {"member": TEXT, "role": "reader", "by": TEXT},
        "custom": {"name": TEXT, "data": NESTED, "step": "s"},
        "planner_note": {"text": TEXT, "step": "s"},
        "step_started": {"step": "s", "name": TEXT, "parent": "p"},
        "step_ended": {"step": "s", "name": TEXT, "is_error": True, "seconds": 1e-9},
        "run_completed": {"stop_reason": TEXT, "usage": USAGE},
        "run_cancelled": {"why": TEXT, "discarded": True, "code": "merged", "successor": "r'%\"\\ü"},
        "run_started": {"prompt": (("", 2**40, 2**41),), "input": (("7", 0, 1), ("", 0, 2**40))},
        "input_replaced": {"input": (("", 0, 2**40),)},
        "run_failed": {"why": "", "code": TEXT},
        "run_interrupted": {"why": "'\"\\%"},
        "window_compacted": {"strategy": TEXT, "tokens_before": 2**40, "tokens_after": 0, **compaction_fields},
        "compaction_failed": {"strategy": "", "attempt": 1, "of": 2**40, "why": TEXT, "usage": USAGE},
    }
    every: dict[str, Any] = {"turn_index": 7, "turn_id": TEXT, "run_id": "r'%\"\\ü", "labels": {TEXT: TEXT, "": ""}}
    common: dict[str, Any] = {"session_id": "s", "at": 1763700000.123456}
    events: list[Event] = []
    for seq, (kind, cls) in enumerate(KINDS.items(), 1):
        if not cls.live:
            values = parts.get(kind, {}) | common | {"kind": kind}
            spans: dict[str, Any] = {"span": (2**40, 2**41)} if issubclass(cls, StoresBlocks) else {}
            events += [cls(seq=seq, key=f"{seq}ü%", **values, **every, **spans), cls(seq=seq + 100, **values)]
    common["stored_kind"] = "from_the_future"
    events += [UnknownEvent(seq=201, payload=NESTED, key="'", **every, **common), UnknownEvent(seq=202, **common)]
    events.sort(key=lambda event: event.seq)
    owner = await own(store)
    blocks = {"blocks": (Text(text=TEXT),)}
    full = [event.model_copy(update=blocks) if "blocks" in type(event).model_fields else event for event in events]
    await owner.commit(events=full)
    equal(await store.events(SessionKey("s")), events, "the events")
    for event in events:
        if event.key:
            equal(await store.event_of_key(SessionKey("s"), event.key), event, "the event by its key")


@_law
async def check_events_are_forgotten(store: SessionStore) -> None:
    """Up to and including a number, in this session only. Events with a key stay and can be read by it."""
    owner, another = await own(store), await own(store, "another")
    events_of_another = [an_event(seq, session_id="another") for seq in (1, 2, 3)]
    await another.commit(events=events_of_another)
    events = {seq: an_event(seq, key) for seq, key in {1: "e1", 2: None, 3: None, 5: "", 6: None, 2**40: None}.items()}
    await owner.commit(events=list(events.values()))
    for upto, remaining in [
        (0, [*events]),
        (1, [*events]),
        (2, [1, 3, 5, 6, 2**40]),
        (4, [1, 5, 6, 2**40]),
        (6, [1, 5, 2**40]),
    ]:
        await owner.commit(forget_events=upto)
        equal(await store.events(SessionKey("s")), [events[seq] for seq in remaining], f"what is left up to {upto}")
        equal(
            await store.events(SessionKey("s"), after=1, limit=2),
            [events[seq] for seq in remaining[1:3]],
            "a page of it",
        )
    for seq, key in ((1, "e1"), (5, "")):
        equal(await store.event_of_key(SessionKey("s"), key), events[seq], "a forgotten event by its key")
    new_events = [an_event(2), an_event(3, "e3"), an_event(2**40)]
    await owner.commit(forget_events=2**41, events=new_events)
    equal(
        await store.events(SessionKey("s")),
        [events[1], *new_events[:2], events[5], new_events[2]],
        "the events of the commit that forgets",
    )
    async with unchanged(store, "s"):
        duplicate = owner.prepare(forget_events=2**41, events=[an_event(7, "e1")])
        await refuses(DuplicateKeyError, store.commit(SessionKey("s"), 1, duplicate), "the key of a forgotten event")
    equal(await store.events(SessionKey("another")), events_of_another, "the other session's events")


@_law
async def check_events_of_turns_are_forgotten(store: SessionStore) -> None:
    """Those of turns up to an index, in this session only. Events with a key, and those of no turn, stay."""
    owner, another = await own(store), await own(store, "another")
    events_of_another = [an_event(1, session_id="another", turn_index=0)]
    await another.commit(events=events_of_another)
    about = {1: (None, None), 2: (None, 0), 3: ("e3", 0), 4: (None, 1), 5: (None, 12)}
    events = {seq: an_event(seq, key, turn_index=index) for seq, (key, index) in about.items()}
    await owner.commit(events=list(events.values()))
    for upto, remaining in [(-1, [*events]), (0, [1, 3, 4, 5]), (2, [1, 3, 5]), (2**40, [1, 3])]:
        await owner.commit(forget_turns=upto)
        equal(await store.events(SessionKey("s")), [events[seq] for seq in remaining], f"what is left up to {upto}")
    new = an_event(6, turn_index=0)
    await owner.commit(forget_turns=5, events=[new])
    equal(await store.events(SessionKey("s")), [events[1], events[3], new], "the events of the commit that forgets")
    equal(await store.events(SessionKey("another")), events_of_another, "the other session's events")


@_law
async def check_blocks_are_cleared_unless_a_fork_uses_them(store: SessionStore) -> None:
    """Their texts are replaced at their places, in this session's log only."""
    owner, another = await own(store), await own(store, "another")
    span, other_span = await owner.commit("a", "b", "c", "d"), await another.commit("A", "B")
    turn = a_turn(0, prompt=(Span(span.log, 1, 2),), input=(Span(span.log, 2, 3),))
    await store.create(a_session("fork", parent="s#0"), turn)
    await owner.commit("e", cleared_blocks=[(position, f"cleared {position}") for position in range(4)])
    log_span = Span(span.log, 0, 5)
    equal(await store.blocks([log_span]), ["cleared 0", "b", "c", "cleared 3", "e"], "the log after it")
    equal(await store.blocks([other_span]), ["A", "B"], "the other session's log")
    async with unchanged(store, "s"):
        stale = owner.prepare(cleared_blocks=[(4, "cleared 4")])
        await refuses(SessionFencedError, store.commit(SessionKey("s"), 7, stale), "a commit of another epoch")
    await store.delete(SessionKey("fork"))
    await owner.commit(cleared_blocks=[(1, "cleared 1"), (99, "nowhere")])
    equal(await held(store, Span(span.log, 0, 3)), ["cleared 0", "cleared 1", "c"], "after the fork is deleted")
    equal(await held(store, Span(span.log, 99, 100)), ["missing"], "a position that was never written")


@_law
async def check_blocks_are_read_by_spans(store: SessionStore) -> None:
    """Blocks come in the order of the spans, from several logs, and repeatedly if spans overlap."""
    owner, another = await own(store), await own(store, "another")
    await owner.commit("a0", "a1")
    await another.commit("b0", "b1", "b2")
    await owner.commit()
    await owner.commit(encode(User(text=TEXT)), "x" * 1_000_000, "")
    a, b = owner.session.log, another.session.log
    spans = [Span(b, 1, 3), Span(a, 0, 2), Span(a, 1, 1), Span(b, 0, 1), Span(a, 2, 5), Span(b, 2, 3)]
    expected = ["b1", "b2", "a0", "a1", "b0", encode(User(text=TEXT)), "x" * 1_000_000, "", "b2"]
    equal(await read_blocks(store, tuple(spans)), expected, "the blocks")
    equal(await store.blocks([]), [], "the blocks of no spans")
    for missing in (Span(b, 3, 4), Span(b, 2, 4), Span(a, 5, 9), Span("no such log", 0, 1), Span("-1", 0, 1)):
        error = await refuses(CorruptRecordError, store.blocks([Span(a, 0, 1), missing]), f"blocks of {missing}")
        equal(missing.log in error.key, True, f"whether {error.key!r} names the log")


@_law
async def check_lists_of_callers_are_not_shared(store: SessionStore) -> None:
    """Changing a list that was passed or returned changes nothing. Records are immutable; acceptance 12 and 44."""
    deep = freeze({"deep": {"list": [{}]}})
    owner = await own(store, metadata=deep)
    blocks, turns, dropped = ["a"], [a_turn(0, metadata=deep)], [5]
    run = a_run("r", 0, labels=freeze({"a": "b"}))
    events = [UnknownEvent(stored_kind="x", session_id="s", seq=1, at=1.5, payload=deep)]
    commit = owner.prepare(turns=turns, new_run=run, events=events, dropped_turns=dropped)
    await store.commit(SessionKey("s"), 1, replace(commit, session=replace(commit.session, log_size=1), blocks=blocks))
    before = await state_of(store, "s")
    returned: list[list[Any]] = [
        await store.turns(SessionKey("s")),
        await store.runs(SessionKey("s")),
        await store.events(SessionKey("s")),
    ]
    session, turn, stored_run, event = await store.get(SessionKey("s")), *(part[0] for part in returned)
    passed: list[list[Any]] = [blocks, turns, dropped, events]
    for mutable in (*passed, *returned, await store.blocks([Span(session.log, 0, 1)])):
        mutable.clear()
    for record, name in ((session, "user_id"), (turn, "status"), (stored_run, "state"), (event, "at")):
        _refuses_change(setattr, record, name, "x")
    for mapping in (session.metadata, turn.metadata, event.payload):
        for level in (mapping, mapping["deep"], mapping["deep"]["list"][0]):
            _refuses_change(operator.setitem, level, "deep", "x")
        _refuses_change(operator.setitem, mapping["deep"]["list"], 0, "x")
    _refuses_change(operator.setitem, stored_run.labels, "a", "x")
    equal(await state_of(store, "s"), before, "the session")


def _refuses_change(change: Callable[..., object], record: object, *values: object) -> None:
    try:
        change(record, *values)
    except (TypeError, AttributeError, ValueError):
        return
    raise AssertionError(f"{record!r} can be changed")
