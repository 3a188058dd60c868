"""Settings of actors, kept where a restarted actor finds them: no program, process or node that made it need be left.

Ray keeps an actor's constructor arguments in the actor's own record while they are small. Larger ones become an object
of the program that created the actor, and are lost with it. So large settings are put into Ray's internal key-value
store, which lives as long as the actors' records do, and the constructor gets their key. No other place does: detached
actors end with their nodes, and the session store may be away, may need these settings to be opened, or is no place for
the keys of providers.

This module imports nothing heavy, since every new session process waits for its imports.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import ray
from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_exists,
    _internal_kv_get,
    _internal_kv_list,
    _internal_kv_put,
)

from turnwise.actors.cluster.actor_names import detached_actor, find_actor
from turnwise.actors.wire_version import packed

INLINE_BYTES = 64 << 10
"""Settings of up to this size are in the actor's record. Ray moves arguments of 100 KB and more out of it."""

PART_BYTES = 1 << 20
"""The size of the parts in which larger settings are kept."""

GRACE_S = 600.0
"""How long settings stay after a process last asked for them, in seconds, whether or not an actor uses them: so long
that the actor for which they were asked has a record by then, whichever node's clock is compared."""

DEAD_S = 86_400.0
"""How long a process may take to delete settings, in seconds, before it counts as dead."""

LABEL = "turnwise.settings"
"""The label in an actor's record that has the key of its settings. It goes with the record."""

SPACE = b"turnwise"
"""The namespace in Ray's key-value store."""

_STATES = ("DEPENDENCIES_UNREADY", "PENDING_CREATION", "RESTARTING", "ALIVE", "RESTARTING")
"""The states of actors that are not dead, in the order in which an actor passes through them."""


@dataclass(frozen=True)
class Kept:
    """The key of settings in Ray's key-value store."""

    key: str


class SettingsLostError(LookupError):
    """The settings of an actor are not in Ray's key-value store any more."""


class ActorSettings:
    """The pickled settings of actors that this process creates. Several actors with the same settings share them."""

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled
        self._is_large = len(pickled) > INLINE_BYTES
        self._digest = hashlib.sha256(pickled).hexdigest()[:32] if self._is_large else ""

    def keep(self) -> bytes | Kept:
        """Return what a constructor gets: the settings themselves, or their key if they are large. Blocks.

        They are uploaded unless they are there, and stay for `GRACE_S` and then as long as an actor has the label.
        """
        return Kept(_keep(self._digest, self._pickled)) if self._is_large else self._pickled

    def actor(self, body: type, name: str, namespace: str, *args: Any, **options: Any) -> Any:
        """Return the named, detached actor; if there is none, create one, which gets these settings first.

        Does not wait for its start. Blocks until Ray has its record.

        Args:
            args: what the actor gets beside them; small. All of it is one argument of the constructor, which `started`
                reads: Ray would compare no versions.
            options: further options of Ray.
        """
        if self._is_large:
            if (actor := find_actor(namespace, name)) is not None:
                return actor
            settings = self.keep()
            options["_labels"] = {LABEL: settings.key} if isinstance(settings, Kept) else {}
            return detached_actor(body, name, namespace, **options).remote(packed((settings, *args)))
        return detached_actor(body, name, namespace, **options).remote(packed((self._pickled, *args)))


def keep(data: bytes) -> Kept:
    """Put settings of any size where `read_settings` finds them; blocks. They stay for `GRACE_S`, then as notes say."""
    return Kept(_keep(hashlib.sha256(data).hexdigest()[:32], data))


def note(name: str, value: bytes, settings: Collection[Kept]) -> None:
    """Store a note that settings are needed, in place of the earlier one of this name. Blocks.

    The settings stay until the note is dropped.

    Args:
        name: such as `overrides/<actor>/<session>`.
        value: what the note says.
        settings: the settings.
    """
    earlier = _list(f"notes/{name}/")
    now = f"notes/{name}/{','.join(sorted(setting.key for setting in settings))}"  # so that a sweep only lists them
    _internal_kv_put(now, value, namespace=SPACE)
    for earlier_name in earlier:
        if earlier_name != now:
            _internal_kv_del(earlier_name, namespace=SPACE)


def notes(prefix: str) -> list[bytes]:
    """Return what the notes whose names begin so say. Blocks."""
    values = (_internal_kv_get(name, namespace=SPACE) for name in _list(f"notes/{prefix}"))
    return [value for value in values if value is not None]


def drop_notes(prefix: str) -> None:
    """Drop the notes whose names begin so. Blocks."""
    _internal_kv_del(f"notes/{prefix}", del_by_prefix=True, namespace=SPACE)


def read_settings(settings: bytes | Kept) -> bytes:
    """Return the settings that a constructor got. Blocks.

    Raises:
        SettingsLostError: they are not there any more.
    """
    if isinstance(settings, bytes):
        return settings
    count = get_entry(settings.key, "count")
    parts = [get_entry(settings.key, f"part-{number}") for number in range(int(count or 0))]
    if count is None or None in parts:
        raise SettingsLostError(f"settings {settings.key} are not in Ray's key-value store any more")
    return b"".join(part for part in parts if part is not None)


def _keep(digest: str, data: bytes) -> str:
    """Upload settings unless they are there; return their key.

    This process first says that it asks for them, and then looks whether they are being deleted; `_sweep` does both in
    the other order. So either they are not deleted, or this process knows and chooses another key.
    """
    key = digest
    put_entry(key, "asked", _now())
    if entry_names(f"{key}/doomed-"):
        key = f"{digest}-{secrets.token_hex(4)}"
        put_entry(key, "asked", _now())
    if not _exists(key, "count"):
        parts = range(0, len(data), PART_BYTES)
        for number, start in enumerate(parts):
            put_entry(key, f"part-{number}", data[start : start + PART_BYTES])
        put_entry(key, "count", str(len(parts)).encode())  # last, so that what has a count is whole
        sweep_settings()
    return key


def sweep_settings() -> None:
    """Delete settings that no actor has and nobody has asked for since `GRACE_S`. Blocks.

    Called when settings are added, so only settings that actors use, or that were read recently, take space.
    """
    keys = {key for _, key, _ in map(_parts_of, entry_names(""))}
    stale = [key for key in keys if _is_stale(key)]
    if not stale:
        return
    used = _keys_in_use()
    mark = f"doomed-{secrets.token_hex(4)}"  # its own, so that no other process takes it away
    for key in stale:
        if key in used:
            continue
        put_entry(key, mark, _now())
        if _is_stale(key) and key not in _keys_in_use():
            delete_entry(key, "count")  # first, and the mark last: half-deleted settings have no count, or a mark
            delete_entry(key, "part-", by_prefix=True)
            delete_entry(key, "asked")
            for entry in entry_names(f"{key}/doomed-"):  # by a process that died meanwhile
                _, _, doomed = _parts_of(entry)
                if float(get_entry(key, doomed) or 0) < time.time() - DEAD_S:
                    delete_entry(key, doomed)
        delete_entry(key, mark)


def _parts_of(name: str) -> tuple[str, str, str]:
    """Return the parts of `settings/<key>/<suffix>`."""
    space, key, suffix = name.split("/")
    return space, key, suffix


def _is_stale(key: str) -> bool:
    asked_at = get_entry(key, "asked")
    return asked_at is None or float(asked_at) < time.time() - GRACE_S


def _keys_in_use() -> set[str]:
    """Return the keys in notes, and those in the labels of the actors that are not dead."""
    from ray.core.generated import gcs_pb2

    records: Any = ray._private.state.state._connect_and_get_accessor()  # noqa: SLF001 - no other way to labels
    labels = (
        gcs_pb2.ActorTableData.FromString(record).labels.get(LABEL)  # type: ignore[attr-defined]
        for state in _STATES
        for record in records.get_actor_table(None, state)
    )
    noted = (key for name in _list("notes/") for key in name.rpartition("/")[2].split(","))
    return {key for key in (*labels, *noted) if key}


def _now() -> bytes:
    return repr(time.time()).encode()


def entry_names(prefix: str) -> list[str]:
    return _list(f"settings/{prefix}")


def _list(prefix: str) -> list[str]:
    return [name.decode() for name in _internal_kv_list(prefix, namespace=SPACE)]


def _name(key: str, suffix: str) -> str:
    return f"settings/{key}/{suffix}"


def put_entry(key: str, suffix: str, value: bytes) -> None:
    _internal_kv_put(_name(key, suffix), value, namespace=SPACE)


def get_entry(key: str, suffix: str) -> bytes | None:
    return _internal_kv_get(_name(key, suffix), namespace=SPACE)


def _exists(key: str, suffix: str) -> bool:
    return _internal_kv_exists(_name(key, suffix), namespace=SPACE)


def delete_entry(key: str, suffix: str, *, by_prefix: bool = False) -> None:
    _internal_kv_del(_name(key, suffix), del_by_prefix=by_prefix, namespace=SPACE)
