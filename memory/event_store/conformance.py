"""The laws of `HistoryStore`, which hold for every event store. See `stores/conformance` for how to check them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from turnwise.errors import HistoryConflictError, InvalidInputError, StoreClosedError
from turnwise.memory.conversation.blocks import Image, Text, ToolResult
from turnwise.memory.conversation.events import (
    AnyEvent,
    Event,
    PromptAppended,
    RunCompleted,
    RunFailed,
    TextDelta,
    ToolEnded,
    UnknownEvent,
)
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.event_store.base import HistoryStore, ManyHistories
from turnwise.memory.stores.conformance.fixtures import IDS, NESTED, TEXT, USAGE
from turnwise.memory.stores.conformance.laws import Law, check_laws, collector, equal, refuses
from turnwise.memory.values.ids import MAX_INDEXED_BYTES


async def check_event_store(make_history: Callable[[str], HistoryStore]) -> None:
    """Check all laws, in order.

    Args:
        make_history: returns an event store for a name. Stores of one name share their data, which is empty at first.

    Raises:
        AssertionError: the event store breaks a law; names the law.
    """
    await check_laws(LAWS, make_history)


LAWS: list[Law] = []
"""All laws of this file, in order."""

_law = collector(LAWS)


def _event(
    seq: int,
    key: str | None = None,
    run_id: str | None = None,
    session_id: str = "s",
    time: float = 1.5,
    **more: Any,
) -> AnyEvent:
    return PromptAppended(session_id=session_id, seq=seq, at=time, key=key, run_id=run_id, **more)


async def _all(history: HistoryStore, session_id: str = "s", **filters: Any) -> list[AnyEvent]:
    return await history.events(SessionKey(session_id), limit=100_000, **filters)


@asynccontextmanager
async def _unchanged(history: HistoryStore, *session_ids: str) -> AsyncIterator[None]:
    before = [await _all(history, session_id) for session_id in session_ids]
    yield
    for session_id, events in zip(session_ids, before, strict=True):
        equal(await _all(history, session_id), events, f"the history of {session_id!r} after a refused call")


@_law
async def check_an_event_comes_back_as_it_was_appended(history: HistoryStore) -> None:
    """In all fields, with all blocks. Also live events and events of unknown kinds."""
    about: dict[str, Any] = {"session_id": "s", "at": 1763700000.123456, "turn_index": 7, "run_id": "r'%\"\\ü"}
    about |= {"turn_id": TEXT, "labels": {TEXT: TEXT, "": ""}}
    events: list[AnyEvent] = [
        PromptAppended(session_id="s", seq=1, at=0.1 + 0.2, key=""),
        RunCompleted(seq=2, span=(2**40, 2**41), stop_reason=TEXT, usage=USAGE, key="ü'%\"\\", **about),
        ToolEnded(seq=3, call_id="", name=TEXT, is_error=True, seconds=1e-9, tries=3, **about),
        RunFailed(seq=4, why=TEXT, code="budget", **about),
        TextDelta(seq=5, text=TEXT, **about),
        UnknownEvent(seq=6, stored_kind="from_the_future", payload=NESTED, **about),
        _event(2**53),
    ]
    chart = Image(data="aGk=", media_type="image/png")
    blocks = (Text(text=TEXT), ToolResult(call_id="c", text=TEXT, blocks=(Text(text=TEXT), chart)))
    appended = [event.model_copy(update={"blocks": blocks}) if event.seq in (1, 2, 3) else event for event in events]
    for _ in range(2):
        await history.append(SessionKey("s"), appended)
        equal(await _all(history), appended, "the events")


@_law
async def check_an_append_may_be_repeated(history: HistoryStore, other: HistoryStore) -> None:
    """Whole, in part, mixed with new events, twice in a call, or at once: each event is stored once; acceptance 29."""
    events = [_event(seq, f"e{seq}" if seq % 2 else None, f"r{seq % 3}") for seq in range(1, 21)]
    for round_number, (first, last, stored) in enumerate(
        [(0, 5, 5), (0, 5, 5), (2, 4, 5), (3, 8, 8), (7, 8, 8), (0, 10, 10)]
    ):
        await (history, other)[round_number % 2].append(SessionKey("s"), events[first:last])
        equal(await _all(history), events[:stored], f"after append {round_number}")
    await history.append(SessionKey("s"), [events[12], events[11], events[12], events[10], events[0]])
    equal(await _all(other), events[:13], "after an append with one event twice")
    await asyncio.gather(
        *((history, other)[index % 2].append(SessionKey("s"), events[index % 5 :]) for index in range(10))
    )
    equal(await _all(history), events, "after ten appends at once")
    many_events = [_event(seq, session_id="many") for seq in range(1, 2502)]
    await history.append(SessionKey("many"), many_events[1:-1])
    await history.append(SessionKey("many"), many_events)
    equal(await _all(history, "many"), many_events, "after a long append that was partly stored")
    await history.append(SessionKey("s"), [])
    equal(await _all(history), events, "after an append of nothing")


@_law
async def check_a_different_event_with_a_number_or_key_is_refused(history: HistoryStore) -> None:
    """If an event of the store or of the call has the number or the key of another event, nothing is written."""
    events = [_event(1, "e1"), _event(2), _event(3, "e3", "r"), _event(3000)]
    await history.append(SessionKey("s"), events)
    await history.append(SessionKey("other"), [_event(9, "e9", session_id="other")])
    end = RunFailed(session_id="s", seq=3, at=1.5, key="e3", run_id="r", why="")
    conflicts: list[tuple[int, str | None, Sequence[Event]]] = [
        (2, None, [_event(2, time=1.25)]),
        (2, None, [_event(4), _event(2, "e2"), _event(5)]),
        (2, None, [_event(2, None, "r"), events[0]]),
        (1, None, [_event(1)]),
        (3, None, [end]),
        (4, "e1", [_event(4, "e1")]),
        (4, "e3", [events[2], _event(4, "e3", "r"), _event(6)]),
        (5, None, [_event(5), _event(5, time=1.25)]),
        (6, "e5", [_event(5, "e5"), _event(6, "e5")]),
        (3000, None, [*(_event(seq) for seq in range(10, 3000)), _event(3000, time=1.25)]),
    ]
    for seq, key, appended in conflicts:
        async with _unchanged(history, "s", "other"):
            error = await refuses(
                HistoryConflictError, history.append(SessionKey("s"), appended), f"{seq}, {key!r} a second time"
            )
            equal((error.session_id, error.seq, error.key), ("s", seq, key), "what the error names")
    await history.append(SessionKey("s"), [_event(9, "e9"), _event(4, "E1"), _event(5, " e1"), _event(6, "")])
    equal([event.key for event in await _all(history)], ["e1", None, "e3", "E1", " e1", "", "e9", None], "keys")
    async with _unchanged(history, "s", "other"):
        await refuses(
            InvalidInputError,
            history.append(SessionKey("s"), [_event(20), _event(21, session_id="other")]),
            "a mixture",
        )


@_law
async def check_one_of_two_conflicting_appends_at_once_is_refused(history: HistoryStore, other: HistoryStore) -> None:
    """The other one is stored whole."""
    for round_number in range(10):
        first, second = [_event(1, "k"), _event(2)], [_event(2, time=1.25), _event(3)]
        appends = [history.append(SessionKey("s"), first), other.append(SessionKey("s"), second)]
        outcomes = await asyncio.gather(*appends, return_exceptions=True)
        refused = [isinstance(outcome, HistoryConflictError) for outcome in outcomes]
        equal(sorted(map(repr, refused)), ["False", "True"], f"who was refused of {outcomes!r}")
        equal(await _all(history), second if refused[0] else first, f"the events of round {round_number}")
        await history.delete(SessionKey("s"))


@_law
async def check_events_come_in_pages(history: HistoryStore) -> None:
    """By sequence number, of all runs or of one, above `after`, at most `limit`, by default 1000; acceptance 30."""
    numbers = (1, 2, 9, 10, 11, 12, 10_000_001)
    events = [_event(seq, run_id=("r1", None, "r10")[index % 3]) for index, seq in enumerate(numbers)]
    for index in (3, 6, 0, 4, 1, 2, 5):
        await history.append(SessionKey("s"), [events[index]])
    await history.append(SessionKey("t"), [_event(5, run_id="r1", session_id="t")])
    for run_id in (None, "r1", "r10", "r", "r%", ""):
        events_of_run = [event for event in events if run_id in (None, event.run_id)]
        for after in sorted({0, *numbers, *(seq + 1 for seq in numbers)}):
            behind = [event for event in events_of_run if event.seq > after]
            for limit in range(1, len(events) + 2):
                page = await history.events(SessionKey("s"), after=after, limit=limit, run_id=run_id)
                equal(page, behind[:limit], f"up to {limit} of run {run_id!r} above {after}")
    equal(await history.last_seq(SessionKey("s")), numbers[-1], "the last number")
    equal(await history.last_seq(SessionKey("nobody's")), 0, "the last number of none")
    for limit in (0, -1):
        await refuses(InvalidInputError, history.events(SessionKey("s"), limit=limit), f"a limit of {limit}")
    await history.append(SessionKey("s"), [_event(20_000_000 + seq) for seq in range(1000)])
    equal(len(await history.events(SessionKey("s"))), 1000, "events of a page by default")


@_law
async def check_pages_have_each_event_once(history: HistoryStore) -> None:
    """Pages have each event once, whether there are fewer events than `limit`, as many, or more."""
    limit = 10
    for count in (0, 1, limit - 1, limit, limit + 1, 2 * limit, 5 * limit + 3):
        name = f"s{count}"
        events = [_event(3 * seq, run_id=f"r{seq % 2}", session_id=name) for seq in range(1, count + 1)]
        await history.append(SessionKey(name), events)
        read_events: list[Event] = []
        pages = 0
        while page := await history.events(
            SessionKey(name), after=read_events[-1].seq if read_events else 0, limit=limit
        ):
            read_events += page
            pages += 1
        equal((read_events, pages), (events, -(-count // limit)), f"events and pages of {count}")


@_law
async def check_sessions_do_not_share_events(history: HistoryStore) -> None:
    """Every call uses the events of exactly one session id. A session without events has an empty history."""
    for index, name in enumerate(IDS):
        await history.append(SessionKey(name), [_event(1, "k", "r", name, float(index)), _event(2, None, name, name)])
    for index, name in enumerate(IDS):
        stored = await _all(history, name)
        equal(
            [(event.session_id, event.at) for event in stored],
            [(name, float(index)), (name, 1.5)],
            "the events of the id",
        )
        equal(await _all(history, name, run_id=name), stored[1:], "the events of a run of this id")
    for missing in ("user", "", "user-100"):
        equal(await _all(history, missing), [], f"the history of {missing!r}")
        await history.delete(SessionKey(missing))
    remaining = list(IDS)
    while remaining:
        await history.delete(SessionKey(remaining.pop(0)))
        equal([name for name in IDS if await _all(history, name)], remaining, "the sessions that are left")
    later_events = [_event(1, "k", session_id=IDS[0], time=9.0)]
    await history.append(SessionKey(IDS[0]), later_events)
    equal(await _all(history, IDS[0]), later_events, "the events after the deletion")


@_law
async def check_users_do_not_share_events(history: HistoryStore) -> None:
    """Sessions of one id and of several users have nothing in common."""
    keys = [SessionKey("s", user) for user in IDS]
    events = {
        key: [_event(1, "k", "r", user_id=key.user_id), _event(2, turn_index=0, user_id=key.user_id)] for key in keys
    }
    for index, key in enumerate(keys):
        equal(await history.last_seq(key), 0, "the last event of a session that has none")
        await history.append(key, events[key][: 1 + index % 2])
        await history.append(key, events[key])
    for key in keys:
        equal(await history.events(key), events[key], f"events of {key}")
        equal(await history.events(key, run_id="r"), events[key][:1], f"events of a run of {key}")
        equal(await history.last_seq(key), 2, f"the last event of {key}")
    await history.delete(keys[0])
    await history.delete(keys[1], turns_up_to=0)
    equal(
        [await history.last_seq(key) for key in keys], [0, 1, *[2] * (len(keys) - 2)], "what deletions leave to others"
    )
    another = SessionKey("another", keys[2].user_id)
    await history.append(another, [_event(1, session_id="another", user_id=another.user_id)])
    for _ in range(2):
        await history.delete_user(another.user_id)
        left = [await history.last_seq(key) for key in (*keys, another)]
        equal(left, [0, 1, 0, *[2] * (len(keys) - 3), 0], "what the deletion of a user leaves to others")


@_law
async def check_events_of_many_sessions_are_deleted_together(history: HistoryStore) -> None:
    """Those of other sessions and users stay, and sessions without events are no error."""
    if not isinstance(history, ManyHistories):
        return
    keys = [SessionKey(f"s{number}", user) for number in range(450) for user in ("u", "v")]
    for key in keys[:20]:
        await history.append(key, [_event(1, session_id=key.session_id, user_id=key.user_id)])
    of_u = [key for key in keys if key.user_id == "u"]
    await history.delete_sessions(of_u)
    left = [await history.last_seq(key) for key in keys[:20]]
    equal(left, [0, 1] * 10, "what the deletion of many leaves to others")
    await history.delete_sessions([*of_u, keys[1]])
    await history.delete_sessions([])
    equal([await history.last_seq(key) for key in keys[:4]], [0, 0, 0, 1], "what a second deletion leaves")


@_law
async def check_events_of_turns_are_deleted(history: HistoryStore) -> None:
    """Those of turns up to an index, in this session only; events may take the place of others with their numbers."""
    about = {1: (None, None), 2: (None, 0), 3: ("k", 0), 4: (None, 1), 5: (None, 12), 6: ("l", 13)}
    events = [_event(seq, key, turn_index=index) for seq, (key, index) in about.items()]
    events_of_another = [_event(1, session_id="another", turn_index=0)]
    await history.append(SessionKey("s"), events)
    await history.append(SessionKey("another"), events_of_another)
    for upto, remaining in [(-1, (1, 2, 3, 4, 5, 6)), (0, (1, 4, 5, 6)), (2, (1, 5, 6)), (12, (1, 6)), (12, (1, 6))]:
        await history.delete(SessionKey("s"), turns_up_to=upto)
        equal(await _all(history), [event for event in events if event.seq in remaining], f"what is left up to {upto}")
    others_of = [_event(1, time=7.0), _event(6, "l", turn_index=13, time=7.0)]
    await history.delete(SessionKey("s"), turns_up_to=12, instead=others_of)
    equal(await _all(history), others_of, "the events that took the place of others")
    await history.delete(SessionKey("s"), turns_up_to=99, instead=others_of[:1])
    equal(await _all(history), others_of[:1], "the events that are left")
    await history.append(SessionKey("s"), [_event(7, "k", turn_index=14), _event(8, turn_index=15)])
    async with _unchanged(history, "s"):
        with_its_key = history.delete(SessionKey("s"), turns_up_to=12, instead=[_event(8, "k", turn_index=15)])
        await refuses(HistoryConflictError, with_its_key, "an event with the key of one that stays")
    await history.delete(SessionKey("s"))
    await history.append(SessionKey("s"), events)
    equal(await _all(history), events, "the events when they are appended again")
    await history.delete(SessionKey("nobody"), turns_up_to=3)
    equal(await _all(history, "another"), events_of_another, "the other session's events")


@_law
async def check_a_cancelled_append_is_stored_whole_or_not_at_all(history: HistoryStore) -> None:
    """At whatever time it is cancelled. Repeating it stores it whole."""
    for number, wait_s in enumerate((None, 0, 0.0005, 0.002)):
        name = f"s{number}"
        events = [_event(seq, f"e{seq}", session_id=name) for seq in range(1, 201)]
        task = asyncio.ensure_future(history.append(SessionKey(name), events))
        if wait_s is not None:
            await asyncio.sleep(wait_s)
        task.cancel()
        await asyncio.wait([task])
        equal(
            len(await _all(history, name)) in (0, 200), True, "whether a cancelled append is stored whole or not at all"
        )
        await history.append(SessionKey(name), events)
        equal(await _all(history, name), events, "the events when it was repeated")


@_law
async def check_names_that_some_store_cannot_keep_are_refused(history: HistoryStore) -> None:
    """Null characters, lone surrogates, and more bytes than a database indexes. Nothing of the append is stored."""
    await history.append(SessionKey("s"), [_event(1)])
    for name in ("a\0b", "a\ud800b", "é" * MAX_INDEXED_BYTES):
        async with _unchanged(history, "s"):
            for event in (_event(3, name), _event(3, run_id=name)):
                append = history.append(SessionKey("s"), [_event(2), event])
                await refuses(InvalidInputError, append, f"an event with {name[:9]!r}")
            appending = history.append(SessionKey(name), [_event(1, session_id=name)])
            await refuses(InvalidInputError, appending, f"an event of session {name[:9]!r}")


@_law
async def check_lists_of_callers_are_not_shared(history: HistoryStore) -> None:
    """Changing a list that was passed to the store, or returned by it, changes nothing stored."""
    events = [_event(1), _event(2)]
    await history.append(SessionKey("s"), events)
    before = list(events)
    events.clear()
    (await _all(history)).clear()
    equal(await _all(history), before, "the events")


@_law
async def check_a_closed_history_raises_store_closed_error(history: HistoryStore) -> None:
    """Closing twice is fine. Every other call after it raises StoreClosedError."""
    await history.append(SessionKey("s"), [_event(1)])
    await history.close()
    await history.close()
    calls = {
        "append": history.append(SessionKey("s"), [_event(2)]),
        "append of nothing": history.append(SessionKey("s"), []),
    }
    if isinstance(history, ManyHistories):
        calls["delete_sessions"] = history.delete_sessions([SessionKey("s")])
    for verb, call in {
        **calls,
        "events": history.events(SessionKey("s")),
        "last_seq": history.last_seq(SessionKey("s")),
        "delete": history.delete(SessionKey("s")),
        "delete_user": history.delete_user("u"),
    }.items():
        await refuses(StoreClosedError, call, f"{verb} of a closed history")
