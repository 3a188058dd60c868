"""The messages between a caller and a session's process. They have no slots, so that pickle names their fields."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from turnwise.actors.wire_version import packed, unpacked_answer
from turnwise.errors import TurnwiseError
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.branches import Branches
from turnwise.memory.conversation.codec import decoded_events
from turnwise.memory.conversation.events import Event, EventRow
from turnwise.memory.conversation.runs import RunState
from turnwise.memory.conversation.sessions import SessionKey, SessionRecord
from turnwise.memory.conversation.spans import Spans, cut, subtract, union
from turnwise.memory.conversation.turns import Outcome, Turn, TurnRecord
from turnwise.memory.conversation.views.notebook_display import record_html
from turnwise.memory.values.collection_pauses import collection_paused

Answer = TypeVar("Answer")

STEP = 1_000
"""How many blocks are encoded before others get the event loop."""


@dataclass(frozen=True)
class SessionRef:
    """A session with the name of its log, which distinguishes it from other sessions that had the same key."""

    key: SessionKey
    log: str = ""
    """Empty if the caller does not know it."""
    as_user: str | None = None
    """The member who asks, and whose role says what is allowed; None: the session's user."""

    @classmethod
    def of(cls, session: SessionRecord, as_user: str | None = None) -> Self:
        """Return the reference of a stored session, for a member or for its user."""
        return cls(session.key, session.log, as_user if as_user != session.user_id else None)

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.key.session_id


@dataclass(frozen=True)
class Message:
    """What a caller sends to a session's process: a verb by its name, and its arguments by theirs."""

    session: SessionRef
    verb: str
    arguments: dict[str, Any]
    engine_id: str = ""
    """The caller's engine, for a verb that needs one; the session's own if empty."""
    engine: bytes = b""
    """That engine, pickled, once the session has asked for it."""

    def pickled(self) -> bytes:
        """Return the message as it is sent; `unpacked` reads it."""
        return packed(self)


@dataclass(frozen=True)
class Refused:
    """An error as an answer: it is raised in the caller's process, without the traceback of the actor."""

    error: TurnwiseError


@dataclass(frozen=True)
class GaveUp:
    """The answer to a call that was cancelled because it took as long as its caller waits."""


@dataclass(frozen=True)
class EngineWanted:
    """The session does not have the caller's engine: send it, then repeat the request."""


@dataclass(frozen=True)
class Waited(Generic[Answer]):
    """The answer to a verb that waits, as it is when its time is over or what it waits for is there."""

    answer: Answer
    is_over: bool
    """Whether it is there, so that the caller need not ask again."""


@dataclass(frozen=True)
class PackedTurn:
    """A turn with the blocks that the receiver has not cached, encoded."""

    session_id: str
    source: str
    """The id of the sender's cache."""
    record: TurnRecord
    spans: Spans
    blocks: list[str]
    branches: Branches = ()

    @classmethod
    async def pack(cls, turn: Turn, held: Spans) -> PackedTurn:
        """Pack a turn with the blocks that are not in `held`, the receiver's spans; all, if the source differs."""
        cache = turn.cache  # which a turn may replace meanwhile
        spans = union(turn.record.prompt, turn.record.spans)
        if cache.is_of(held):
            spans = subtract(spans, held)
        part, remaining = cut(spans, STEP)
        blocks = cache.read_encoded(part)
        while remaining:
            await asyncio.sleep(0)
            part, remaining = cut(remaining, STEP)
            blocks += cache.read_encoded(part)
        return cls(turn.session_id, cache.source, turn.record, spans, blocks, turn.branches)

    def unpack(self, cache: BlockCache) -> Turn:
        """Add the blocks to the receiver's cache, and return the turn."""
        cache.add_spans(self.spans, self.blocks)
        return Turn(self.session_id, self.record, cache, branches=self.branches)


@dataclass(frozen=True)
class PackedEvents:
    """Stored events of a session as rows, and later ones from memory. They are decoded once, by the reader."""

    session: SessionKey
    count: int
    """How many rows there are."""
    columns: bytes
    """The values of each field of `EventRow`, by its name, packed. Columns take half as long to pickle as rows."""
    events: list[Event]
    """The events that follow them."""

    @classmethod
    def pack(cls, session: SessionKey, events: Sequence[Event | EventRow]) -> PackedEvents | list[Event]:
        """Pack events, of which rows come first; without rows, return them as they are."""
        rows = [event for event in events if isinstance(event, EventRow)]
        others = [event for event in events if not isinstance(event, EventRow)]
        if not rows:
            return others
        columns = dict(zip(EventRow._fields, zip(*rows, strict=True), strict=True))
        return cls(session, len(rows), packed(columns), others)

    def unpack(self) -> list[Event]:
        """Return the events.

        Raises:
            CorruptRecordError: one of them cannot be read; names it.
        """
        with collection_paused(self.count):
            columns = unpacked_answer(self.columns)
            rows = [*zip(*map(columns.__getitem__, EventRow._fields), strict=True)]
            return [*decoded_events(self.session, rows), *self.events]


@dataclass(frozen=True)
class ClientOutcome:
    """How a run ended or stands, in the caller's process. `turn` is what was kept of the run; None if nothing was."""

    state: RunState
    why: str | None
    code: str | None
    turn: Turn | None
    successor: str | None = None
    awaits_agents: bool = False
    """See `RunRecord.awaits_agents`."""


@dataclass(frozen=True)
class PackedOutcome:
    """How a run ended or stands, with the turn for the wire."""

    state: RunState
    why: str | None
    code: str | None
    turn: PackedTurn | None
    successor: str | None = None
    awaits_agents: bool = False

    @classmethod
    async def pack(cls, outcome: Outcome, held: Spans) -> PackedOutcome:
        """Pack the outcome, with the blocks that are not in `held`, the receiver's spans."""
        turn = await PackedTurn.pack(outcome.turn, held) if outcome.turn else None
        run = outcome.run
        return cls(run.state, run.why, run.code, turn, run.successor, run.awaits_agents)


@dataclass(frozen=True)
class StartAnswer:
    """The answer to `start`, with the run's outcome if it has already ended."""

    run_id: str
    turn_index: int
    outcome: PackedOutcome | None
    dropped: bool = False
    """Whether the prompts were dropped; then this is the run that was active."""


@dataclass(frozen=True)
class StartedRun:
    """A `StartAnswer` in the caller's process."""

    run_id: str
    turn_index: int
    outcome: ClientOutcome | None
    dropped: bool = False


@dataclass(frozen=True, kw_only=True)
class HostLoad:
    """What a process of sessions has to do."""

    sessions: int
    """How many sessions are loaded."""
    recent: tuple[SessionKey, ...]
    """Those called last, at most 100."""
    calls: int = 0
    """How many calls it is answering, without those that wait."""
    waits: int = 0
    """How many callers wait in it, for runs, events and memories."""


@dataclass(frozen=True, kw_only=True)
class HostInfo:
    """A process that hosts sessions, as `SessionManager.hosts` finds it."""

    name: str
    """Of its Ray actor."""
    is_packed: bool
    """Whether it hosts many sessions."""
    is_replaced: bool = False
    """Whether newer packed hosts have replaced it; it leaves when its last run has ended."""
    pid: int | None = None
    """The id of the process on its node; None if it did not answer in time."""
    node_id: str | None = None
    node: str | None = None
    """The address of the node."""
    load: HostLoad | None = None
    """None if it did not answer in time."""
    memory_bytes: int | None = None
    """The memory that the process has in use, shared parts included; None if its system does not say."""


@dataclass(frozen=True, kw_only=True)
class DrainReport:
    """How a node was drained, as `SessionManager.drain` returns it."""

    node_id: str
    processes: int
    """How many processes of turnwise have left it."""
    seconds: float
    """How long that took."""
    late: tuple[str, ...] = ()
    """The processes, by the names of their Ray actors, that had not left when the time was over. If they had runs,
    others have taken these over, and ended or resumed them as after a crash."""
    staying: Mapping[str, str] = field(default_factory=dict)
    """Why other processes stay, by name: what is in files of the node, or in the memory of one of its processes."""

    @property
    def is_empty(self) -> bool:
        """Whether the node may go: all processes have left, and no run was interrupted."""
        return not self.late and not self.staying


@dataclass(frozen=True, kw_only=True)
class SessionInfo:
    """A session's record, its open runs, and the process that hosts it."""

    session: SessionRecord
    active_run_id: str | None
    queued_run_ids: tuple[str, ...]
    pid: int | None
    """The id of the process that hosts the session, on its node; None if the session has no process."""
    node_id: str | None

    _repr_html_ = record_html
