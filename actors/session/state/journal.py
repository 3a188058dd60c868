"""`Journal`: activates a session in its store, commits to it, reads from it, and publishes its events."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

from turnwise.actors.inference.engine import NewEvent
from turnwise.actors.session.state.cached_blocks import CachedBlocks
from turnwise.actors.session.state.event_forwarder import EventForwarder
from turnwise.actors.session.state.event_log import EventLog
from turnwise.actors.session.state.searched_texts import SearchedTexts
from turnwise.actors.session.state.stored_records import StoredRecords
from turnwise.errors import (
    CorruptRecordError,
    DeliveryChangedError,
    DuplicateKeyError,
    QuotaExceededError,
    SessionFencedError,
    SessionNotFoundError,
    SessionRevertedError,
    StoreError,
    TurnwiseError,
)
from turnwise.memory.conversation.branches import is_shown
from turnwise.memory.conversation.codec import UNREADABLE
from turnwise.memory.conversation.events import Event, EventRow, SessionReverted
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Span, Spans, union
from turnwise.memory.event_store.base import HistoryStore
from turnwise.memory.stores.base import Activation, Commit, SessionStore, clock_of, new_jump
from turnwise.memory.stores.encrypted.records import check_event_rows, check_events, check_session
from turnwise.memory.stores.reading import KeepsEventRows, merged_events
from turnwise.memory.values.records import replace
from turnwise.memory.values.weights import may_be_cut

LIVE_NUMBERS = 10_000_000
"""How many event numbers are reserved for live events between two commits; stored events are numbered above them."""


FLUSH_S = 5.0
"""How long events may take to arrive in the history store before those of a session or of turns are deleted."""

DELETE_EVERY = 256
"""How many events are copied to the history store before the session store deletes its copies, at the next commit."""

REVERTED = "turnwise.reverted"
"""The key of the first `SessionReverted` event."""

MISSED = 1000
"""How many missed events an activation reads from the store at a time."""


class Journal:
    """The session's row, its block log and its events, as of the last commit under this activation's epoch.

    A commit is first stored, then applied and published. After a store error it is unknown whether the commit was
    stored: the journal is `stale` until the next activation has read the store, and live events wait until then.
    """

    def __init__(
        self,
        key: SessionKey,
        store: SessionStore,
        clock: Callable[[], float] | None,
        history: HistoryStore | None = None,
    ) -> None:
        self.store = store
        self.blocks = CachedBlocks(key.session_id, store)
        self.searched = SearchedTexts(key, store, self.blocks)
        self.forwarder = EventForwarder(key, store, history, self.blocks) if history else None
        self._deleted_up_to = 0
        """The store has deleted the events up to this number, since the history store has them."""
        self._clock = clock or clock_of(store)
        self._clock_read: tuple[float, float] | None = None
        """The store's time and this process's monotonic time, both read at the last activation."""
        self.session = SessionRecord(**key._asdict())
        self.log = EventLog(0)
        self.records = StoredRecords(key, store)
        self.has_advanced = False
        """Whether the last activation found a commit that the store had not answered."""
        self.stale = True
        """Whether the session must be activated before the next change."""
        self.lost: Exception | None = None
        """The error that says why this process no longer owns the session; None while it may own it."""
        self._is_reverted = False
        """Whether the store is known to lack commits of this process, for example after a restore from a backup."""
        self._sent_revisions: set[int] = set()
        """The revisions of the activations that were sent to the store since `session` was set."""

    @property
    def session_id(self) -> str:
        return self.session.session_id

    @property
    def key(self) -> SessionKey:
        return self.session.key

    def clock(self) -> float:
        """Return the store's time, in seconds since the epoch: read at activation, advanced by a monotonic clock.

        A store's own clock in this process is read each time. So a session's records are in order even if it moves to a
        node whose own clock is behind.
        """
        if self._clock:
            return self._clock()
        if self._clock_read is None:
            return time.time()
        store_time, began = self._clock_read
        return store_time + (time.monotonic() - began)

    async def set_clock(self) -> None:
        """Read the store's time anew, since its clock may have been set after the activation.

        Raises:
            StoreError: it cannot be read; nothing was changed.
        """
        if self._clock is None:
            self._clock_read = await self.store.now(), time.monotonic()

    # Ownership

    def mark_loaded(self) -> None:
        """Clear `stale`, once the state that an activation found is loaded."""
        self.stale = False

    def read_row(self, session: SessionRecord) -> None:
        """Set the session's row as read from the store, without activating the session."""
        self.session = session

    def mark_stale(self) -> None:
        """Make the next change activate the session first, since memory and store may differ."""
        self.stale = True

    def lose(self, error: Exception) -> None:
        """Give up ownership: each later change and read raises `error`."""
        self.lost = error

    # Writing

    async def activate(self) -> Activation:
        """Take ownership of the session; cache the blocks of its head and open turns; publish missed events.

        Live events still wait: the next commit, or `log.publish`, publishes them.

        Raises:
            SessionFencedError, SessionNotFoundError: this process owned the session, and meanwhile another process
                took it, or it was deleted; the journal is `lost`. A process that has lost the session does not
                take it back.
            SessionRevertedError: the store lacks commits of this process, for example because it was restored from a
                backup; the journal is `lost`.
        """
        activation = await self._activated()
        session, head = check_session(activation.session), activation.head
        if head and not is_shown(session.branches, head.index):
            activation = replace(activation, head=await self.records.last_shown_turn(session))
        self._clock_read = activation.now, time.monotonic()
        if self.log.last_seq:
            missed = await self._missed_events()
            self.log.catch_up(await self.blocks.read_events(missed, activation.session.log), activation.session.seq)
        else:
            self.log = EventLog(activation.session.seq)
        turns = [turn for turn in (activation.head, *activation.open_turns) if turn]
        try:
            await self.blocks.load(union(*(part for turn in turns for part in (turn.spans, turn.base))))
        except CorruptRecordError:
            await self._check_unchanged(activation.session)
            raise
        self.searched.load(turns)
        self.has_advanced = activation.session.updated_at > self.session.updated_at  # only a commit changes it
        self.session = activation.session
        self._sent_revisions.clear()
        if self.forwarder:
            self.forwarder.wake(activation.session.log)
        return activation

    async def _activated(self) -> Activation:
        """Activate the session: the first time whoever owns it, later only if no other process has activated it since.

        A commit or an activation of this process whose answer was lost may arrive after the check; then this checks
        again.
        """
        while True:
            try:
                if not self.session.epoch:
                    return await self.store.activate(self.key)
                return await self._reactivate(await self.check_own())
            except SessionFencedError:
                if self.lost:
                    raise
            except TurnwiseError:
                raise
            except Exception as error:
                raise _failed("activate", error) from error

    async def _reactivate(self, stored: SessionRecord) -> Activation:
        """Activate the session, if its stored row is still this one.

        Raises:
            SessionFencedError: it has changed; nothing was done.
        """
        jump = new_jump()
        self._sent_revisions.add(stored.revision + jump)
        return await self.store.activate(self.key, revision=stored.revision, jump=jump)

    async def check_own(self) -> SessionRecord:
        """Return the stored row, if it can be the result of this process's own commits.

        Raises:
            SessionFencedError, SessionNotFoundError, SessionRevertedError: the stored row is not the result of this
                process's commits; the journal is `lost`.
            StoreError: the store could not be read.
        """
        own = self.session
        try:
            stored = await self.store.get(self.key)
            if stored.log != own.log or (stored.epoch > own.epoch and stored.revision not in self._sent_revisions):
                raise SessionFencedError(self.session_id, own.epoch)
            if self._is_reverted or not self._is_own_row(stored):
                self._is_reverted = True
                await self._store_reversion(stored)
                raise SessionRevertedError(self.session_id)
        except (SessionFencedError, SessionNotFoundError, SessionRevertedError) as error:
            self.lose(error)
            self.log.abandon()
            raise
        return stored

    async def _check_unchanged(self, stored: SessionRecord) -> None:
        """Raise if the stored row has changed since `stored` was read, for example by a restore.

        Raises:
            SessionFencedError, SessionNotFoundError: the stored row has changed; the journal is `lost`. Create a new
                `SessionCore` to load the session.
        """
        try:
            now = await self.store.get(self.key)
            if (now.log, now.epoch, now.revision) != (stored.log, stored.epoch, stored.revision):
                raise SessionFencedError(self.session_id, stored.epoch)
        except (SessionFencedError, SessionNotFoundError) as error:
            self.lose(error)
            self.log.abandon()
            raise

    async def revert(self) -> None:
        """Record that the store has lost commits of this process, and give up the session. Always raises.

        Raises:
            SessionFencedError, SessionNotFoundError, SessionRevertedError: always one of them; the journal is `lost`.
            StoreError: the store could not be used; call this again.
        """
        self._is_reverted = True
        self.mark_stale()
        await self.check_own()

    def _is_own_row(self, stored: SessionRecord) -> bool:
        """Return whether the stored row can result from this process's own requests, answered or not."""
        own = self.session
        return stored.revision in (own.revision, own.revision + 1, *self._sent_revisions)

    async def _store_reversion(self, earlier: SessionRecord) -> None:
        """Activate the session in the store's `earlier` state, and store a `SessionReverted` event.

        Event numbers and turn indexes continue above those that were already used, so that each stays unique.

        Raises:
            SessionFencedError: the session is no longer in that state, since another process has activated it.
        """
        stored = (await self._reactivate(earlier)).session
        seq, now = max(stored.seq, self.log.last_seq) + 1, self.clock()
        session = stored.committed(
            seq=seq,
            next_index=max(stored.next_index, self.session.next_index),
            updated_at=max(stored.updated_at, now),
        )
        key = None if await self.has_reverted() else REVERTED
        event = SessionReverted(**self.key._asdict(), seq=seq, at=now, key=key)
        await self.store.commit(self.key, stored.epoch, Commit(session=session, events=[event]))

    async def has_reverted(self) -> bool:
        """Return whether the session was ever reverted to an earlier state of its store."""
        return await self.store.event_of_key(self.key, REVERTED) is not None

    def extend(self, count: int) -> tuple[Span, SessionRecord]:
        """Return the span of the next `count` blocks of the log, and the session's row with the log grown by them."""
        span = Span(self.session.log, self.session.log_size, self.session.log_size + count)
        return span, replace(self.session, log_size=span.stop)

    def number(self, events: Sequence[NewEvent]) -> list[Event]:
        """Return the events with the next numbers, which are reserved for them until the next commit."""
        first, now = self.log.reserve(len(events)), self.clock()
        return [
            kind(session_id=self.session_id, user_id=self.session.user_id, seq=seq, at=now, **values)
            for seq, (kind, values) in enumerate(events, first)
        ]

    async def commit(self, commit: Commit, *, live: bool) -> None:
        """Store a commit, then apply its session row and publish its events.

        Args:
            live: whether a run is active after the commit, which may publish live events before the next one.

        Raises:
            SessionFencedError, SessionNotFoundError: another process took the session, or it was deleted; the journal
                is `lost`.
            SessionRevertedError: the store lacks commits of this process, for example because it was restored from a
                backup; the journal is `lost`.
            DuplicateKeyError, DeliveryChangedError, QuotaExceededError: nothing was stored.
            StoreError: the outcome is unknown; the journal is `stale`. Other exceptions of the store are converted to
                this error.
        """
        indices = [turn.index + 1 for turn in commit.turns]
        session = replace(
            commit.session,
            seq=self.log.last_seq + (LIVE_NUMBERS if live else 0),
            next_index=max([commit.session.next_index, *indices]),
            revision=commit.session.revision + 1,
            updated_at=max(math.nextafter(commit.session.updated_at, math.inf), self.clock()),
        )
        copied = self.forwarder.copied if self.forwarder else 0
        forget = copied if copied >= self._deleted_up_to + DELETE_EVERY else 0
        try:
            stamped = replace(commit, session=session, forget_events=forget)
            await self.store.commit(self.key, session.epoch, stamped)
        except SessionFencedError:
            self.mark_stale()  # until the cause is known
            await self.check_own()
            await self.revert()  # the row is this process's own, so the store was reverted under the commit
            raise
        except (DuplicateKeyError, DeliveryChangedError, QuotaExceededError):
            self.log.publish()
            raise
        except BaseException as error:
            self.mark_stale()
            if isinstance(error, Exception) and not isinstance(error, TurnwiseError):
                raise _failed("commit", error) from error
            raise
        self.session = session
        self._deleted_up_to = max(self._deleted_up_to, forget)
        self.log.publish(commit.events, is_live=live)
        if self.forwarder and commit.events:
            self.forwarder.wake(session.log)

    def drop_cleared(self, spans: Spans) -> None:
        """Drop all events and all blocks but `spans` from memory, since turns were removed for good."""
        self.blocks.keep_only(spans)
        self.log.drop_cached()

    async def delete(self, *, keeps_events: bool = False) -> int:
        """Delete the session, its history first, so that a delete that fails can be repeated.

        Args:
            keeps_events: whether the history store keeps its events, all of which it must have then.

        Returns how many turns it had.

        Raises:
            SessionFencedError: another process owns the session; its history was not deleted.
            StoreError: the history store is to keep all events, and has not got them; nothing was deleted.
        """
        if self.forwarder:
            await self.check_own()
            if keeps_events and not await self.forwarder.flush(FLUSH_S):
                reason = f"the history store has not got all events of session {self.session_id!r} in {FLUSH_S:g} s"
                raise StoreError(f"{reason}: try again")
            self.forwarder.stop()
            if not keeps_events:
                await self.forwarder.history.delete(self.key)
        return await self.store.delete(self.key, epoch=self.session.epoch, log=self.session.log)

    async def delete_unread(self) -> int:
        """Delete a session whose record cannot be read, whoever owns it, its history first; see `delete`."""
        if self.forwarder:
            self.forwarder.stop()
            await self.forwarder.history.delete(self.key)
        return await self.store.delete(self.key)

    # Reading

    async def events(self, after: int, limit: int) -> Sequence[Event]:
        """Return up to `limit` events with a number above `after`, from memory, and older ones from the store.

        A page that is large is shorter, but has at least one event if there is one: see `PAGE_BYTES`.
        """
        return await self._with_blocks(await self.bare_events(after, limit))

    async def events_to_pass_on(self, after: int, limit: int) -> Sequence[Event | EventRow]:
        """Return what `events` returns, for another process: stored events as rows, which that process decodes.

        With an event store, or a store that has no rows, all of them are decoded.
        """
        store = self.store
        if self.forwarder or after >= self.log.start - 1 or not isinstance(store, KeepsEventRows):  # the last is slow
            return await self.events(after, limit)

        async def read(after: int, limit: int) -> Sequence[EventRow]:
            return check_event_rows(self.key, await store.event_rows(self.key, after=after, limit=limit))

        events = await self._with_cached(read, after, limit)
        try:
            return await self.blocks.read_first_events(events, self.session.log)
        except UNREADABLE:
            return await self.events(after, limit)  # which says what cannot be read

    async def bare_events(self, after: int, limit: int) -> Sequence[Event]:
        """Return the events that `events` returns, without blocks if they are stored apart."""
        return cast(list[Event], await self._with_cached(self._stored_events, after, limit))

    async def _with_cached(
        self, read: Callable[[int, int], Awaitable[Sequence[Event | EventRow]]], after: int, limit: int
    ) -> Sequence[Event | EventRow]:
        """Return events from memory, and older ones as `read` returns them."""
        start = self.log.start
        if after >= start - 1:
            return self.log.since(after, limit)
        cached = self.log.since(start - 1, limit)  # read first, since these may leave memory while the store is read
        stored = await read(after, limit)
        earlier = [event for event in stored if event.seq < start]
        if earlier and len(earlier) == len(stored) and may_be_cut(earlier, limit):
            return earlier  # the store may have more events before those in memory
        return [*earlier, *cached][:limit]

    async def _with_blocks(self, events: Sequence[Event]) -> Sequence[Event]:
        return await self.blocks.read_first_events(events, self.session.log)

    async def _missed_events(self) -> Sequence[Event]:
        """Return all stored events that are not published: a commit, such as an import, may have any number."""
        missed: list[Event] = []
        while True:
            page = await self._stored_events(missed[-1].seq if missed else self.log.published, MISSED)
            missed += page
            if not page:
                return missed

    async def _stored_events(self, after: int, limit: int) -> Sequence[Event]:
        stored = await self.store.events(self.key, after=after, limit=limit)
        if self.forwarder is None:
            return check_events(stored)
        copied = await self.forwarder.history.events(self.key, after=after, limit=limit)
        return check_events(merged_events(copied, stored, limit))


def _failed(verb: str, error: Exception) -> StoreError:
    """Return a StoreError for an exception that is not turnwise's, so that callers retry as after any StoreError."""
    return StoreError(f"the store raised {type(error).__name__} during {verb}, so its outcome is unknown: try again")
