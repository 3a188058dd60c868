"""`Reader`: answers the read-only verbs of a session, from its core or from its store."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Sequence
from typing import Any, cast

from turnwise.actors.cluster.wire import PackedOutcome, PackedTurn, SessionInfo
from turnwise.actors.hosting.stored_session import StoredSession
from turnwise.actors.session.reads import SessionReads
from turnwise.errors import SessionNotFoundError
from turnwise.memory.conversation.events import Event
from turnwise.memory.conversation.spans import Span, Spans, union
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.stores.base import SessionStore

READS = frozenset(("events", "expand", "info", "latest", "pending", "run", "runs", "turn", "turns", "wait"))
"""The names of the verbs."""

_AS_READ = frozenset(("expand", "pending", "run", "runs"))
"""The verbs whose answers are those of `SessionReads`, unchanged."""


class Reader:
    """Answers reads from a session in memory, or from its store."""

    __slots__ = ()

    @property
    @abstractmethod
    def _source(self) -> SessionReads | StoredSession:
        """Answers reads that may wait for a run or for events."""

    @property
    def _reads(self) -> SessionReads:
        """Answers reads that do not wait."""
        source = self._source
        return source.reads if isinstance(source, StoredSession) else source

    @property
    @abstractmethod
    def _process(self) -> tuple[int | None, str | None]:
        """The process id and the node id of the session's process."""

    def answer(self, verb: str, args: Sequence[Any]) -> Awaitable[Any]:
        """Carry out a verb and return its answer, or raise its error."""
        if verb in _AS_READ:
            return cast(Awaitable[Any], getattr(self._reads, verb)(*args))
        return cast(Awaitable[Any], getattr(self, f"do_{verb}")(*args))

    async def do_wait(self, run_id: str, timeout_s: float | None, held: Spans) -> PackedOutcome | None:
        outcome = await self._source.wait(run_id, timeout_s)
        return PackedOutcome.pack(outcome, held) if outcome else None

    async def do_latest(self, held: Spans) -> PackedTurn | None:
        turn = await self._reads.latest()
        return PackedTurn.pack(turn, held) if turn else None

    async def do_turn(self, index: int, held: Spans) -> PackedTurn:
        return PackedTurn.pack(await self._reads.turn(index), held)

    async def do_turns(self, after: int, limit: int, held: Spans) -> list[PackedTurn]:
        packed = []
        for turn in await self._reads.turns(after, limit):
            packed.append(PackedTurn.pack(turn, held))
            held = _with(held, turn)
        return packed

    async def do_events(
        self, after: int, limit: int, run_id: str | None, timeout_s: float
    ) -> tuple[list[Event], int, bool]:
        return await self._source.events(after, limit, run_id=run_id, timeout_s=timeout_s)

    async def do_info(self) -> SessionInfo:
        reads = self._reads
        session = await reads.session()
        pid, node_id = self._process
        return SessionInfo(
            session=session,
            active_run_id=reads.active_run_id,
            queued_run_ids=tuple(reads.queued_run_ids),
            pid=pid,
            node_id=node_id,
        )


class StoreReader(Reader):
    """Answers from the store, for a session that has no process on this Ray."""

    __slots__ = ("_stored",)

    def __init__(self, stored: StoredSession) -> None:
        self._stored = stored

    @property
    def _source(self) -> StoredSession:
        return self._stored

    @property
    def _process(self) -> tuple[None, None]:
        return None, None


async def check_stored(store: SessionStore, session_id: str, log: str) -> None:
    """Raise SessionNotFoundError if the stored session with this id has another log."""
    if (await store.get(session_id)).log != log:
        raise SessionNotFoundError(session_id)


def _with(held: Spans, turn: Turn) -> Spans:
    """Return the spans that a caller has cached after it received a turn."""
    kept = held if turn.cache.is_of(held) else ()
    return union(kept, (Span(turn.cache.source, 0, 1),), turn.record.prompt, turn.record.spans)
