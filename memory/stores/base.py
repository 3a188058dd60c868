"""What a store does: keep sessions, whole commits at a time, and refuse those of a stale owner."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar, runtime_checkable

from turnwise.errors import InvalidInputError, shown
from turnwise.memory.conversation.events import AnyEvent, Event
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.sessions import SessionRecord, SessionStatus
from turnwise.memory.conversation.spans import Span, Spans
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.conversation.usage import Usage

Item = TypeVar("Item")

SessionOrder = Literal["created_at", "updated_at"]


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """Some items in order, and where the next page starts."""

    items: tuple[Item, ...]
    cursor: str | None
    """Pass it to get the next page; None when there is none."""
    unreadable: tuple[str, ...] = ()
    """Of sessions: the ids of those that belong here too, and whose records cannot be read. They can be deleted."""

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One change of a session's state, written whole or not at all."""

    session: SessionRecord
    """The session's row after the commit. Ids, creation time, parent, log and epoch stay what they are. Its `revision`
    is 1 above that of the commit or activation that this one follows."""
    blocks: Sequence[str] = ()
    """Encoded blocks: the last of the log, which then ends at `session.log_size`."""
    turns: Sequence[TurnRecord] = ()
    """Inserted, or put in place of those with their index."""
    dropped_turns: Sequence[int] = ()
    """Indices of turns that go, before `turns` come."""
    new_run: RunRecord | None = None
    runs: Sequence[RunRecord] = ()
    """Put in place of those with their id. May differ: state, first number, times of start and end, reason and its
    code, usage, stop reason, calls and resumes."""
    events: Sequence[Event] = ()
    forget_events: int = 0
    """Stored events up to this number go, before `events` come: a history store has them. Those that have a key stay,
    since they keep what they stand for from being done twice."""

    @property
    def log_size_before(self) -> int:
        """The size that the log has before the commit."""
        return self.session.log_size - len(self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """What a new owner of a session starts from."""

    session: SessionRecord
    """With the raised epoch and revision."""
    head: TurnRecord | None
    """The last turn that has ended."""
    open_turns: tuple[TurnRecord, ...]
    """Pending, queued and running turns, by index."""
    open_runs: tuple[RunRecord, ...]
    """Those that have not ended, by turn index."""
    now: float
    """What the store's clock says: see `SessionStore.now`."""


_JUMP_BITS = 40


def new_jump() -> int:
    """Return a random number by which an activation raises a session's revision, at least 2."""
    return 2 + secrets.randbits(_JUMP_BITS)


_KEY_BITS = 63
"""Of the integers that a database can compare with."""


def cursor_of(time_s: float, order: int) -> str:
    """Return the cursor that stands behind a session of this time and order of creation."""
    return f"{time_s!r}:{order}"


def parse_cursor(cursor: str) -> tuple[float, int]:
    """Return what `cursor_of` was given.

    Raises:
        InvalidInputError: it is not a cursor.
    """
    time_s, _, order = cursor.partition(":")
    try:
        parsed = float(time_s), int(order)
    except ValueError:
        parsed = math.nan, 0
    if not math.isfinite(parsed[0]) or parsed[1].bit_length() > _KEY_BITS:
        raise InvalidInputError("cursor", shown(cursor), "pass the cursor of the page before, unchanged")
    return parsed


def check_limit(limit: int) -> int:
    """Return the limit of a page.

    Raises:
        InvalidInputError: it is below 1.
    """
    if limit < 1:
        raise InvalidInputError("limit", shown(limit), "must be at least 1")
    return limit


@runtime_checkable
class SessionStore(Protocol):
    """A durable home of sessions. `stores/conformance` holds its laws; run them on your own.

    Every verb is one round trip and one transaction. A cancelled call may have been carried out or not, never in part.
    What comes out is immutable and equal to what went in; but events have no blocks, and the usage of turns and runs is
    kept to the microsecond and to the twelfth place of its cost. Verbs of a store that cannot be reached or has been
    closed raise `StoreError`, those of a session that does not exist `SessionNotFoundError`, if nothing else is said; a
    `limit` below 1 is an `InvalidInputError`.
    """

    async def now(self) -> float:
        """Return the time by the store's clock, in seconds since the epoch: one clock for all who use the store.

        Times of sessions are told by it, and when they expire, however wrong the clocks of those nodes are.
        """

    async def create(self, session: SessionRecord, turn: TurnRecord | None = None, also: Spans = ()) -> SessionRecord:
        """Store a new session, a fork's with its first `turn`; return it with the name of its log.

        The name is one that was never given before, by this store or an earlier state of it: see `new_key`.

        What the turn spans of other logs, carried or not, stays readable while the fork lives, whoever else is
        deleted, and so does `also`.

        Args:
            also: blocks that stay readable too: what summaries among the turn's stand for. Nothing without a turn.

        Raises:
            SessionExistsError: the id is taken.
            CorruptRecordError: the turn or `also` spans blocks that are not there, or no longer; nothing is stored.
        """

    async def get(self, session_id: str) -> SessionRecord:
        """Return the session."""

    async def activate(self, session_id: str) -> Activation:
        """Raise the session's epoch by 1, so that commits of earlier owners are refused; return where it stands.

        The revision is raised by `new_jump()`.
        """

    async def commit(self, session_id: str, epoch: int, commit: Commit) -> None:
        """Make one commit durable: all of it on return, or none of it.

        It is matched by the session's id, its log, the epoch, and where the session stands before it: the revision and
        the size of the log. So it never enters another session, and never follows a state that is not its own.

        Args:
            epoch: the activation this was made under.

        Raises:
            SessionFencedError: it does not match: a later activation owns the session, it was deleted, or the store
                was restored to another state; nothing is written.
            DuplicateKeyError: the new run's id or idempotency key, or an event's key, is stored already; nothing is
                written.
            StoreError: a block or an event of these numbers is stored already; nothing is written.
        """

    async def blocks(self, spans: Sequence[Span]) -> list[str]:
        """Return the encoded blocks of `spans`, in order.

        Raises:
            CorruptRecordError: one is missing.
        """

    async def turns(self, session_id: str, *, after: int = -1, limit: int = 100) -> list[TurnRecord]:
        """Return up to `limit` turns with an index above `after`, by index."""

    async def run(self, run_id: str) -> RunRecord:
        """Return the run, of whichever session.

        Raises:
            RunNotFoundError: no run has this id.
        """

    async def run_of_key(self, session_id: str, idempotency_key: str) -> RunRecord | None:
        """Return the session's run under this idempotency key, if there is one."""

    async def runs(self, session_id: str, *, after: int = -1, limit: int = 100) -> list[RunRecord]:
        """Return up to `limit` runs with a turn index above `after`, by turn index."""

    async def events(self, session_id: str, *, after: int = 0, limit: int = 1000) -> list[AnyEvent]:
        """Return up to `limit` stored events with a number above `after`, by number."""

    async def event_of_key(self, session_id: str, key: str) -> AnyEvent | None:
        """Return the session's event under this key, if there is one."""

    async def query(
        self,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        status: SessionStatus | None = None,
        order_by: SessionOrder = "created_at",
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[SessionRecord]:
        """Return sessions that match all filters given, newest first; equal times by creation, newest first."""

    async def count(
        self, *, user_id: str | None = None, agent: str | None = None, status: SessionStatus | None = None
    ) -> int:
        """Return how many sessions match all filters given."""

    async def usage(self, *, user_id: str | None = None, agent: str | None = None) -> Usage:
        """Return what the sessions that match all filters given have spent together. Deleted ones count no more."""

    async def unsettled(self, *, cursor: str | None = None, limit: int = 1000) -> Page[str]:
        """Return ids of sessions with a run that is queued or running, in order of creation.

        The order is that of `create`, whatever `created_at` says. A session may settle while pages are read.
        """

    async def expired(self, now: float, *, cursor: str | None = None, limit: int = 100) -> Page[SessionRecord]:
        """Return sessions whose `ttl_s` is set and whose last commit (`updated_at`) is `ttl_s` or more before `now`.

        In order of creation: of `create`, whatever `created_at` says.

        Args:
            now: seconds since the epoch, by the store's clock: see `now`.
        """

    async def delete(self, session_id: str, *, epoch: int | None = None, log: str | None = None) -> None:
        """Delete the session, its turns, runs and events, and those of its blocks that no fork keeps.

        Raises:
            SessionFencedError: `epoch` was given and the session has another, or `log` was and the session of this id
                is another one; nothing is deleted.
        """

    async def close(self) -> None:
        """Let go of connections and files. Closing twice is fine; any other verb after it raises StoreClosedError."""
