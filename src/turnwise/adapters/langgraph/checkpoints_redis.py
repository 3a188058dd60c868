"""`RedisCheckpoints`: LangGraph's checkpoints in Redis."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from turnwise.adapters.langgraph.checkpoints import Commit, Place, Row, Space
from turnwise.adapters.langgraph.encoding import Ranges, pack, unpack
from turnwise.memory.conversation.codec import decoded
from turnwise.memory.conversation.ids import new_key
from turnwise.memory.stores.redis.database import MISFIT, Argument, RedisDatabase, encode

# The keys of all threads have one hash tag, so that on a cluster they are on one node:
#
#     threads          set     ids of all threads
#     runs:<run>       set     threads and namespaces with checkpoints of a run, as JSON
#     thread:<id>      hash    namespace -> key, revision, head (empty if none) and state, with tabs between
#     rows:<key>       hash    checkpoint's id -> parent, run and record, packed
#     runs-of:<key>    hash    checkpoint's id -> its run's id
#     ids:<key>        sorted  ids of checkpoints, by name
#     elements:<key>   hash    channel, NUL and position -> the element
#     writes:<key>     hash    checkpoint's id, NUL and number -> pending writes
#     numbers:<key>    sorted  the same names, by name
_COMMON = """
local base = KEYS[1]
local function at(kind, name) return base .. ':' .. kind .. ':' .. name end
local function space_of(thread, ns) return redis.call('HGET', at('thread', thread), ns) end
local function fields(space)
  return string.match(space, '^(%d+)\\t(%d+)\\t([^\\t]*)\\t(.*)$')
end
local kinds = {hash = {'rows', 'runs-of', 'elements', 'writes'}, zset = {'ids', 'numbers'}}
local function wrong_key(thread, runs, ...)
  local names = {hash = {at('thread', thread)}, zset = {}, set = {base .. ':threads'}}
  for _, run in ipairs(runs) do table.insert(names.set, at('runs', run)) end
  for kind, parts in pairs(kinds) do
    for _, part in ipairs(parts) do
      for _, key in ipairs({...}) do table.insert(names[kind], at(part, key)) end
    end
  end
  for kind, of_kind in pairs(names) do
    local name, why = misfit(kind, of_kind)
    if name then return corrupt_key(name, why) end
  end
end
local function writes_of(key, id)
  local names = redis.call('ZRANGEBYLEX', at('numbers', key), '[' .. id .. '\\0', '(' .. id .. '\\1')
  local found = {}
  for first = 1, #names, 1000 do  -- unpack takes a limited number of values
    local last = math.min(first + 999, #names)
    for _, data in ipairs(redis.call('HMGET', at('writes', key), unpack(names, first, last))) do
      found[#found + 1] = data
    end
  end
  return found
end
local function drop(key, id)
  for _, name in ipairs(redis.call('ZRANGEBYLEX', at('numbers', key), '[' .. id .. '\\0', '(' .. id .. '\\1')) do
    redis.call('HDEL', at('writes', key), name)
    redis.call('ZREM', at('numbers', key), name)
  end
  redis.call('HDEL', at('rows', key), id)
  redis.call('HDEL', at('runs-of', key), id)
  redis.call('ZREM', at('ids', key), id)
end
"""

_READ = """
local space = space_of(ARGV[1], ARGV[2])
if not space then return false end
local key, _, head = fields(space)
local id = ARGV[3]
if id == '' then id = head end
return {space, id, redis.call('HGET', at('rows', key), id), writes_of(key, id)}
"""

_VALUES = "return redis.call('HMGET', at('elements', ARGV[1]), unpack(ARGV, 2))"

# how many, before which id ('' for all), '1' and a namespace or '' and '' for all, threads.
_PAGE = """
local first = '+'
if ARGV[2] ~= '' then first = '(' .. ARGV[2] end
local found = {}
for place = 5, #ARGV do
  local spaces = redis.call('HGETALL', at('thread', ARGV[place]))
  for named = 1, #spaces, 2 do
    if ARGV[3] == '' or spaces[named] == ARGV[4] then
      local key = fields(spaces[named + 1])
      local ids = redis.call('ZREVRANGEBYLEX', at('ids', key), first, '-', 'LIMIT', 0, ARGV[1])
      local rows = {}
      if #ids > 0 then rows = redis.call('HMGET', at('rows', key), unpack(ids)) end
      found[#found + 1] = {ARGV[place], spaces[named], spaces[named + 1], ids, rows}
    end
  end
end
return found
"""

_WRITES = """
local found = {}
for place = 2, #ARGV do found[#found + 1] = writes_of(ARGV[1], ARGV[place]) end
return found
"""

_SPACES = "return redis.call('HGETALL', at('thread', ARGV[1]))"

_THREADS = "return redis.call('SMEMBERS', base .. ':threads')"

_RUNS = """
local found = {}
for _, run in ipairs(ARGV) do
  for _, place in ipairs(redis.call('SMEMBERS', at('runs', run))) do found[#found + 1] = place end
end
return found
"""

# thread, namespace, key, revision before ('' if new), the new space, place as JSON,
# row: id ('' if none), its packed row, its run ('' if none);
# writes: name ('' if none), data; how many elements, each name and data; how many removed ids, each; removed elements.
_COMMIT = """
local thread, ns, key, before, after, place = unpack(ARGV, 1, 6)
local space = space_of(thread, ns)
if before == '' then
  if space then return 0 end
else
  if not space then return 0 end
  local its_key, revision = fields(space)
  if its_key ~= key or revision ~= before then return 0 end
end
local next_ = 13 + 2 * tonumber(ARGV[12])
local count = tonumber(ARGV[next_])
local runs = {}
if ARGV[9] ~= '' then runs[1] = ARGV[9] end
local wrong = wrong_key(thread, runs, key)
if wrong then return wrong end
for place_ = next_ + 1, next_ + count do
  local run = redis.call('HGET', at('runs-of', key), ARGV[place_])
  if run then runs[#runs + 1] = run end
end
wrong = wrong_key(thread, runs, key)
if wrong then return wrong end
local gone = {}
for place_ = next_ + 1, next_ + count do  -- first: a Redis that is full refuses a script that begins with what adds
  local run = redis.call('HGET', at('runs-of', key), ARGV[place_])
  if run then gone[run] = true end
  drop(key, ARGV[place_])
end
for place_ = next_ + count + 1, #ARGV do redis.call('HDEL', at('elements', key), ARGV[place_]) end
redis.call('HSET', at('thread', thread), ns, after)
redis.call('SADD', base .. ':threads', thread)
if ARGV[7] ~= '' then
  redis.call('HSET', at('rows', key), ARGV[7], ARGV[8])
  redis.call('ZADD', at('ids', key), 0, ARGV[7])
  if ARGV[9] ~= '' then
    redis.call('HSET', at('runs-of', key), ARGV[7], ARGV[9])
    redis.call('SADD', at('runs', ARGV[9]), place)
  end
end
if ARGV[10] ~= '' then
  redis.call('HSET', at('writes', key), ARGV[10], ARGV[11])
  redis.call('ZADD', at('numbers', key), 0, ARGV[10])
end
for place_ = 13, next_ - 1, 2 do redis.call('HSET', at('elements', key), ARGV[place_], ARGV[place_ + 1]) end
if next(gone) then
  for _, run in ipairs(redis.call('HVALS', at('runs-of', key))) do gone[run] = nil end
  for run in pairs(gone) do redis.call('SREM', at('runs', run), place) end
end
return 1
"""

_DELETE = """
local wrong = wrong_key(ARGV[1], {})
if wrong then return wrong end
for _, each in ipairs(cjson.decode(ARGV[2])) do
  local space = space_of(ARGV[1], each[1])
  if space then
    local key = fields(space)
    wrong = wrong_key(ARGV[1], {}, key) or wrong_key(ARGV[1], redis.call('HVALS', at('runs-of', key)), key)
    if wrong then return wrong end
  end
end
for _, each in ipairs(cjson.decode(ARGV[2])) do
  local ns, place = each[1], each[2]
  local space = space_of(ARGV[1], ns)
  if space then
    local key = fields(space)
    for _, run in ipairs(redis.call('HVALS', at('runs-of', key))) do redis.call('SREM', at('runs', run), place) end
    for _, kind in ipairs({'rows', 'runs-of', 'ids', 'elements', 'writes', 'numbers'}) do
      redis.call('DEL', at(kind, key))
    end
    redis.call('HDEL', at('thread', ARGV[1]), ns)
  end
end
if redis.call('HLEN', at('thread', ARGV[1])) > 0 then return 0 end
redis.call('SREM', base .. ':threads', ARGV[1])
return 1
"""

# target, then for each namespace: its name, the source's space as it was read, the target's key and space, its place.
_COPY = """
local source, target = ARGV[1], ARGV[2]
if redis.call('EXISTS', at('thread', target)) == 1 then return 0 end
if redis.call('HLEN', at('thread', source)) ~= (#ARGV - 2) / 5 then return -1 end
for first = 3, #ARGV, 5 do
  if space_of(source, ARGV[first]) ~= ARGV[first + 1] then return -1 end
end
local wrong = wrong_key(target, {})
if wrong then return wrong end
for first = 3, #ARGV, 5 do
  local from = fields(ARGV[first + 1])
  wrong = wrong_key(source, {}, from) or wrong_key(source, redis.call('HVALS', at('runs-of', from)), from)
  if wrong then return wrong end
end
for first = 3, #ARGV, 5 do
  local ns, space, key, copied, place = unpack(ARGV, first, first + 4)
  local from = fields(space)
  for _, kind in ipairs({'rows', 'runs-of', 'ids', 'elements', 'writes', 'numbers'}) do
    redis.call('COPY', at(kind, from), at(kind, key))
  end
  for _, run in ipairs(redis.call('HVALS', at('runs-of', key))) do redis.call('SADD', at('runs', run), place) end
  redis.call('HSET', at('thread', target), ns, copied)
  redis.call('SADD', base .. ':threads', target)
end
return 1
"""

_AT_ONCE = 2000
"""The most elements that one call names, since a script takes a limited number of values."""

_THREADS_AT_ONCE = 50
"""The most threads of which one call reads a page, so that others need not wait for long."""


class RedisCheckpoints(RedisDatabase):
    """Stores checkpoints in Redis, 6.2 or later. See `CheckpointStore`, and `RedisDatabase` for their durability.

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
        for name, script in {
            "read": _READ,
            "values": _VALUES,
            "page": _PAGE,
            "writes": _WRITES,
            "spaces": _SPACES,
            "threads": _THREADS,
            "runs": _RUNS,
            "commit": _COMMIT,
            "delete": _DELETE,
            "copy": _COPY,
        }.items()
    }

    async def read(self, place: Place, id: str | None) -> tuple[Space, Row | None, list[bytes]] | None:
        if not (found := await self._do("read", *_names(place), encode(id or ""), again=True)):
            return None
        space, name, row, writes = found
        return _space(space), _row(name, row) if row else None, writes

    async def values(self, key: int, ranges: Ranges) -> dict[tuple[str, int], bytes]:
        wanted = [(channel, at) for channel, spans in ranges.items() for span in spans for at in range(*span)]
        found: dict[tuple[str, int], bytes] = {}
        for chunk in _chunks(wanted):
            data = await self._do("values", key, *(_element(*each) for each in chunk), again=True)
            found |= {each: value for each, value in zip(chunk, data, strict=True) if value is not None}
        return found

    async def page(
        self, thread_id: str | None, ns: str | None, *, before: str | None, limit: int
    ) -> list[tuple[Place, Space, Row]]:
        if thread_id is None:
            threads: list[bytes] = await self._do("threads", again=True)
        else:
            threads = [encode(thread_id)]
        found = []
        which = (limit, encode(before or ""), "" if ns is None else 1, encode(ns or ""))
        for first in range(0, len(threads), _THREADS_AT_ONCE):
            part = threads[first : first + _THREADS_AT_ONCE]
            for thread, its_ns, space, ids, rows in await self._do("page", *which, *part, again=True):
                place = _text(thread), _text(its_ns)
                found += [(place, _space(space), _row(name, row)) for name, row in zip(ids, rows, strict=True)]
        found.sort(key=lambda each: each[2].id, reverse=True)
        last = found[limit - 1][2].id if len(found) >= limit else ""
        return [each for each in found if each[2].id >= last]

    async def writes(self, key: int, ids: Sequence[str]) -> dict[str, list[bytes]]:
        found: dict[str, list[bytes]] = {}
        for chunk in _chunks(ids):
            writes = await self._do("writes", key, *map(encode, chunk), again=True)
            found |= dict(zip(chunk, writes, strict=True))
        return found

    async def spaces(self, thread_id: str) -> list[tuple[Place, Space]]:
        found = await self._do("spaces", encode(thread_id), again=True)
        return [((thread_id, _text(ns)), _space(raw)) for ns, raw in zip(found[::2], found[1::2], strict=True)]

    async def with_runs(self, run_ids: Sequence[str]) -> list[Place]:
        found = {tuple(json.loads(place)) for place in await self._do("runs", *map(encode, run_ids), again=True)}
        return [(thread_id, ns) for thread_id, ns in sorted(found)]

    async def commit(self, place: Place, commit: Commit) -> bool:
        row, after = commit.row, commit.after
        before = "" if commit.before is None else commit.before.revision
        args: list[Argument] = [*_names(place), after.key, before, _raw(after), _json(place)]
        if row:
            args += [encode(row.id), pack([row.parent, row.run_id, row.record]), encode(row.run_id or "")]
        else:
            args += ["", "", ""]
        if commit.writes:
            args += [encode(f"{commit.writes[0]}\0{after.revision:020}"), commit.writes[1]]
        else:
            args += ["", ""]
        args.append(len(commit.values))
        for channel, at, data in commit.values:
            args += [_element(channel, at), data]
        args += [len(commit.removed), *map(encode, commit.removed)]
        for channel, spans in commit.removed_values.items():
            args += [_element(channel, at) for span in spans for at in range(*span)]
        return bool(await self._do("commit", *args))

    async def delete(self, thread_id: str) -> None:
        while True:
            places = [(ns, _json((thread_id, ns))) for (_, ns), _ in await self.spaces(thread_id)]
            if await self._do("delete", encode(thread_id), json.dumps(places), again=True):
                return

    async def copy(self, source: str, target: str) -> bool:
        while True:
            args: list[Argument] = [encode(source), encode(target)]
            for (_, ns), space in await self.spaces(source):
                copied = replace(space, key=new_key(), writer=None)
                args += [encode(ns), _raw(space), copied.key, _raw(copied), _json((target, ns))]
            if (done := int(await self._do("copy", *args))) >= 0:
                return bool(done)

    async def _do(self, name: str, *args: Argument, again: bool = False) -> Any:
        return await self._run(name, [f"{self._prefix}:{{langgraph}}"], args, again=again)


def _text(name: bytes) -> str:
    return name.decode(errors="surrogatepass")


def _names(place: Place) -> tuple[bytes, bytes]:
    return encode(place[0]), encode(place[1])


def _json(place: Place) -> str:
    return json.dumps(place)


def _element(channel: str, position: int) -> bytes:
    return encode(f"{channel}\0{position}")


def _raw(space: Space) -> bytes:
    return encode(f"{space.key}\t{space.revision}\t{space.head or ''}\t{space.to_json()}")


def _space(raw: bytes) -> Space:
    def decode() -> Space:
        key, revision, head, state = _text(raw).split("\t", 3)
        return Space.of(int(key), int(revision), head or None, state)

    space: Space = decoded("space of a thread", decode)
    return space


def _row(id: bytes, stored: bytes) -> Row:
    name = _text(id)
    return Row(name, *unpack(f"checkpoint {name!r}", stored))


def _chunks(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for first in range(0, len(values), _AT_ONCE):
        yield values[first : first + _AT_ONCE]
