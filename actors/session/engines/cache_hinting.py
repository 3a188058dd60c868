"""`CacheHinting`: tells the server of a session's model when the session needs its prefix again."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from turnwise.actors.inference.cache_hints import HINT_S, CacheHints
from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.state.session_tasks import SessionTasks
from turnwise.actors.session.state.state import SessionState
from turnwise.memory.conversation.events import (
    ApprovalRequested,
    CallDecided,
    Event,
    ToolStarted,
    WindowCompacted,
)
from turnwise.memory.conversation.runs import RunRecord
from turnwise.memory.conversation.spans import Spans, prefix_key

_log = logging.getLogger(__name__)

HOLD_S = 30.0
"""For how long a prefix is held while tools run, in seconds."""

MAX_WAITING = 16
"""How many hints of a session wait to be sent; older ones are dropped, as the newest says what holds."""

_Send = Callable[[], Awaitable[None]]


class CacheHinting:
    """Sends hints beside the session's work, one after the other. No call waits, and none raises.

    A fork whose requests begin with its parent's blocks neither drops that prefix nor lowers its priority: the parent
    may need it. Nor does an agent whose requests begin with its caller's tools and system prompt.
    """

    def __init__(self, state: SessionState, engines: SessionEngines, tasks: SessionTasks) -> None:
        self._state = state
        self._engines = engines
        self._tasks = tasks
        self._waiting: deque[tuple[str, _Send]] = deque(maxlen=MAX_WAITING)
        self._sending: asyncio.Task[None] | None = None
        self._lowered = ""
        """The key whose priority is lowered until a compaction has ended."""

    def committed(self, events: Iterable[Event], runs: Iterable[RunRecord]) -> None:
        """Send what a commit that was stored means for the cache."""
        with self._quietly():
            if (hints := self._hints) is None:
                return
            kinds = {type(event) for event in events}
            if ApprovalRequested in kinds:
                if any(run.state == "awaiting_approval" for run in runs):
                    self._drop(hints)
            elif ToolStarted in kinds:
                self._send("hold", partial(hints.hold, self._key, HOLD_S))
            elif CallDecided in kinds and any(run.state == "running" for run in runs):
                self._send("prefetch", partial(hints.prefetch, self._key))
            if WindowCompacted in kinds:
                self._drop(hints)

    def compacting(self) -> None:
        """Say that the window is about to be compacted. Call `compacted` when that has ended, however it did."""
        with self._quietly():
            if (hints := self._hints) and self._has_own_prefix:
                self._lowered = self._key
                self._send("prioritize", partial(hints.prioritize, self._lowered, -1))

    def compacted(self) -> None:
        """Say that the compaction has ended, so that what begins alike from now on counts as before."""
        with self._quietly():
            key, self._lowered = self._lowered, ""
            if key and (hints := self._hints):
                self._send("prioritize", partial(hints.prioritize, key, 0))

    def forked(self) -> None:
        """Say that another session shares this one's prefix."""
        with self._quietly():
            if hints := self._hints:
                self._send("prioritize", partial(hints.prioritize, self._key, 1))

    def _drop(self, hints: CacheHints) -> None:
        if self._has_own_prefix:
            self._send("drop", partial(hints.drop, self._key))

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """Log what is raised, such as by the `frame` of a user's engine: what is hinted at has happened already."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a hint is for speed only
            _log.warning("session %s: a hint was not sent: %r", self._state.key.full_name, error)

    @property
    def _hints(self) -> CacheHints | None:
        run = self._state.active
        return (run.run_resources if run else self._engines.current).hints

    @property
    def _spans(self) -> Spans:
        turn = self._state.active.turn if self._state.active else self._state.head
        return turn.spans if turn else ()

    @property
    def _key(self) -> str:
        session = self._state.journal.session
        return prefix_key(self._spans, session.log, session.inherited.prefix_key)

    @property
    def _has_own_prefix(self) -> bool:
        """Whether its requests begin with a block of its own: not those of a fork, nor of an agent like its caller."""
        session = self._state.journal.session
        return not session.inherited.prefix_key and all(span.log == session.log for span in self._spans[:1])

    def _send(self, name: str, send: _Send) -> None:
        self._waiting.append((name, send))
        if self._sending is None or self._sending.done():
            self._sending = self._tasks.spawn_logged(self._send_all(), "sending hints")

    async def _send_all(self) -> None:
        while self._waiting:
            name, send = self._waiting.popleft()
            try:
                async with asyncio.timeout(HINT_S):
                    await send()
            except Exception as error:  # noqa: BLE001 - a hint is for speed only, and says nothing of the run
                _log.warning("session %s: the hint %r was not sent: %r", self._state.key.full_name, name, error)
