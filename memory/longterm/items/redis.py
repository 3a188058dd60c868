"""`RedisItems`: memory items in Redis."""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from turnwise.errors import ConfigError, CorruptRecordError
from turnwise.memory.conversation.codec import to_json
from turnwise.memory.longterm.base import MemoryItem, Scope
from turnwise.memory.longterm.items.base import ALL, SPACE, Change, ItemFilter, StoredItem
from turnwise.memory.longterm.items.changes import replacement
from turnwise.memory.longterm.items.redis_scripts import KEYS, SCRIPTS
from turnwise.memory.longterm.items.rows import COLUMNS, UNREADABLE, decoded, values_of
from turnwise.memory.longterm.items.rules import (
    check_turn,
    checked_item,
    checked_space,
    owner_after,
    owner_of,
    parse_position,
)
from turnwise.memory.longterm.memory_types import MemoryType
from turnwise.memory.longterm.retention.retention import Use
from turnwise.memory.stores.base import Page, check_limit, cursor_of, parse_cursor
from turnwise.memory.stores.redis.database import Argument, RedisDatabase, encode
from turnwise.memory.values.corrupt_records import why_unreadable
from turnwise.memory.values.ids import digest_of
from turnwise.memory.values.required_arguments import needs


@needs(url="pass where it is, such as RedisItems('redis://localhost')")
class RedisItems(RedisDatabase):
    """Keeps items in Redis, 6.2 or later. See `RedisDatabase` for their durability.

    The key of an item is a digest of its user's id and its own id; ids, texts and times are JSON. All keys share a hash
    tag, since calls for all users are transactions too. So on a cluster, all items of a space are on one node.

    Filters are applied after reading, so `query`, and `delete` without ids, cost O(all items of the user). An item that
    cannot be read can be deleted with all others of its user; its digest is returned in place of its id.

    Args:
        url: `redis://user:password@host:6379/0`, or `rediss://` for TLS, with the options of redis-py.
        prefix: the prefix of all keys. Stores with different prefixes in one database do not see each other's
            items.
        space: stores with different spaces do not see each other's items; see `ItemStore`.
        timeout_s: how long to wait for a connection, and for an answer, before a StoreError, in seconds.
        connections: the most connections at once; further calls wait for one.

    Raises:
        StoreURLError: the URL is not of Redis, or the client is not installed.
        ConfigError: a setting is out of range.
    """

    scripts = SCRIPTS

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "turnwise",
        space: str = SPACE,
        timeout_s: float = 30.0,
        connections: int = 8,
    ) -> None:
        super().__init__(url, prefix=prefix, timeout_s=timeout_s, connections=connections)
        self._space = checked_space(space)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._settings, space=self._space), ()

    async def put(self, scope: Scope, items: Sequence[MemoryItem], *, at: float | None = None) -> list[str]:
        items = [checked_item(scope, item) for item in items]
        names = {_digest(scope.user_id, item.id): item.id for item in items}
        rows = [value for item in items for value in _row(scope, item, owner_of(scope, item.type))]
        if not rows:
            self._thread.check_open()
            return []
        return [names[digest] for digest in _texts(await self._do("put", _tag(scope.user_id), _used(at), *rows))]

    async def get(self, scope: Scope, ids: Collection[str]) -> dict[str, MemoryItem]:
        answer = await self._do("get", *(_digest(scope.user_id, name) for name in ids), again=True)
        items = {
            stored.item.id: stored.item for stored, _ in self._items(answer) if stored.agent in (None, scope.agent)
        }
        return {name: items[name] for name in ids if name in items}

    async def query(
        self, scope: Scope, which: ItemFilter = ALL, *, cursor: str | None = None, limit: int = 100
    ) -> Page[MemoryItem]:
        args = _filters(scope, which, cursor, check_limit(limit) + 1)
        rows = list(self._items(await self._do("query", *args, again=True)))
        page = [stored.item for stored, _ in rows[:limit]]
        more = cursor_of(page[-1].created_at, rows[limit - 1][1]) if len(rows) > limit else None
        return Page(tuple(page), more)

    async def change(
        self, scope: Scope, id: str, change: Change, *, at: float | None = None, successor: MemoryItem | None = None
    ) -> MemoryItem | None:
        after: tuple[Argument, ...] = ()
        if successor is not None:
            successor = checked_item(scope, successor)
            after = _row(scope, successor, owner_of(scope, successor.type))
        digest = _digest(scope.user_id, id)
        while True:
            answer = await self._do("get", digest, again=True)
            old = next((stored for stored, _ in self._items(answer)), None)
            if old is not None and old.agent not in (None, scope.agent):
                return None
            item = None if old is None else old.item
            new = replacement(scope, id, change, item)
            if new is None:
                return item
            agent = owner_of(scope, new.type) if old is None else owner_after(scope, old.agent, old.item.type, new.type)
            read = answer[1:3] if answer else (b"", b"")
            args = (_tag(scope.user_id), "" if at is None else float(at), _used(None), *read)
            done = await self._do("change", *args, *_row(scope, new, agent), *after)
            if done != _CHANGED_MEANWHILE:
                return new if done else item

    async def delete(
        self, scope: Scope, ids: Collection[str] | None = None, *, turn_index: int | None = None
    ) -> list[str]:
        check_turn(scope.session_id, turn_index, ids)
        if ids is None:
            which = _origin(scope.session_id, turn_index)
            return _texts(await self._do("purge", _tag(scope.user_id), *which))
        names = {_digest(scope.user_id, name): name for name in ids}
        return [names[digest] for digest in _texts(await self._do("delete", _agent(scope), *names))]

    async def delete_sessions(self, sessions: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
        """See `SessionsDeletion`. A script has as many users as have about `_READ` items, all of which it reads."""
        deleted: dict[str, list[str]] = {}
        users = sorted(sessions)
        while left := users[len(deleted) :]:
            args: list[Argument] = [_READ]
            for user_id in left:
                args += [_tag(user_id), len(sessions[user_id]), *map(encode, sessions[user_id])]
            ids = await self._do("purge_sessions", *args)
            deleted |= zip(left, map(_texts, ids), strict=False)
        return deleted

    async def touch(self, uses: Sequence[Use]) -> None:
        self._thread.check_open()
        for use in uses:
            digests = (_digest(use.user_id, name) for name in use.ids)
            await self._do("touch", float(use.at), "1" if use.counts else "", *digests, again=True)

    async def sweep(
        self, before: float, *, types: Collection[MemoryType] | None = None, limit: int = 1000
    ) -> dict[str, list[str]]:
        names = _texts(await self._do("sweep", float(before), _kinds(types), check_limit(limit)))
        swept: dict[str, list[str]] = {}
        for user_id, name in zip(names[::2], names[1::2], strict=True):
            swept.setdefault(user_id, []).append(name)
        return swept

    async def scan(
        self, user_id: str | None = None, *, cursor: str | None = None, limit: int = 1000
    ) -> Page[StoredItem]:
        tag = "" if user_id is None else _tag(user_id)
        after = parse_position(cursor)
        rows = list(self._items(await self._do("scan", tag, after, check_limit(limit) + 1, again=True)))
        page = tuple(stored for stored, _ in rows[:limit])
        return Page(page, str(rows[limit - 1][1]) if len(rows) > limit else None)

    async def _do(self, name: str, *args: Argument, again: bool = False) -> Any:
        keys = [f"{{{self._prefix}:{self._space}}}:{key}" for key in KEYS]
        return await self._run(name, keys, args, again=again)

    def _items(self, answer: Sequence[Any]) -> Iterator[tuple[StoredItem, int]]:
        """Yield the items that a script returned, each with its number of insertion."""
        for digest, raw, text in zip(answer[::3], answer[1::3], answer[2::3], strict=True):
            try:
                yield _read(digest.decode(), raw, text)
            except UNREADABLE as error:
                key = f"{{{self._prefix}:{self._space}}}:{KEYS[0]} {digest.decode()}"
                raise CorruptRecordError(key, why_unreadable(error)) from None


_READ = 1000
"""After how many items a script begins with no further user, so that others need not wait for long."""

_CHANGED_MEANWHILE = 2
"""The script of a change returns this if the item has changed since it was read for the change."""


def _digest(user_id: str, id: str) -> str:
    return digest_of(user_id, id).hex()


def _tag(user_id: str) -> str:
    """Return the digest of a user. It differs from the digests of items, since no item's id is blank."""
    return _digest(user_id, "")


def _agent(scope: Scope) -> bytes:
    return encode(scope.agent or "")


def _used(used_at: float | None) -> float:
    used = time.time() if used_at is None else float(used_at)
    if math.isnan(used):
        raise ConfigError("at", used_at, "is not a time")
    return used


def _sortable(time_s: float) -> str:
    """Return 16 digits that sort like times."""
    (bits,) = struct.unpack(">Q", struct.pack(">d", float(time_s) + 0.0))  # + 0.0: there are two zeros
    return f"{bits ^ (2**64 - 1) if bits >> 63 else bits | 2**63:016x}"


def _json(value: Any) -> str:
    return str(to_json(value))


def _kinds(types: Collection[MemoryType] | None) -> str:
    return "" if types is None else f"|{'|'.join(map(str, types))}|"


def _origin(session_id: str | None, turn_index: int | None) -> tuple[bytes, str]:
    session = b"" if session_id is None else encode(f"={session_id}")
    return session, "" if turn_index is None else str(turn_index)


def _filters(scope: Scope, which: ItemFilter, cursor: str | None, limit: int) -> list[Argument]:
    tag = _tag(scope.user_id)
    end = f"{tag}~"
    if cursor is not None:
        before, last = parse_cursor(cursor)
        end = f"{tag}{_sortable(before)}{last:016d}"
    if which.as_of is not None:
        end = min(end, f"{tag}{_sortable(which.as_of)}~")
    times = (which.as_of, which.used_since, which.live_at)
    as_of, used_since, live_at = ("" if moment is None else str(float(moment)) for moment in times)
    session, turn = _origin(which.session_id, which.turn_index)
    first: list[Argument] = [tag, _agent(scope), f"({end}", limit, _kinds(which.types)]
    return [*first, session, turn, as_of, "1" if which.superseded else "", used_since, live_at]


def _row(scope: Scope, item: MemoryItem, agent: str | None) -> tuple[Argument, ...]:
    """Return the arguments by which a script writes an item of this agent."""
    successor = "" if item.superseded_by is None else _digest(scope.user_id, item.superseded_by)
    columns = zip(COLUMNS, values_of(item, agent), strict=True)
    record = {name: str(value) for name, value in columns if value is not None and name != "text"}
    record["pinned"] = str(int(item.pinned))
    record["user"] = scope.user_id
    if successor:
        record["successor"] = successor
    return _digest(scope.user_id, item.id), _json(record), _json(item.text), _sortable(item.created_at), successor


def _read(digest: str, raw: bytes, text: bytes) -> tuple[StoredItem, int]:
    """Return an item and its number of insertion; raise ValueError, TypeError or KeyError if the record is damaged."""
    record, item_text = json.loads(raw), json.loads(text)
    if not (isinstance(record, dict) and all(isinstance(value, str) for value in (item_text, *record.values()))):
        raise TypeError("a value is not text")
    place, number = record["place"][:-16], int(record["place"][-16:])
    expected = _tag(record["user"]) + _sortable(float(record["created_at"]))
    if _digest(record["user"], record["id"]) != digest or place != expected:
        raise ValueError(f"item {record['id']!r} of user {record['user']!r} has another place")
    item = decoded([*map((record | {"text": item_text}).get, COLUMNS)])
    return StoredItem(record["user"], record.get("agent"), item), number


def _texts(answer: Sequence[bytes]) -> list[str]:
    return [text.decode() for text in answer]
