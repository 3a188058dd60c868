"""What telemetry is told of sessions: the protocols `Telemetry`, `Observer` and `Operation`, and those that do nothing.

Nothing here imports OpenTelemetry: `turnwise.telemetry` implements the protocols. Its methods return at once and raise
nothing, so that no run waits for them or fails because of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from turnwise.actors.inference.engine import SessionView
    from turnwise.errors import TurnwiseError
    from turnwise.memory.conversation.runs import RunRecord

Part = Literal["chat", "tool", "recall", "shadow"]
"""A part of a run: a request to a model, a tool call, a search in a long-term memory, or a candidate's answer beside
it."""

_log = logging.getLogger(__name__)


class Operation(Protocol):
    """A run, or a part of one, as telemetry follows it. Its first end counts."""

    @property
    def trace(self) -> Mapping[str, str]:
        """The W3C trace context by which another process continues the trace: `traceparent`, perhaps `tracestate`."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that a request to a model carries; empty unless the user wants the provider to see the trace."""

    def part(self, kind: Part, facts: Mapping[str, Any]) -> Operation:
        """Begin a part of this operation."""

    def note(self, **facts: Any) -> None:
        """Add what has become known."""

    def answers(self) -> None:
        """The first piece of the answer has arrived. Later calls do nothing."""

    def entered(self) -> Any:
        """Return a context manager within which libraries and tools see this operation as the current span."""

    def end(self, error: BaseException | None = None) -> None:
        """End it, by an error if one is given."""


class Observer(Protocol):
    """Reports the operations of one process's sessions to telemetry."""

    def run(self, session: SessionView, record: RunRecord, caller: Mapping[str, str], depth: int) -> Operation:
        """Begin to follow a run: when it is accepted, and again when it goes on after a pause or in another process.

        Args:
            caller: the trace context of the caller that starts the run; empty if the run was accepted earlier. Then
                the operation links to the first one, whose context is `record.trace`.
            depth: how many runs of the session are before this one.
        """

    def activated(self, session: SessionView) -> None:
        """This process took a session over."""

    def fenced(self, session: SessionView) -> None:
        """Another process took a session from this one."""

    def delivered(self, session: SessionView, late_s: float) -> None:
        """A schedule of a session has begun a run, so many seconds after it was due."""

    def refused(self, error: TurnwiseError) -> None:
        """This process answered a call by an error."""


class Telemetry(Protocol):
    """Settings of telemetry, as a manager gets them. They are pickled to the processes of its sessions."""

    def observer(self) -> Observer | None:
        """Return this process's observer; the first call sets telemetry up. None if that failed, which is logged."""


class _NoOperation:
    """The operation that telemetry does not follow."""

    trace: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}

    def part(self, kind: Part, facts: Mapping[str, Any]) -> Operation:
        return self

    def note(self, **facts: Any) -> None:
        """Do nothing."""

    def answers(self) -> None:
        """Do nothing."""

    def entered(self) -> Any:
        return _nothing()

    def end(self, error: BaseException | None = None) -> None:
        """Do nothing."""


@contextmanager
def _nothing() -> Iterator[None]:
    yield


NO_OPERATION: Operation = _NoOperation()
"""The operation of everything that no telemetry follows."""

_CURRENT: ContextVar[Operation] = ContextVar("turnwise_operation", default=NO_OPERATION)
"""The operation of which the current task or thread is a part."""


@contextmanager
def within(operation: Operation) -> Iterator[None]:
    """Make the body, with the tasks and threads that begin there, part of this operation."""
    if operation is NO_OPERATION:
        yield
        return
    before = _CURRENT.set(operation)
    try:
        with operation.entered():
            yield
    finally:
        _CURRENT.reset(before)


@contextmanager
def part(kind: Part, facts: Callable[[], Mapping[str, Any]]) -> Iterator[Operation]:
    """Follow the body as a part of the current operation, and end it with the body.

    Args:
        facts: returns what is known at the beginning; not called without telemetry.
    """
    whole = _CURRENT.get()
    if whole is NO_OPERATION:
        yield whole
        return
    operation = whole.part(kind, facts())
    error: BaseException | None = None
    try:
        with within(operation):
            yield operation
    except BaseException as raised:
        error = raised
        raise
    finally:
        operation.end(error)


def observer_of(telemetry: Telemetry | None) -> Observer | None:
    """Return this process's observer; None without telemetry, or if it cannot be set up."""
    if telemetry is None:
        return None
    try:
        return telemetry.observer()
    except Exception:  # noqa: BLE001 - sessions work without telemetry
        _log.exception("telemetry could not be set up; sessions of this process are not observed")
        return None
