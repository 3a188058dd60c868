"""What a tool is told beside its arguments: for whom it works, in which call, and when to stop."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn

from turnwise.actors.inference.engine import SessionView
from turnwise.memory.conversation.frozen_json import FrozenDict
from turnwise.memory.longterm.session_memory import MemoryAccess


class CancelSignal:
    """Set once and for good, when nobody waits any more for what was begun. Usable from threads and coroutines.

    Pickles as a new signal that nobody sets: it does not reach other processes.
    """

    __slots__ = ("_event", "_listeners", "_lock")

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._listeners: dict[Callable[[], object], None] = {}

    def __reduce__(self) -> tuple[type[CancelSignal], tuple[()]]:
        return CancelSignal, ()

    def is_set(self) -> bool:
        """Whether to stop."""
        return self._event.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block this thread until it is set or the time is over; return whether it is set. Not for coroutines."""
        return self._event.wait(timeout_s)

    async def wait_async(self) -> None:
        """Return when it is set; on any event loop."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed, so nobody waits on it
                loop.call_soon_threadsafe(_settle, woken)

        self.listen(wake)
        try:
            await woken
        finally:
            self.forget(wake)

    def set(self) -> None:
        """Set it, and call the listeners on this thread."""
        with self._lock:
            self._event.set()
            listeners, self._listeners = list(self._listeners), {}
        for listener in listeners:
            listener()

    def listen(self, listener: Callable[[], object]) -> None:
        """Call `listener` when it is set, on the thread that sets it; now, if it is. It may neither block nor raise."""
        with self._lock:
            if not self._event.is_set():
                self._listeners[listener] = None
                return
        listener()

    def forget(self, listener: Callable[[], object]) -> None:
        """Take a listener back; one that is not there is no error."""
        with self._lock:
            self._listeners.pop(listener, None)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """One try of one tool call. Comes from the session, never from the model: so it says who the user really is.

    A parameter that is annotated with this class gets it. In another process, as with tools on Ray, `cancelled` is
    never set, as the task itself is cancelled there, and `memory` is None.
    """

    session: SessionView
    """The scope that the tool works in: ids, user, agent."""
    run_id: str
    turn_index: int
    call_id: str
    labels: Mapping[str, str] = field(default_factory=FrozenDict)
    """What the caller labelled the run with."""
    try_number: int = 1
    cancelled: CancelSignal = field(default_factory=CancelSignal, compare=False)
    """Set when the run is cancelled, when the try has taken too long, and when it has ended."""

    memory: MemoryAccess | None = field(default=None, compare=False, repr=False)
    """What the session's memories do for the call; None if there are none, or the run goes without.

    For tools that are coroutine functions: its verbs are for their event loop.
    """

    def __reduce__(self) -> tuple[Callable[[], ToolContext], tuple[()]]:
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "memory"}
        return functools.partial(ToolContext, **values), ()

    @property
    def idempotency_key(self) -> str:
        """Names the call, the same however often it is tried: give it to services that carry out a key only once."""
        return f"{self.run_id}/{self.call_id}"

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> NoReturn:
        # Else a parameter that merely contains a context would let the model write one, user included.
        raise TypeError(
            "a ToolContext is given to a tool, never made of arguments: annotate the parameter with it alone"
        )
