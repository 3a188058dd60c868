"""What crosses the wire between a caller and a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from turnwise.actors.session.reads import Outcome
from turnwise.errors import TurnwiseError
from turnwise.memory.conversation.block_cache import BlockCache
from turnwise.memory.conversation.runs import RunState
from turnwise.memory.conversation.sessions import SessionRecord
from turnwise.memory.conversation.spans import Spans, subtract, union
from turnwise.memory.conversation.turns import Turn, TurnRecord


class SessionRef(str):
    """A session's id with the name of its log, which tells it from an earlier or a later session of the same id."""

    __slots__ = ("log",)

    log: str

    def __new__(cls, session_id: str, log: str) -> Self:
        ref = super().__new__(cls, session_id)
        ref.log = log
        return ref

    @classmethod
    def of(cls, session: SessionRecord) -> Self:
        """Return the reference of a stored session."""
        return cls(session.session_id, session.log)

    def __reduce__(self) -> tuple[object, ...]:
        return SessionRef, (str(self), self.log)


def log_of(session_id: str) -> str:
    """Return the name of the log that a caller takes for the session's; empty if the caller does not know."""
    return session_id.log if isinstance(session_id, SessionRef) else ""


@dataclass(frozen=True, slots=True)
class Refused:
    """An error that is an answer: raised at the caller's, with no traceback of the cluster's around it."""

    error: TurnwiseError


@dataclass(frozen=True, slots=True)
class EngineWanted:
    """The session has another engine than the caller's: send it, then ask again."""


@dataclass(frozen=True, slots=True)
class StillEnding:
    """The run is being cancelled: ask again, naming it."""

    run_id: str | None


@dataclass(frozen=True, slots=True)
class PackedTurn:
    """A turn with those of its blocks that the receiver does not hold, encoded."""

    session_id: str
    source: str
    """Of the cache that they are from."""
    record: TurnRecord
    spans: Spans
    blocks: list[str]

    @classmethod
    def pack(cls, turn: Turn, held: Spans) -> PackedTurn:
        """Pack what `held`, the receiver's spans, lacks: all, if that is of another source."""
        spans = subtract(union(turn.record.prompt, turn.record.spans), held if turn.cache.is_of(held) else ())
        return cls(turn.session_id, turn.cache.source, turn.record, spans, turn.cache.read_encoded(spans))

    def unpack(self, cache: BlockCache) -> Turn:
        """Return the turn on top of the receiver's cache."""
        cache.add_spans(self.spans, self.blocks)
        return Turn(self.session_id, self.record, cache)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended, as its caller has it. `turn` is what was kept."""

    state: RunState
    why: str | None
    code: str | None
    turn: Turn | None


@dataclass(frozen=True, slots=True)
class PackedOutcome:
    """How a run ended, with what was kept."""

    state: RunState
    why: str | None
    code: str | None
    turn: PackedTurn | None

    @classmethod
    def pack(cls, outcome: Outcome, held: Spans) -> PackedOutcome:
        """Pack what `held`, the receiver's spans, lacks."""
        turn = PackedTurn.pack(outcome.turn, held) if outcome.turn else None
        return cls(outcome.run.state, outcome.run.why, outcome.run.code, turn)


@dataclass(frozen=True, slots=True)
class StartAnswer:
    """What `start` acknowledges, and how the run ended if it has already."""

    run_id: str
    turn_index: int
    outcome: PackedOutcome | None


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A `StartAnswer` as its caller has it."""

    run_id: str
    turn_index: int
    outcome: Ended | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A session and where it lives."""

    session: SessionRecord
    active_run_id: str | None
    queued_run_ids: tuple[str, ...]
    pid: int | None
    """Of the process that hosts it, on its node; None while none does."""
    node_id: str | None
