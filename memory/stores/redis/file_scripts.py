"""The scripts of `RedisStore` about files, and the Lua code that they share with those of sessions.

    files:<user>:<owner>       hash    id of a file -> its object, its size, JSON; the owner is a session, or the user
    filers:<user>              sorted  owners with files
    contents:<user>            hash    digest -> the object that has this content, and its size
    object:<object>            hash    user, digest, uses; reserved (when, while it is)
    reserved, unused           sorted  objects: by the time of their reservation; by name

Users and owners are digests of their names.
"""

from __future__ import annotations

FILES = r"""
local function files_of(user, owner)
  return base .. ':files:' .. user .. ':' .. owner
end

local function object(id)
  return base .. ':object:' .. id
end

local function wrong_files(user, ...)
  local hashes = {base .. ':contents:' .. user}
  for _, owner in ipairs({...}) do hashes[#hashes + 1] = files_of(user, owner) end
  return wrong_key(hashes, {base .. ':filers:' .. user, base .. ':reserved', base .. ':unused'})
end

local function drop_use(id)
  if redis.call('HINCRBY', object(id), 'uses', -1) > 0 then return end
  local user, digest = unpack(redis.call('HMGET', object(id), 'user', 'digest'))
  if user and digest then redis.call('HDEL', base .. ':contents:' .. user, digest) end
  redis.call('ZADD', base .. ':unused', 0, id)
end

-- Deletes the files of an owner, and returns how many there were.
local function drop_files(user, owner)
  local home = files_of(user, owner)
  local texts = redis.call('HVALS', home)
  redis.call('DEL', home)
  redis.call('ZREM', base .. ':filers:' .. user, owner)
  for _, text in ipairs(texts) do drop_use(string.match(text, '^%S+')) end
  return #texts
end

-- Gives an owner the files of another one.
local function copy_files(user, from, to)
  local found = redis.call('HGETALL', files_of(user, from))
  if #found == 0 then return end
  for place = 1, #found, 2 do
    redis.call('HSET', files_of(user, to), found[place], found[place + 1])
    redis.call('HINCRBY', object(string.match(found[place + 1], '^%S+')), 'uses', 1)
  end
  redis.call('ZADD', base .. ':filers:' .. user, 0, to)
end

local function unuse(id)
  redis.call('ZREM', base .. ':reserved', id)
  if (tonumber(redis.call('HGET', object(id), 'uses')) or 1) == 0 then redis.call('ZADD', base .. ':unused', 0, id) end
end
"""
"""Follows the code that all scripts share."""

_RESERVE = r"""
local id, user = take(), take()
local wrong = wrong_files(user)
if wrong then return wrong end
redis.call('HSET', object(id), 'user', user, 'uses', 0)
redis.call('ZADD', base .. ':reserved', now(), id)
return {''}
"""

_RELEASE = r"""
local id = take()
if redis.call('ZSCORE', base .. ':reserved', id) then unuse(id) end
return {''}
"""

_ADD = r"""
local session, user, owner, file = take(), take(), take(), take()
local digest, own, size, text = take(), take(), take(), take()
local most_files, most_bytes, most_user_bytes = tonumber(take()), tonumber(take()), tonumber(take())
if session ~= '' and redis.call('HEXISTS', ids, session) == 0 then return {'missing'} end
local wrong = wrong_files(user, owner)
if wrong then return wrong end
local home, contents = files_of(user, owner), base .. ':contents:' .. user
local is_reserved = redis.call('ZSCORE', base .. ':reserved', own)
local existing = redis.call('HGET', home, file)
if existing then
  if is_reserved and string.match(existing, '^%S+') ~= own then unuse(own) end
  return {'', '', existing}
end
local held = redis.call('HGET', contents, digest)
local count, bytes, user_bytes = 1, tonumber(size), held and 0 or tonumber(size)
for _, stored in ipairs(redis.call('HVALS', home)) do
  count, bytes = count + 1, bytes + tonumber(string.match(stored, '^%S+ (%d+)'))
end
for _, stored in ipairs(redis.call('HVALS', contents)) do
  user_bytes = user_bytes + tonumber(string.match(stored, '^%S+ (%d+)'))
end
if count > most_files or bytes > most_bytes or user_bytes > most_user_bytes then
  return {'', 'full', count, string.format('%.0f', bytes), string.format('%.0f', user_bytes)}
end
local id = held and string.match(held, '^%S+') or own
if not held then
  if not is_reserved then return {'', 'expired'} end
  redis.call('HSET', object(own), 'digest', digest)
  redis.call('HSET', contents, digest, own .. ' ' .. size)
  redis.call('ZREM', base .. ':reserved', own)
elseif is_reserved and id ~= own then
  unuse(own)
end
redis.call('HINCRBY', object(id), 'uses', 1)
redis.call('HSET', home, file, id .. ' ' .. size .. ' ' .. text)
redis.call('ZADD', base .. ':filers:' .. user, 0, owner)
return {'', '', id .. ' ' .. size .. ' ' .. text}
"""

_DELETE = r"""
local user, owner, file = take(), take(), take()
local wrong = wrong_files(user, owner)
if wrong then return wrong end
local home = files_of(user, owner)
local text = redis.call('HGET', home, file)
if not text then return {'', 0} end
redis.call('HDEL', home, file)
if redis.call('EXISTS', home) == 0 then redis.call('ZREM', base .. ':filers:' .. user, owner) end
drop_use(string.match(text, '^%S+'))
return {'', 1}
"""

_FORGET = r"""
local user, count = take(), 0
local owners = redis.call('ZRANGE', base .. ':filers:' .. user, 0, -1)
for _, owner in ipairs(owners) do
  local wrong = wrong_files(user, owner)
  if wrong then return wrong end
end
for _, owner in ipairs(owners) do count = count + drop_files(user, owner) end
return {'', count}
"""

_UNUSED = r"""
local before, limit = take(), take()
for _, id in ipairs(redis.call('ZRANGEBYSCORE', base .. ':reserved', '-inf', '(' .. before)) do unuse(id) end
return {'', redis.call('ZRANGE', base .. ':unused', 0, tonumber(limit) - 1)}
"""

_DROP = r"""
for _, row in ipairs(rows(1)) do
  if redis.call('ZREM', base .. ':unused', row[1]) == 1 then redis.call('DEL', object(row[1])) end
end
return {''}
"""

_FILE = r"""
return {'', redis.call('HGET', files_of(take(), take()), take())}
"""

_FILES = r"""
return {'', redis.call('HGETALL', files_of(take(), take()))}
"""

FILE_WRITES = {
    "reserve_object": _RESERVE,
    "release_object": _RELEASE,
    "add_file": _ADD,
    "delete_file": _DELETE,
    "forget_files": _FORGET,
    "unused_objects": _UNUSED,
    "drop_objects": _DROP,
}
FILE_READS = {"file": _FILE, "files": _FILES}
"""By name."""
