"""Waiting for the answer of an actor's call, as long as the actor has a process or may soon have one: see `Reach`."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayTaskError
from ray.experimental.internal_kv import _internal_kv_exists

from turnwise.actors.cluster.actor_settings import SPACE
from turnwise.actors.hosting.reach import AGAIN_S, Presence, Reach


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
        # Where another Ray has come in the place of this one, this raises, and the line below would abort the process.
        _internal_kv_exists("any", namespace=SPACE)
        record = ray._private.state.actors(actor_id)  # noqa: SLF001 - the public way needs the dashboard
    except Exception as error:  # noqa: BLE001 - it raises classes of several kinds where Ray itself is away
        if "WrongClusterID" in str(error):  # Ray has no class of its own for it
            return Presence(False, 0, "this program's Ray has ended, another is in its place: start the program again")
        return Presence(False, 0, f"Ray does not say where actor {actor_id} is ({type(error).__name__}: {error})")
    if not record:
        return Presence(False, 0, f"Ray knows no actor {actor_id}")
    state, cause = record["State"], " ".join(str(record["DeathCause"] or "").split())[:_CAUSE]
    reason = f"Ray's actor {record['Name'] or actor_id} is {state}"
    reason += f" after {record['NumRestarts']} restarts" if record["NumRestarts"] else ""
    why = f"{reason} ({cause})" if cause else reason
    return Presence(state == "ALIVE", record["Pid"], why, is_coming=state in _COMING)


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


async def reached(actor: Any, ref: Any) -> Any:
    """Wait for the answer of an actor's call, for as long as the actor has a process or may soon have one.

    Raises:
        NoProcessError: see `Reach`.
        RayError: what Ray raises.
    """
    return await answer_async(actor, asyncio.wrap_future(ref.future()), Reach(time.monotonic()))


_presences: dict[str, tuple[float, Presence]] = {}
"""What Ray said last, and when, by actor id."""

_COMING = ("DEPENDENCIES_UNREADY", "PENDING_CREATION", "RESTARTING")
"""The states of actors that have no process, and get one."""

_MANY = 1_000
_CAUSE = 500
"""How many characters of Ray's words an error has at most."""
