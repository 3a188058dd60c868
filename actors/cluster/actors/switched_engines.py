"""The setups that running sessions switched to, so that restarted actors keep them.

A setup is a `SessionSetup`, pickled; "engine" and "engine id" here mean a setup and its id. Ray restarts an actor with
its original arguments. So later setups are noted in Ray's key-value store, when a session first switches, or when its
process leaves while a run waits. They are lost with the cluster, as the sessions' processes are.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from operator import itemgetter

from turnwise.actors.cluster.actor_settings import (
    Kept,
    SettingsLostError,
    drop_notes,
    keep,
    note,
    notes,
    read_settings,
)
from turnwise.actors.hosting.engine_override import EngineOverride
from turnwise.actors.wire_version import packed, unpacked
from turnwise.memory.background import log_failure
from turnwise.memory.conversation.sessions import SessionKey

MOST_NOTED = 64
"""How many engines of senders are noted for a namespace."""


async def save_override(
    namespace: str, key: str, session: SessionKey, override: EngineOverride, engines: Mapping[str, bytes]
) -> None:
    """Note which engines a session has; after return this survives the session's process and its node.

    Args:
        key: of the actor that hosts the session. For a dedicated one it is its name, so that the session's next actor
            finds its engines, whichever manager creates it; for a packed host it is its actor id.
        engines: the pickled engines by id. Each is stored once.
    """
    await asyncio.wrap_future(_THREAD.submit(_save, namespace, key, session, override, engines))


def find_overrides(namespace: str, key: str) -> tuple[dict[SessionKey, EngineOverride], dict[str, bytes]]:
    """Return the engines of an actor's sessions, by session, and the pickled engines by id. Blocks."""
    noted = [unpacked(note_bytes) for note_bytes in notes(_name(namespace, key))]
    noted.sort(key=itemgetter(0))  # a process that died while it wrote one may have left the earlier one, too
    stored_engines: dict[str, Kept] = {
        engine_id: stored for *_, engines in noted for engine_id, stored in engines.items()
    }
    overrides: dict[SessionKey, EngineOverride] = {session: override for _, session, override, _ in noted}
    return overrides, {engine_id: read_settings(stored) for engine_id, stored in stored_engines.items()}


def drop_overrides(namespace: str, key: str, session: SessionKey | None = None) -> Future[None]:
    """Forget an actor that leaves, or a session that has left it; return the future of that. A failure is logged."""
    return _THREAD.submit(_drop, namespace, key, session)


def note_engine(namespace: str, engine_id: str, engine: bytes) -> None:
    """Note a pickled engine, so that the namespace's processes find it by its id. Blocks.

    It is for sessions that this process's sessions send something to. The `MOST_NOTED` that were noted last stay.
    """
    kept = keep(engine)
    note(_engine_name(namespace, engine_id), packed((time.time(), engine_id, kept)), [kept])
    noted = sorted(unpacked(note_bytes)[:2] for note_bytes in notes(_engine_name(namespace)))
    for _, earlier_id in noted[:-MOST_NOTED]:
        drop_notes(f"{_engine_name(namespace, earlier_id)}/")


def find_engine(namespace: str, engine_id: str) -> bytes | None:
    """Return the pickled engine that a process of a namespace has noted; None if it is noted no longer. Blocks."""
    for note_bytes in notes(f"{_engine_name(namespace, engine_id)}/"):
        with suppress(SettingsLostError):
            return read_settings(unpacked(note_bytes)[2])
    return None


_THREAD = ThreadPoolExecutor(1, thread_name_prefix="turnwise-overrides")
"""One thread, so that what is saved and dropped one after the other stays so."""


def _save(
    namespace: str, key: str, session: SessionKey, override: EngineOverride, engines: Mapping[str, bytes]
) -> None:
    stored_engines = {engine_id: keep(engine) for engine_id, engine in engines.items()}
    value = packed((time.time(), session, override, stored_engines))
    note(_name(namespace, key, session), value, list(stored_engines.values()))


def _drop(namespace: str, key: str, session: SessionKey | None) -> None:
    try:
        drop_notes(_name(namespace, key, session))
    except Exception as error:  # noqa: BLE001 - a note that stays takes some bytes
        log_failure("dropping a note of engines", error)


def _engine_name(namespace: str, engine_id: str = "") -> str:
    return f"engines/{hashlib.sha256(namespace.encode()).hexdigest()[:32]}/{engine_id}"


def _name(namespace: str, key: str, session: SessionKey | None = None) -> str:
    """Return the name of the note of a session, or the beginning of those of all sessions of an actor."""
    actor = hashlib.sha256(f"{namespace}\n{key}".encode()).hexdigest()[:32]
    name = (
        "" if session is None else hashlib.sha256("\0".join(session).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    )
    return f"overrides/{actor}/{name}"
