"""`ToolContext`, which tells a tool its session, run and call, and `CancelSignal`, which tells it to stop."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn

from turnwise.actors.inference.engine import SessionView
from turnwise.actors.inference.timeline import Timeline
from turnwise.actors.wire_version import by_version
from turnwise.errors import InvalidInputError, ToolError, shown
from turnwise.memory.deliveries.schedule_access import ScheduleAccess
from turnwise.memory.files.owned import OwnedFiles
from turnwise.memory.longterm.memory_access import MemoryAccess
from turnwise.memory.values.frozen_json import FrozenDict


class CancelSignal:
    """Set once, and never cleared, when a call should stop. Usable from threads and coroutines.

    A copy that was pickled to another process is never set.
    """

    __slots__ = ("_event", "_listeners", "_lock")

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._listeners: dict[Callable[[], object], None] = {}

    def __reduce__(self) -> tuple[type[CancelSignal], tuple[()]]:
        return CancelSignal, ()

    def is_set(self) -> bool:
        """Return whether the call should stop."""
        return self._event.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block this thread until the signal is set or `timeout_s` is over; return whether it is set."""
        return self._event.wait(timeout_s)

    async def wait_async(self) -> None:
        """Wait until the signal is set; on any event loop."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed, so nobody waits on it
                loop.call_soon_threadsafe(_set_result, woken)

        self.listen(wake)
        try:
            await woken
        finally:
            self.forget(wake)

    def set(self) -> None:
        """Set the signal, and call the listeners on this thread."""
        with self._lock:
            self._event.set()
            listeners, self._listeners = list(self._listeners), {}
        for listener in listeners:
            listener()

    def listen(self, listener: Callable[[], object]) -> None:
        """Call `listener` once, on the thread that sets the signal; at once if it is set. Must not block or raise."""
        with self._lock:
            if not self._event.is_set():
                self._listeners[listener] = None
                return
        listener()

    def forget(self, listener: Callable[[], object]) -> None:
        """Remove a listener, if it is registered."""
        with self._lock:
            self._listeners.pop(listener, None)


def _set_result(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """One attempt of one tool call. The session makes it, not the model, so its user can be trusted.

    A tool gets it by a parameter with this class as its annotation. In another process, as for tools on Ray,
    `cancelled` is never set, since the Ray task itself is cancelled, and `memory`, `schedules` and `files` are None.
    """

    session: SessionView
    """The session that the tool works for: ids, user, agent."""
    run_id: str
    turn_index: int
    call_id: str
    labels: Mapping[str, str] = field(default_factory=FrozenDict)
    """The labels that the caller gave the run."""
    try_number: int = 1
    cancelled: CancelSignal = field(default_factory=CancelSignal, compare=False)
    """Set when the run is cancelled, and when the attempt has timed out or ended."""

    trace: Mapping[str, str] = field(default_factory=FrozenDict, compare=False, repr=False)
    """The W3C trace context of the call, by which a tool on Ray continues its trace: `traceparent`, perhaps
    `tracestate`. In the session's process the call's span is OpenTelemetry's current one. Empty without telemetry."""

    memory: MemoryAccess | None = field(default=None, compare=False, repr=False)
    """Access to the session's memories, for tools that are coroutine functions; None if the run has no memories."""

    schedules: ScheduleAccess | None = field(default=None, compare=False, repr=False)
    """Access to the session's reminders, for tools that are coroutine functions."""

    files: OwnedFiles | None = field(default=None, compare=False, repr=False)
    """Access to the session's files, for tools that are coroutine functions; None where there is no place for files. A
    tool may return `Image(file=...)` and `Document(file=...)` with what `put` returned."""

    timeline: Timeline | None = field(default=None, compare=False, repr=False)
    """Adds events to the run; None in another process."""

    add_cost: Callable[[float], object] | None = field(default=None, compare=False, repr=False)
    """Adds to what the call has cost; None in another process."""

    def event(
        self, name: str, data: Mapping[str, Any] | None = None, *, labels: Mapping[str, str] | None = None
    ) -> None:
        """Add an event of your own to the run, within this call: see `StepContext.event`.

        Raises:
            InvalidInputError: the name, the data or the labels cannot be stored.
            ToolError: the tool runs in another process, on Ray: call `ExecutionHandle.add_event` there.
        """
        self._own_timeline.event(name, data, labels=labels)

    def note(self, text: str) -> None:
        """Add a `PlannerNote` to the run, within this call: see `event`."""
        self._own_timeline.note(text)

    def step(self, name: str) -> AbstractContextManager[str]:
        """Return a context manager whose body is a named step within this call: see `StepContext.step`."""
        return self._own_timeline.step(name)

    def charge(self, cost: float) -> None:
        """Add to what this call has cost, in the currency of `SessionConfig.prices`. From any thread.

        The run's usage has it, so budgets count it, and the ledger has it under the tool's name: see `manager.usage`.

        Raises:
            InvalidInputError: the cost is below 0, or not finite.
            ToolError: the tool runs in another process, on Ray.
        """
        if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost < math.inf:
            raise InvalidInputError("cost", shown(cost), "must be a number from 0")
        if self.add_cost is None:
            reason = f"call {self.call_id!r} runs in another process, where it cannot be charged to run {self.run_id!r}"
            raise ToolError(f"{reason}: return the cost to a tool in the session's process, which charges it")
        self.add_cost(float(cost))

    @property
    def user_id(self) -> str:
        """For whom the tool works: the author of the run. In a session that is not shared, it is the session's user.

        What a tool may do, it may do for this user. `session.user_id` is the user to whom the session belongs.
        """
        return self.session.user_id if self.session.author is None else self.session.author

    @property
    def _own_timeline(self) -> Timeline:
        if self.timeline is None:
            reason = f"call {self.call_id!r} runs in another process, where it cannot add events to run {self.run_id!r}"
            raise ToolError(f"{reason}: use ExecutionHandle.add_event")
        return self.timeline

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        here = ("memory", "schedules", "files", "timeline", "add_cost")
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in here}
        return by_version(ToolContext, **values)

    @property
    def idempotency_key(self) -> str:
        """A key that is the same for all attempts of the call; pass it to services that accept idempotency keys."""
        return f"{self.run_id}/{self.call_id}"

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> NoReturn:
        # Otherwise the model could write a context, with any user, for a parameter that contains one.
        raise TypeError(
            "a ToolContext cannot be part of a tool's arguments: annotate a parameter with ToolContext alone"
        )
