"""A session's way into its store and back: what is committed, what is held of it in memory, what is published."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from turnwise.actors.inference.engine import NewEvent
from turnwise.actors.session.event_forwarder import EventForwarder
from turnwise.actors.session.event_log import EventLog
from turnwise.errors import (
    CorruptRecordError,
    DuplicateKeyError,
    RunNotFoundError,
    SessionFencedError,
    SessionNotFoundError,
    SessionRevertedError,
    StoreError,
    TurnNotFoundError,
    TurnwiseError,
)
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.blocks import AnyBlock
from turnwise.memory.conversation.events import Appending, Event, SessionReverted
from turnwise.memory.conversation.ids import new_id
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import Span, Spans, union
from turnwise.memory.conversation.turns import Turn, TurnRecord
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.event_store.encrypted import of_user
from turnwise.memory.stores.base import Activation, Commit, SessionStore
from turnwise.memory.stores.encrypted.records import check_events, check_session

LIVE_NUMBERS = 10_000_000
"""How many live events may follow a commit before the next: a later activation numbers its events from above them."""


FORGET_EVERY = 256
"""How many numbers the history is to be ahead before the store lets go of their events: it looks through what stays."""

REVERTED = "turnwise.reverted"
"""The key of the first event that says so."""

HELD_BYTES = 1 << 20
"""How much of a session's blocks its process holds before it looks for those that nobody needs any more, in bytes."""

MISSED = 1000
"""More events than a commit whose outcome was unknown, and another owner in between, can have stored."""


class Journal:
    """The session's row, its block log and its events, as of the last commit under this activation's epoch.

    A commit is stored and then applied and published, or none of that. After a store error nobody knows whether it was
    stored: the journal is `stale` until the next activation has asked, and live events wait so long.
    """

    def __init__(
        self,
        session_id: str,
        store: SessionStore,
        clock: Callable[[], float] | None,
        history: HistoryStore | None = None,
    ) -> None:
        self.store = store
        self.feed = EventForwarder(session_id, store, history) if history else None
        self._forgotten = 0
        """The store has let go of the events up to this number, where the history has them."""
        self._clock = clock
        self._store_now: tuple[float, float] | None = None
        """What the store's clock said, and this process's monotonic one, when the session was last activated."""
        self.session = SessionRecord(session_id=session_id)
        self.log = EventLog(0)
        self.cache = BlockCache(new_id())
        self._held_bytes = HELD_BYTES
        """When to look for blocks that nobody needs any more."""
        self.caught_up: frozenset[int] = frozenset()
        """The numbers of the events that were stored unnoticed since the last commit: by one in doubt."""
        self.stale = True
        """Whether the session must be activated before the next change."""
        self.lost: Exception | None = None
        """Why this process owns the session no more."""
        self._is_reverted = False
        """Whether the store is known to have gone back behind what this process knows."""
        self._asked = 0
        """How many activations were asked for since `session` is what it is: each has raised the epoch, or not."""

    @property
    def session_id(self) -> str:
        return self.session.session_id

    def clock(self) -> float:
        """Return the time by the store's clock, in seconds since the epoch: as of the last activation and since.

        So what a session writes on one node never seems older than what it wrote on another, whose clock is ahead.
        """
        if self._clock:
            return self._clock()
        if self._store_now is None:
            return time.time()
        then, began = self._store_now
        return then + (time.monotonic() - began)

    # Whether this process has the session

    def mark_loaded(self) -> None:
        """What an activation has found is taken over."""
        self.stale = False

    def read_row(self, session: SessionRecord) -> None:
        """Take over a row as the store has it, without activating the session."""
        self.session = session

    def mark_stale(self) -> None:
        """Have the next change activate the session first: memory and store may differ."""
        self.stale = True

    def lose(self, why: Exception) -> None:
        """This process owns the session no more: each later change and read raises this."""
        self.lost = why

    # Writing

    async def activate(self) -> Activation:
        """Take the session over; hold the blocks of its head and of what is open; publish what was stored unnoticed.

        Live events wait on: the next commit, or `log.publish`, lets them go.

        Raises:
            SessionFencedError, SessionNotFoundError: this process had the session, and meanwhile another has it, or
                nobody; the journal is `lost`. A process that was cut off does not take it back.
            SessionRevertedError: the store has gone back behind what this process knows; the journal is `lost`.
        """
        left = await self.check_own() if self.session.epoch else None
        self._asked += 1
        try:
            found = await self.store.activate(self.session_id)
        except TurnwiseError:
            raise
        except Exception as error:
            raise _failed("activate", error) from error
        if left and not _follows(found.session, left):
            await self.revert()
        check_session(found.session)
        self._store_now = found.now, time.monotonic()
        if self.log.last_seq:
            missed = await self._stored_events(self.log.published, MISSED)
            missed = await self._with_blocks(missed, found.session.log)
            self.caught_up |= {event.seq for event in missed}
            self.log.catch_up(missed, found.session.seq)
        else:
            self.log = EventLog(found.session.seq)
        turns = [turn for turn in (found.head, *found.open_turns) if turn]
        try:
            await self.hold(union(*(part for turn in turns for part in (turn.spans, turn.base))))
        except CorruptRecordError:
            await self._check_unmoved(found.session)
            raise
        self.session, self._asked = found.session, 0
        if self.feed:
            self.feed.history = of_user(self.feed.history, found.session.user_id)
            self.feed.poke()
        return found

    async def check_own(self) -> SessionRecord:
        """Return the stored row, if the session stands where this process has left it.

        Raises:
            SessionFencedError, SessionNotFoundError, SessionRevertedError: it does not; the journal is `lost`.
            StoreError: nobody knows.
        """
        own = self.session
        try:
            found = await self.store.get(self.session_id)
            if found.log != own.log or found.epoch > own.epoch + self._asked:
                raise SessionFencedError(self.session_id, own.epoch)
            if self._is_reverted or not self._may_stand_at(found):
                self._is_reverted = True
                await self._go_back()
                raise SessionRevertedError(self.session_id)
        except (SessionFencedError, SessionNotFoundError, SessionRevertedError) as error:
            self.lose(error)
            self.log.abandon()
            raise
        return found

    async def _check_unmoved(self, found: SessionRecord) -> None:
        """Raise if the store has gone back since it gave this row, so that another core is to load what it has now.

        Raises:
            SessionFencedError, SessionNotFoundError: it has; the journal is `lost`.
        """
        try:
            now = await self.store.get(self.session_id)
            if (now.log, now.epoch, now.revision) != (found.log, found.epoch, found.revision):
                raise SessionFencedError(self.session_id, found.epoch)
        except (SessionFencedError, SessionNotFoundError) as error:
            self.lose(error)
            self.log.abandon()
            raise

    async def revert(self) -> None:
        """Have the session go on from what the store has, since some of what this process knows is not there.

        Raises:
            SessionFencedError, SessionNotFoundError, SessionRevertedError: always one of them; the journal is `lost`.
            StoreError: it is to be tried again.
        """
        self._is_reverted = True
        self.mark_stale()
        await self.check_own()

    def _may_stand_at(self, found: SessionRecord) -> bool:
        """Return whether the store may have got there by what this process has asked for, be it answered or not."""
        own = self.session
        if found.epoch == own.epoch:
            return found.revision in (own.revision, own.revision + 1)
        return found.epoch > own.epoch and found.revision > own.revision and found.log_size >= own.log_size

    async def _go_back(self) -> None:
        """Have the session go on from the earlier state that the store has, and say so in its events.

        Numbers of events and indexes of turns go on above those that were given out: none ever means two things.
        """
        self._asked += 1
        found = (await self.store.activate(self.session_id)).session
        if found.log != self.session.log:
            raise SessionFencedError(self.session_id, self.session.epoch)
        seq, at = max(found.seq, self.log.last_seq) + 1, self.clock()
        session = found.committed(
            seq=seq,
            next_index=max(found.next_index, self.session.next_index),
            updated_at=max(found.updated_at, at),
        )
        key = None if await self.has_reverted() else REVERTED
        said = SessionReverted(session_id=self.session_id, seq=seq, at=at, key=key)
        await self.store.commit(self.session_id, found.epoch, Commit(session=session, events=[said]))

    def let_go(self, spans: Spans) -> bool:
        """Hold only what is here of `spans`, if what is held has doubled since the last time; return whether it had.

        So what a session has said and shows no more leaves memory, at a constant cost for each block.
        """
        if self.cache.size_bytes < self._held_bytes:
            return False
        self.cache = self.cache.only(spans)
        self._held_bytes = max(HELD_BYTES, 2 * self.cache.size_bytes)
        return True

    async def has_reverted(self) -> bool:
        """Return whether the store has ever gone back behind what a process of the session knew."""
        return await self.store.event_of_key(self.session_id, REVERTED) is not None

    async def hold(self, spans: Spans) -> None:
        """Read what is missing of `spans` into memory."""
        if missing := self.cache.missing(spans):
            self.cache.add_spans(missing, await self.store.blocks(missing))

    def extend(self, count: int) -> tuple[Span, SessionRecord]:
        """Return where the next `count` blocks of the log go, and the session's row with them."""
        span = Span(self.session.log, self.session.log_size, self.session.log_size + count)
        return span, replace(self.session, log_size=span.stop)

    def number(self, events: Sequence[NewEvent]) -> list[Event]:
        """Return the events with the next numbers, which are theirs until the commit that comes next."""
        first, at = self.log.reserve(len(events)), self.clock()
        return [
            kind(session_id=self.session_id, seq=seq, at=at, **values)
            for seq, (kind, values) in enumerate(events, first)
        ]

    async def commit(self, commit: Commit, *, live: bool) -> None:
        """Store a commit, then apply its session row and publish its events.

        Args:
            live: whether a run is active after it, which may number live events before the next commit.

        Raises:
            SessionFencedError, SessionNotFoundError: another activation owns the session, or nobody; the journal is
                `lost`.
            SessionRevertedError: the store has gone back behind what this process knows; the journal is `lost`.
            DuplicateKeyError: nothing was stored.
            StoreError: it is stored or not; the journal is `stale`. Also where the store raised an error that is not
                turnwise's.
        """
        indices = [turn.index + 1 for turn in commit.turns]
        session = replace(
            commit.session,
            seq=self.log.last_seq + (LIVE_NUMBERS if live else 0),
            next_index=max([commit.session.next_index, *indices]),
            revision=commit.session.revision + 1,
            updated_at=max(commit.session.updated_at, self.clock()),
        )
        copied = self.feed.copied if self.feed else 0
        forget = copied if copied >= self._forgotten + FORGET_EVERY else 0
        try:
            whole = replace(commit, session=session, forget_events=forget)
            await self.store.commit(self.session_id, session.epoch, whole)
        except SessionFencedError:
            self.mark_stale()  # until it is known why
            await self.check_own()
            await self.revert()  # it was elsewhere a moment ago
            raise
        except DuplicateKeyError:
            self.log.publish()
            raise
        except BaseException as error:
            self.mark_stale()
            if isinstance(error, Exception) and not isinstance(error, TurnwiseError):
                raise _failed("commit", error) from error
            raise
        self.session = session
        self.caught_up = frozenset()
        self._forgotten = max(self._forgotten, forget)
        self.log.publish(commit.events)
        if self.feed and commit.events:
            self.feed.poke()

    async def delete(self) -> None:
        """Delete the session, its history first: so a delete that fails can be repeated.

        Raises:
            SessionFencedError: another activation owns the session; its history is left as it is.
        """
        if self.feed:
            await self.check_own()
            self.feed.stop()
            await self.feed.history.delete(self.session_id)
        await self.store.delete(self.session_id, epoch=self.session.epoch, log=self.session.log)

    # Reading

    def turn(self, record: TurnRecord) -> Turn:
        """Return a turn whose blocks are held."""
        return Turn(self.session_id, record, self.cache)

    async def read_turns(self, records: Sequence[TurnRecord]) -> list[Turn]:
        """Return turns whose blocks may not be held, and are not held for them."""
        spans = union(*(part for turn in records for part in (turn.prompt, turn.spans)))
        if not self.cache.missing(spans):
            return [self.turn(record) for record in records]
        cache = BlockCache(self.cache.source)
        cache.add_spans(spans, await self.store.blocks(spans))
        return [Turn(self.session_id, record, cache) for record in records]

    async def read(self, spans: Spans) -> tuple[AnyBlock, ...]:
        """Return blocks, in order; those that are not held are not held for this."""
        if not self.cache.missing(spans):
            return self.cache.read(spans)
        cache, wanted = BlockCache(), union(spans)
        cache.add_spans(wanted, await self.store.blocks(wanted))
        return cache.read(spans)

    async def find_turn(self, index: int) -> TurnRecord:
        """Return a turn's record.

        Raises:
            TurnNotFoundError: there is none of this index.
        """
        found = await self.store.turns(self.session_id, after=index - 1, limit=1) if index >= 0 else []
        if not found or found[0].index != index:
            raise TurnNotFoundError(self.session_id, index)
        return found[0]

    async def find_run(self, run_id: str) -> RunRecord:
        """Return a run of this session.

        Raises:
            RunNotFoundError: it has none of this id.
        """
        try:
            found = await self.store.run(run_id)
        except RunNotFoundError:
            found = None
        if found is None or found.session_id != self.session_id:
            raise RunNotFoundError(run_id, f"session {self.session_id!r}")
        return found

    async def find_turn_of(self, run: RunRecord) -> TurnRecord | None:
        """Return what was kept of a run that has ended."""
        found = await self.store.turns(self.session_id, after=run.turn_index - 1, limit=1)
        return next((turn for turn in found if turn.run_id == run.run_id), None)

    async def events(self, after: int, limit: int) -> Sequence[Event]:
        """Return up to `limit` events with a number above `after`: from memory, and what has left it from the store."""
        start = self.log.start
        if after >= start - 1:
            return self.log.since(after, limit)
        held = self.log.since(start - 1, limit)  # now: some of it may leave memory while the store is read
        stored = await self._stored_events(after, limit)
        older = await self._with_blocks([event for event in stored if event.seq < start], self.session.log)
        return [*older, *held][:limit]

    async def _stored_events(self, after: int, limit: int) -> Sequence[Event]:
        stored = await self.store.events(self.session_id, after=after, limit=limit)
        if self.feed is None:
            return check_events(stored)
        copied = await self.feed.history.events(self.session_id, after=after, limit=limit)
        merged = {event.seq: event for event in (*copied, *stored)}
        return check_events([merged[seq] for seq in sorted(merged)][:limit])

    async def _with_blocks(self, events: Sequence[Event], log: str) -> Sequence[Event]:
        """Return stored events with the blocks that they added, which the log has: one read, if they are not held."""
        spans = [Span(log, *event.span) for event in events if isinstance(event, Appending) and event.span]
        if not spans:
            return events
        cache = self.cache
        if cache.missing(spans):
            cache = BlockCache()
            wanted = union(spans)
            cache.add_spans(wanted, await self.store.blocks(wanted))
        return [
            event.model_copy(update={"blocks": cache.read([Span(log, *event.span)])})
            if isinstance(event, Appending) and event.span
            else event
            for event in events
        ]


def _failed(verb: str, error: Exception) -> StoreError:
    """Return what a store raised that is no error of turnwise's as one: whoever tries again after those does."""
    return StoreError(f"the store raised {type(error).__name__} at {verb}, whose outcome is unknown: try again")


def _follows(found: SessionRecord, left: SessionRecord) -> bool:
    """Return whether an activation has found the session where it was left, or behind a commit that was under way."""
    names = ("revision", "log_size", "seq", "next_index", "updated_at")
    return found.log == left.log and all(getattr(found, name) >= getattr(left, name) for name in names)


async def settled(future: asyncio.Future[None], timeout_s: float | None = None) -> bool:
    """Wait for a future that others wait for too, whoever is cancelled; return whether it is done."""
    await asyncio.wait([future], timeout=timeout_s)
    return future.done()
