"""`RedisFacts`: facts in Redis."""

from __future__ import annotations

import json
import math
import struct
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Unpack

from turnwise.errors import ConfigError, CorruptRecordError
from turnwise.memory.conversation.codec import to_json
from turnwise.memory.conversation.corrupt_records import why_unreadable
from turnwise.memory.conversation.ids import digest_of
from turnwise.memory.conversation.required_arguments import needs
from turnwise.memory.longterm.base import ItemChanges, MemoryItem, Scope
from turnwise.memory.longterm.items.base import (
    ALL,
    SEMANTIC,
    Fact,
    FactFilter,
    changed,
    check_change,
    check_successor,
    check_turn,
    checked_item,
    owner_of,
    parse_position,
)
from turnwise.memory.longterm.items.records import changeable, fields_of, item_of
from turnwise.memory.longterm.items.redis_scripts import KEYS, SCRIPTS
from turnwise.memory.longterm.types import MemoryType
from turnwise.memory.stores.base import Page, check_limit, cursor_of, parse_cursor
from turnwise.memory.stores.redis.database import Argument, RedisDatabase, encode


@needs(url="pass where it is, such as RedisFacts('redis://localhost')")
class RedisFacts(RedisDatabase):
    """Keeps facts in Redis, 6.2 or later. See `RedisDatabase` for their durability.

    The key of a fact is a digest of its user's id and its own id; ids, texts and times are JSON. All keys share a hash
    tag, since calls for all users are transactions too. So on a cluster, all facts of a prefix are on one node.

    Filters are applied after reading, so `query`, `count` and `purge` cost O(all facts of the user). A fact that cannot
    be read can be deleted by a `purge` of its user, which returns its digest in place of its id.

    Args:
        url: `redis://user:password@host:6379/0`, or `rediss://` for TLS, with the options of redis-py.
        prefix: the prefix of all keys. Stores with different prefixes in one database do not see each other's facts.
        timeout_s: how long to wait for a connection, and for an answer, before a StoreError, in seconds.
        connections: the most connections at once; further calls wait for one.

    Raises:
        StoreURLError: the URL is not of Redis, or the client is not installed.
        ConfigError: a setting is out of range.
    """

    scripts = SCRIPTS

    async def put(self, scope: Scope, items: Sequence[MemoryItem], *, at: float | None = None) -> list[str]:
        items = [checked_item(scope, item) for item in items]
        names = {_digest(scope.user_id, item.id): item.id for item in items}
        rows = [value for item in items for value in _row(scope, item)]
        if not rows:
            self._thread.check_open()
            return []
        return [names[digest] for digest in _texts(await self._do("put", _tag(scope.user_id), _used(at), *rows))]

    async def get(self, scope: Scope, ids: Collection[str]) -> dict[str, MemoryItem]:
        found = await self._do("get", *(_digest(scope.user_id, name) for name in ids), again=True)
        items = {fact.item.id: fact.item for fact, _ in self._facts(found) if fact.agent in (None, scope.agent)}
        return {name: items[name] for name in ids if name in items}

    async def query(
        self, scope: Scope, which: FactFilter = ALL, *, cursor: str | None = None, limit: int = 100
    ) -> Page[MemoryItem]:
        args = _filters(scope, which, cursor, check_limit(limit) + 1)
        found = list(self._facts(await self._do("query", *args, "", again=True)))
        page = [fact.item for fact, _ in found[:limit]]
        more = cursor_of(page[-1].created_at, found[limit - 1][1]) if len(found) > limit else None
        return Page(tuple(page), more)

    async def count(self, scope: Scope, which: FactFilter = ALL) -> int:
        return int(await self._do("query", *_filters(scope, which, None, _MANY), "count", again=True))

    async def update(
        self,
        scope: Scope,
        id: str,
        text: str | None = None,
        *,
        at: float,
        type: MemoryType | None = None,
        **changes: Unpack[ItemChanges],
    ) -> bool:
        kind, more = check_change(scope, id, text, type, at=at, changes=changes)
        digest = _digest(scope.user_id, id)
        while found := await self._do("get", digest, again=True):
            ((fact, _),) = self._facts(found)
            item = changed(fact.item, text, kind, at, more)
            parts = [
                part
                for name, value in _strings(changeable(item)).items()
                for part in (name, "" if value is None else f"={value}")
            ]
            first = (_agent(scope), _json(item.text), float(at), kind or "", _kinds(SEMANTIC))
            args = (*first, found[1], found[2], *map(encode, parts))
            if (done := await self._do("update", digest, *args, again=True)) != _CHANGED_MEANWHILE:
                return bool(done)
        return False

    async def pin(self, scope: Scope, id: str, pinned: bool) -> bool:
        args = _digest(scope.user_id, id), _agent(scope), "1" if pinned else ""
        return bool(await self._do("pin", *args, again=True))

    async def supersede(self, scope: Scope, id: str, item: MemoryItem) -> bool:
        item = check_successor(scope, id, item)
        old = (_digest(scope.user_id, id), _agent(scope), item.id, float(item.created_at))
        new = (_tag(scope.user_id), _used(None), *_row(scope, item))
        return bool(await self._do("supersede", *old, *new, again=True))

    async def delete(self, scope: Scope, ids: Collection[str]) -> list[str]:
        names = {_digest(scope.user_id, name): name for name in ids}
        return [names[digest] for digest in _texts(await self._do("delete", _agent(scope), *names))]

    async def purge(self, user_id: str, *, session_id: str | None = None, turn_index: int | None = None) -> list[str]:
        check_turn(session_id, turn_index)
        return _texts(await self._do("purge", _tag(user_id), *_origin(session_id, turn_index)))

    async def touch(self, user_id: str, ids: Collection[str], at: float, *, counts: bool = False) -> None:
        await self._do("touch", float(at), "1" if counts else "", *(_digest(user_id, name) for name in ids), again=True)

    async def sweep(self, before: float, *, types: Collection[MemoryType] | None = None, limit: int = 1000) -> int:
        return int(await self._do("sweep", float(before), _kinds(types), check_limit(limit)))

    async def scan(self, user_id: str | None = None, *, cursor: str | None = None, limit: int = 1000) -> Page[Fact]:
        tag = "" if user_id is None else _tag(user_id)
        after = parse_position(cursor)
        found = list(self._facts(await self._do("scan", tag, after, check_limit(limit) + 1, again=True)))
        page = tuple(fact for fact, _ in found[:limit])
        return Page(page, str(found[limit - 1][1]) if len(found) > limit else None)

    async def _do(self, name: str, *args: Argument, again: bool = False) -> Any:
        keys = [f"{{{self._prefix}:facts}}:{key}" for key in KEYS]
        return await self._run(name, keys, args, again=again)

    def _facts(self, found: Sequence[Any]) -> Iterator[tuple[Fact, int]]:
        """Yield the facts that a script returned, each with its number of insertion."""
        for digest, raw, text in zip(found[::3], found[1::3], found[2::3], strict=True):
            try:
                yield _read(digest.decode(), raw, text)
            except (ValueError, TypeError, KeyError) as error:
                key = f"{{{self._prefix}:facts}}:{KEYS[0]} {digest.decode()}"
                raise CorruptRecordError(key, why_unreadable(error)) from None


_MANY = 2**52
"""A limit above any possible number of facts."""

_CHANGED_MEANWHILE = 2
"""The script of an update returns this if the fact has changed since it was read for the update."""


def _digest(user_id: str, id: str) -> str:
    return digest_of(user_id, id).hex()


def _tag(user_id: str) -> str:
    """Return the digest of a user. It differs from the digests of items, since no item's id is blank."""
    return _digest(user_id, "")


def _agent(scope: Scope) -> bytes:
    return encode(scope.agent or "")


def _used(at: float | None) -> float:
    used = time.time() if at is None else float(at)
    if math.isnan(used):
        raise ConfigError("at", at, "is not a time")
    return used


def _sortable(time_s: float) -> str:
    """Return 16 digits that sort as times do."""
    (bits,) = struct.unpack(">Q", struct.pack(">d", float(time_s) + 0.0))  # + 0.0: there are two zeros
    return f"{bits ^ (2**64 - 1) if bits >> 63 else bits | 2**63:016x}"


def _json(value: Any) -> str:
    return str(to_json(value))


def _kinds(types: Collection[MemoryType] | None) -> str:
    return "" if types is None else f"|{'|'.join(map(str, types))}|"


def _origin(session_id: str | None, turn_index: int | None) -> tuple[bytes, str]:
    session = b"" if session_id is None else encode(f"={session_id}")
    return session, "" if turn_index is None else str(turn_index)


def _filters(scope: Scope, which: FactFilter, cursor: str | None, limit: int) -> list[Argument]:
    tag = _tag(scope.user_id)
    end = f"{tag}~"
    if cursor is not None:
        before, last = parse_cursor(cursor)
        end = f"{tag}{_sortable(before)}{last:016d}"
    if which.as_of is not None:
        end = min(end, f"{tag}{_sortable(which.as_of)}~")
    times = (which.as_of, which.used_since, which.live_at)
    as_of, used_since, live_at = ("" if at is None else str(float(at)) for at in times)
    session, turn = _origin(which.session_id, which.turn_index)
    first: list[Argument] = [tag, _agent(scope), f"({end}", limit, _kinds(which.types)]
    return [*first, session, turn, as_of, "1" if which.superseded else "", used_since, live_at]


def _row(scope: Scope, item: MemoryItem) -> tuple[Argument, ...]:
    """Return the arguments by which a script adds an item."""
    successor = "" if item.superseded_by is None else _digest(scope.user_id, item.superseded_by)
    owned = {"user": scope.user_id, "agent": owner_of(scope, item.type), "successor": successor or None}
    values = owned | _strings(fields_of(item))
    fact = _json({name: value for name, value in values.items() if value is not None})
    return _digest(scope.user_id, item.id), fact, _json(item.text), _sortable(item.created_at), successor


def _strings(fields: Mapping[str, Any]) -> dict[str, str | None]:
    """Return fields of an item as the scripts name them, all values as text."""
    return {
        _SHORT.get(name, name): None if value is None else "1" if value is True else str(value)
        for name, value in fields.items()
    }


_SHORT = {"session_id": "session", "turn_index": "turn"}


def _read(digest: str, raw: bytes, text: bytes) -> tuple[Fact, int]:
    """Return a fact and its number of insertion; raise ValueError, TypeError or KeyError if the record is damaged."""
    fact, said = json.loads(raw), json.loads(text)
    if not (isinstance(fact, dict) and all(isinstance(value, str) for value in (said, *fact.values()))):
        raise TypeError("a value is not text")
    place, number = fact["place"][:-16], int(fact["place"][-16:])
    expected = _tag(fact["user"]) + _sortable(float(fact["created_at"]))
    if _digest(fact["user"], fact["id"]) != digest or place != expected:
        raise ValueError(f"fact {fact['id']!r} of user {fact['user']!r} has another place")
    item = item_of(fact | {name: fact.get(short) for name, short in _SHORT.items()}, said)
    return Fact(fact["user"], fact.get("agent"), item), number


def _texts(found: Sequence[bytes]) -> list[str]:
    return [each.decode() for each in found]
