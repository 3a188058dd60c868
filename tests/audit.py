"""What must hold in a store, whatever happened to its sessions."""

from __future__ import annotations

from typing import Any

from turnwise.memory.block_cache import BlockCache
from turnwise.memory.blocks import Summary, System, User
from turnwise.memory.chat import encode
from turnwise.memory.events import Event, RunEnded, RunStarted
from turnwise.memory.runs import RunRecord
from turnwise.memory.spans import union
from turnwise.memory.store import SessionStore
from turnwise.memory.turns import Turn, TurnRecord
from wire_rules import check_chat


async def turns_of(store: SessionStore, session_id: str) -> list[Turn]:
    """Return all turns of a session, read from the store alone."""
    records: list[TurnRecord] = []
    while page := await store.turns(session_id, after=records[-1].index if records else -1):
        records += page
    spans = union(*(part for turn in records for part in (turn.prompt, turn.spans)))
    cache = BlockCache()
    cache.add_spans(spans, await store.blocks(spans))
    return [Turn(session_id, record, cache) for record in records]


async def events_of(store: SessionStore, session_id: str, history: Any = None) -> list[Event]:
    """Return all stored events of a session, those in its history among them."""
    found: dict[int, Event] = {}
    for source in (store, history) if history else (store,):
        after = 0
        while page := await source.events(session_id, after=after):
            for event in page:
                assert found.setdefault(event.seq, event) == event, f"two events have the number {event.seq}"
            after = page[-1].seq
    return [found[seq] for seq in sorted(found)]


def _goes_on(turn: Turn, before: tuple[object, ...]) -> bool:
    own = len(turn.new_blocks)
    held = [block for block in turn.blocks[: len(turn.blocks) - own] if not isinstance(block, System | Summary)]
    older = [block for block in before if not isinstance(block, System | Summary)]
    return not held or older[-len(held) :] == held


async def check_session(
    store: SessionStore, session_id: str, *, settled: bool = True, history: Any = None, compacts: bool = False
) -> list[Turn]:
    """Check a session and return its turns.

    Numbers only grow. One run at a time. Every run has one terminal event, its last. Every turn continues the one
    before it, and could be sent to a provider. With `settled`, nothing is queued or running any more. A session that
    `compacts` its window goes on with the newest of what was there, in order.
    """
    events = await events_of(store, session_id, history)
    numbers = [event.seq for event in events]
    assert numbers == sorted(set(numbers)), "event numbers only grow"
    active = None
    ended: dict[str, int] = {}
    for event in events:
        assert event.run_id is None or event.run_id not in ended, f"{event} comes after its run's end"
        if isinstance(event, RunStarted):
            assert active is None, f"{event} while {active} is active"
            active = event.run_id
        if isinstance(event, RunEnded) and event.run_id:
            ended[event.run_id] = event.seq
            active = None if active == event.run_id else active
    runs: list[RunRecord] = []
    while runs_page := await store.runs(session_id, after=runs[-1].turn_index if runs else -1):
        runs += runs_page
    for run in runs:
        assert run.is_open == (run.run_id not in ended), f"{run} and its events differ"
        assert not (settled and run.is_open), f"{run} has no outcome"
    turns = await turns_of(store, session_id)
    before: tuple[object, ...] = ()
    for turn in turns:
        if turn.status in ("pending", "queued"):
            continue
        if compacts:
            assert _goes_on(turn, before), f"{turn} does not continue the turn before it"
        else:
            assert turn.blocks[: len(before)] == before, f"{turn} does not continue the turn before it"
        check_chat(encode([*turn.blocks, User(text="next")]))
        before = turn.blocks
    return turns
