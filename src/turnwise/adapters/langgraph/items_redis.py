"""`RedisGraphItems`: the items of `TurnwiseStore` in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import ormsgpack

from turnwise.adapters.langgraph.items import Batch, Name
from turnwise.errors import CorruptRecordError
from turnwise.memory.stores.redis.database import MISFIT, Argument, RedisDatabase, encode

# The keys have one hash tag, so that on a cluster they are on one node. A name is a namespace, NUL and a key.
#
#     items   hash    name -> times of creation and update, seconds to live, time of expiry (the last two may be empty),
#                     each with a tab behind it; then value and vectors, packed
#     names   sorted  all names, by name
#     expiry  sorted  names by time of expiry
#
# A full Redis refuses a script whose first write needs memory, and no later write. So what frees memory comes first:
# then reading lets an item's time begin again, and expired items make room for others.
_COMMON = """
local items, names, expiry = unpack(KEYS)
local now = tonumber(ARGV[1])
local function fields(row)
  return string.match(row, '^([^\\t]*)\\t([^\\t]*)\\t([^\\t]*)\\t([^\\t]*)\\t(.*)$')
end
local function live(name)
  local row = redis.call('HGET', items, name)
  if not row then return nil end
  local _, updated, _, expires = fields(row)
  if expires ~= '' and tonumber(expires) <= now then return nil end
  return row, tonumber(updated)
end
local function wrong_key()
  local name, why = misfit('hash', {items})
  if not name then name, why = misfit('zset', {names, expiry}) end
  return name and corrupt_key(name, why)
end
local function drop(name)
  redis.call('ZREM', names, name)
  redis.call('ZREM', expiry, name)
  return redis.call('HDEL', items, name)
end
local function sweep()
  local gone = redis.call('ZRANGEBYSCORE', expiry, '-inf', ARGV[1])
  for _, name in ipairs(gone) do drop(name) end
  return #gone
end
"""

# now, '1' for all namespaces, how many gets, each name; searches: first and last name, offset, limit (-1 for all).
_READ = """
local gets, searches, spaces = {}, {}, {}
for place = 4, 3 + tonumber(ARGV[3]) do gets[#gets + 1] = live(ARGV[place]) or false end
for place = 4 + tonumber(ARGV[3]), #ARGV, 4 do
  local found = {}
  for number, name in ipairs(redis.call('ZRANGEBYLEX', names, ARGV[place], ARGV[place + 1])) do
    local row, updated = live(name)
    if row then found[#found + 1] = {name, row, updated, number} end
  end
  table.sort(found, function(one, other)
    if one[3] ~= other[3] then return one[3] > other[3] end
    return one[4] < other[4]
  end)
  local chosen, offset, limit = {}, tonumber(ARGV[place + 2]), tonumber(ARGV[place + 3])
  local last = #found
  if limit >= 0 then last = math.min(last, offset + limit) end
  for number = offset + 1, last do chosen[#chosen + 1] = {found[number][1], found[number][2]} end
  searches[#searches + 1] = chosen
end
if ARGV[2] == '1' then
  local seen = {}
  for _, name in ipairs(redis.call('ZRANGE', names, 0, -1)) do
    local space = string.match(name, '^(.-)%z')
    if not seen[space] and live(name) then
      seen[space] = true
      spaces[#spaces + 1] = space
    end
  end
end
return {gets, searches, spaces}
"""

# now, then names.
_REFRESH = """
local wrong = wrong_key()
if wrong then return wrong end
local rows = {}
for place = 2, #ARGV do
  local row = live(ARGV[place])
  if row then
    local created, updated, ttl, expires, data = fields(row)
    if expires ~= '' then
      expires = string.format('%.17g', now + tonumber(ttl))
      rows[ARGV[place]] = {expires, table.concat({created, updated, ttl, expires, data}, '\\t')}
    end
  end
end
for name in pairs(rows) do redis.call('ZREM', expiry, name) end
for name, row in pairs(rows) do
  redis.call('HSET', items, name, row[2])
  redis.call('ZADD', expiry, row[1], name)
end
return 1
"""

# now, then for each item its name, time of expiry, and row without the time of creation ('' if it goes).
_WRITE = """
local wrong = wrong_key()
if wrong then return wrong end
sweep()
for place = 2, #ARGV, 3 do
  local name, expires, row = ARGV[place], ARGV[place + 1], ARGV[place + 2]
  if row == '' then
    drop(name)
  else
    local old = redis.call('HGET', items, name)
    redis.call('HSET', items, name, (old and fields(old) or ARGV[1]) .. '\\t' .. row)
    redis.call('ZADD', names, 0, name)
    if expires == '' then redis.call('ZREM', expiry, name) else redis.call('ZADD', expiry, expires, name) end
  end
end
return 1
"""


_SWEEP = """
return wrong_key() or sweep()
"""


@dataclass(frozen=True, slots=True)
class _Row:
    namespace: str
    key: str
    value: bytes
    vectors: bytes | None
    created_at: float
    updated_at: float
    ttl_s: float | None


class RedisGraphItems(RedisDatabase):
    """Stores items in Redis, 6.2 or later. See `GraphItems`, and `RedisDatabase` for their durability.

    A search reads the times of all items under its prefix, and returns those that it wants.

    Args:
        url: `redis://user:password@host:6379/0`, or `rediss://` for TLS, with options as redis-py takes them.
        prefix: the prefix of all keys. Stores with different prefixes can share a database without seeing each other.
        timeout_s: how long to wait for a connection, and for an answer, before a StoreError.
        connections: the most connections at once; further calls wait for a free one.

    Raises:
        StoreURLError: the URL names no Redis, or the client is not installed.
        ConfigError: a setting is out of its range.
    """

    scripts: ClassVar = {
        name: MISFIT + _COMMON + script
        for name, script in {"read": _READ, "refresh": _REFRESH, "write": _WRITE, "sweep": _SWEEP}.items()
    }

    async def read(self, batch: Batch) -> tuple[dict[Name, Any], list[list[Any]], list[str]]:
        names = [*dict.fromkeys(batch.gets)]
        args: list[Argument] = [repr(batch.now), int(batch.namespaces), len(names), *map(_encoded, names)]
        for search in batch.searches:
            # '/' is the character after '.', with which a prefix ends.
            first, last = (f"[{search.prefix}", f"({search.prefix[:-1]}/") if search.prefix else ("-", "+")
            args += [encode(first), encode(last), search.offset, -1 if search.limit is None else search.limit]
        rows, searches, namespaces = await self._do("read", *args, again=True)
        found = {name: _row(name, row) for name, row in zip(names, rows, strict=True) if row is not None}
        chosen = [[_row(_decoded(name), row) for name, row in each] for each in searches]
        return found, chosen, [_text(each) for each in namespaces]

    async def refresh(self, names: Sequence[Name], now: float) -> None:
        await self._do("refresh", repr(now), *map(_encoded, names), again=True)

    async def write(self, batch: Batch) -> None:
        args: list[Argument] = [repr(batch.now)]
        for name, row in batch.puts.items():
            if row is None:
                args += [_encoded(name), "", ""]
                continue
            expires = "" if row["expires_at"] is None else repr(row["expires_at"])
            ttl = "" if row["ttl_s"] is None else repr(row["ttl_s"])
            times = f"{row['updated_at']!r}\t{ttl}\t{expires}\t"
            args += [_encoded(name), expires, times.encode() + ormsgpack.packb([row["value"], row["vectors"]])]
        await self._do("write", *args)

    async def sweep(self, now: float) -> int:
        return int(await self._do("sweep", repr(now)))

    async def _do(self, name: str, *args: Argument, again: bool = False) -> Any:
        keys = [f"{self._prefix}:{{langgraph-items}}:{kind}" for kind in ("items", "names", "expiry")]
        return await self._run(name, keys, args, again=again)


def _encoded(name: Name) -> bytes:
    return encode("\0".join(name))


def _text(name: bytes) -> str:
    return name.decode(errors="surrogatepass")


def _decoded(name: bytes) -> Name:
    namespace, _, key = _text(name).partition("\0")
    return namespace, key


def _row(name: Name, stored: bytes) -> _Row:
    try:
        created, updated, ttl, _, data = stored.split(b"\t", 4)
        value, vectors = ormsgpack.unpackb(data)
        return _Row(*name, value, vectors, float(created), float(updated), float(ttl) if ttl else None)
    except ValueError as error:
        raise CorruptRecordError(f"item {name[1]!r} of namespace {name[0]!r}", type(error).__name__) from None
