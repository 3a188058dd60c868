"""`Reader`: answers the read-only verbs of a session, from its core or from its store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from turnwise.actors.cluster.wire import PackedOutcome, PackedTurn, SessionInfo
from turnwise.actors.hosting.stored_session import StoredSession
from turnwise.actors.session.reads import SessionReads
from turnwise.errors import SessionNotFoundError
from turnwise.memory.conversation.events import Event
from turnwise.memory.conversation.runs import RunRecord, Until
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.spans import Span, Spans, union
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.stores.base import SessionStore

_TURNS = 100
"""How many turns are packed before others get the event loop."""

_UNPACKED = frozenset(("expand", "messages", "pending", "run"))
"""The read-only verbs whose answers are those of `SessionReads`, unchanged."""


class Reader:
    """Answers reads of one session; each verb has a method of the same name, here or in `SessionReads`.

    Args:
        source: returns the object that answers at this moment: a core's reads, or those of the store.
        pid: the process that hosts the session, and `node_id` its node; None if the session has no process.
    """

    __slots__ = ("_node_id", "_pid", "_source")

    def __init__(
        self,
        source: Callable[[], SessionReads | StoredSession],
        pid: int | None = None,
        node_id: str | None = None,
    ) -> None:
        self._source = source
        self._pid = pid
        self._node_id = node_id

    def answer(self, verb: str, args: Sequence[Any]) -> Awaitable[Any]:
        """Carry out a verb and return its answer, or raise its error."""
        answers = self._reads if verb in _UNPACKED else self
        return cast(Awaitable[Any], getattr(answers, verb)(*args))

    @property
    def _reads(self) -> SessionReads:
        """Answers reads that wait neither for a run nor for events."""
        source = self._source()
        return source.reads if isinstance(source, StoredSession) else source

    async def wait(self, run_id: str, timeout_s: float | None, held: Spans, until: Until = "ended") -> PackedOutcome:
        return await PackedOutcome.pack(await self._source().wait(run_id, timeout_s, until), held)

    async def latest(self, held: Spans) -> PackedTurn | None:
        turn = await self._reads.latest()
        return await PackedTurn.pack(turn, held) if turn else None

    async def turn(self, index: int | str, held: Spans) -> PackedTurn:
        return await PackedTurn.pack(await self._reads.turn(index), held)

    async def turns(self, after: int, limit: int, held: Spans) -> tuple[list[PackedTurn], int | None]:
        reads, packed = self._reads, list[PackedTurn]()
        for turn in await reads.turns(after, limit):
            packed.append(await PackedTurn.pack(turn, held))
            held = _with(held, turn)
            if len(packed) % _TURNS == 0:
                await asyncio.sleep(0)
        return packed, reads.next_after(packed[-1].record.index) if packed else None

    async def runs(self, after: int, limit: int) -> tuple[list[RunRecord], int | None]:
        reads = self._reads
        runs = await reads.runs(after, limit)
        return runs, reads.next_after(runs[-1].turn_index) if runs else None

    async def events(
        self, after: int, limit: int, run_id: str | None, timeout_s: float
    ) -> tuple[list[Event], int, bool]:
        source = self._source()
        found = await source.events(after, limit, run_id=run_id, timeout_s=timeout_s)
        activated = self._source()
        if isinstance(source, StoredSession) and not isinstance(activated, StoredSession):
            # A run may have started meanwhile, whose deltas the store does not have.
            found = await activated.events(after, limit, run_id=run_id, timeout_s=timeout_s)
        return found

    async def info(self) -> SessionInfo:
        reads = self._reads
        session = await reads.session()
        return SessionInfo(
            session=session,
            active_run_id=reads.active_run_id,
            queued_run_ids=tuple(reads.queued_run_ids),
            pid=self._pid,
            node_id=self._node_id,
        )


async def check_stored(store: SessionStore, key: SessionKey, log: str) -> None:
    """Raise SessionNotFoundError if the stored session of this key has another log."""
    if (await store.get(key)).log != log:
        raise SessionNotFoundError(key.session_id)


def _with(held: Spans, turn: Turn) -> Spans:
    """Return the spans that a caller has cached after it received a turn."""
    kept = held if turn.cache.is_of(held) else ()
    return union(kept, (Span(turn.cache.source, 0, 1),), turn.record.prompt, turn.record.spans)
