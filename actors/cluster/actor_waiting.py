"""`Reach`: how long a caller waits for an actor that has no process, and how it learns that there is none.

Ray keeps a call for as long as it takes to start the actor's process, also where that never succeeds. So a caller that
waits for an answer asks Ray now and then whether the actor has a process, and gives up after `REACH_S` seconds without
one.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayTaskError

REACH_S = 60.0
"""How long a caller waits for an actor without a process, in seconds."""

LOOK_S = 15.0
"""How long an answer may take before the caller looks whether there is a process, in seconds; longer than a wait."""

AGAIN_S = 1.0
"""How long after that it looks again while there is none, in seconds."""


@dataclass(frozen=True)
class Presence:
    """Whether an actor has a process, as far as Ray knows."""

    is_up: bool
    pid: int
    """The id of the process."""
    why: str
    """The actor's name, its state, and why its last process ended, for an error."""


class NoProcessError(Exception):
    """An actor has had no process for `REACH_S` seconds."""


class Reach:
    """Decides how long to wait for one answer. Times are those of one monotonic clock, in seconds.

    Args:
        now: when the call is made.
        since: since when no process has been reached, if earlier calls of the same request failed.
        until: when the caller gives up in any case; never if omitted.
    """

    __slots__ = ("_look_at", "_since", "_until")

    def __init__(self, now: float, *, since: float | None = None, until: float | None = None) -> None:
        self._since = now if since is None else since
        self._until = until
        self._look_at = min(now + LOOK_S, self._since + REACH_S)

    def pause(self, now: float) -> float:
        """Return how long to wait for the answer, in seconds, before the next look."""
        return max(0.0, (self._look_at if self._until is None else min(self._look_at, self._until)) - now)

    def is_late(self, now: float) -> bool:
        """Return whether the caller's own time is over."""
        return self._until is not None and now >= self._until

    def note(self, now: float, presence: Presence) -> None:
        """Take in what Ray says.

        Raises:
            NoProcessError: there has been no process for `REACH_S` seconds.
        """
        if presence.is_up:
            self._since, self._look_at = now, now + LOOK_S
        elif now - self._since >= REACH_S:
            raise NoProcessError(f"{presence.why}: no process for {REACH_S:g} s")
        else:
            self._look_at = min(now + AGAIN_S, self._since + REACH_S)


def presence(actor: Any) -> Presence:
    """Return whether Ray says that an actor has a process. Blocks, unless Ray was asked a moment ago."""
    actor_id = actor._actor_id.hex()  # noqa: SLF001 - no other way
    entry = _presences.get(actor_id)
    now = time.monotonic()
    asked_at, state = entry or (0.0, None)
    if state is None or asked_at < now - AGAIN_S / 2:
        if len(_presences) > _MANY:
            _presences.clear()
        state = _ask_ray(actor_id)
        _presences[actor_id] = now, state
    return state


def _ask_ray(actor_id: str) -> Presence:
    try:
        record = ray._private.state.actors(actor_id)  # noqa: SLF001 - the public way needs the dashboard
    except Exception as error:  # noqa: BLE001 - it raises classes of several kinds where Ray itself is away
        return Presence(False, 0, f"Ray does not say where actor {actor_id} is ({type(error).__name__}: {error})")
    if not record:
        return Presence(False, 0, f"Ray knows no actor {actor_id}")
    state, cause = record["State"], " ".join(str(record["DeathCause"] or "").split())[:_CAUSE]
    reason = f"Ray's actor {record['Name'] or actor_id} is {state}"
    reason += f" after {record['NumRestarts']} restarts" if record["NumRestarts"] else ""
    return Presence(state == "ALIVE", record["Pid"], f"{reason} ({cause})" if cause else reason)


def answer(actor: Any, ref: Any, reach: Reach) -> Any:
    """Wait for the answer of an actor's call, blocking.

    Raises:
        NoProcessError: see `Reach`.
        GetTimeoutError: the caller's own time is over.
        RayError: what Ray raises.
    """
    while True:
        try:
            return ray.get(ref, timeout=reach.pause(time.monotonic()))
        except GetTimeoutError as error:
            if isinstance(error, RayTaskError) or reach.is_late(time.monotonic()):
                raise
        reach.note(time.monotonic(), presence(actor))


async def answer_async(actor: Any, ref: asyncio.Future[Any], reach: Reach) -> Any:
    """Wait for the answer of an actor's call on the running event loop; see `answer`. Cancelling cancels `ref`."""
    try:
        while not ref.done():
            await asyncio.wait((ref,), timeout=reach.pause(time.monotonic()))
            if ref.done():
                break
            if reach.is_late(time.monotonic()):
                raise GetTimeoutError("the caller's time is over")
            state = await asyncio.to_thread(presence, actor)
            reach.note(time.monotonic(), state)
        return ref.result()
    finally:
        ref.cancel()


def calls_of(actor: Any, *, is_repeated: bool) -> Any:
    """Return the actor's method `call`. If the actor dies, Ray repeats the call (`is_repeated`), or the call fails."""
    return actor.call if is_repeated else actor.call.options(max_task_retries=0)


async def reached(actor: Any, ref: Any) -> Any:
    """Wait for the answer of an actor's call, for as long as the actor has a process or may soon have one.

    Raises:
        NoProcessError: see `Reach`.
        RayError: what Ray raises.
    """
    return await answer_async(actor, asyncio.wrap_future(ref.future()), Reach(time.monotonic()))


_presences: dict[str, tuple[float, Presence]] = {}
"""What Ray said last, and when, by actor id."""

_MANY = 1_000
_CAUSE = 500
"""How many characters of Ray's words an error has at most."""
