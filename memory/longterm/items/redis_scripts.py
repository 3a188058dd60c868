"""The scripts of `RedisItems`. Each is one transaction, and checks everything before it writes.

The keys have one hash tag, so that on a cluster they are on one node:

    items      hash    digest of user id and item id -> the item without its text, as JSON in which all values are texts
    texts      hash    digest -> the text as JSON
    times      sorted  place and digest, by name: the items of a user by time, then by insertion
    order      sorted  digests by number of insertion
    used       sorted  digests by time of last use
    successors sorted  digest of a successor and digest of the item that it superseded, by name
    deleted    sorted  digests of deleted items by time of deletion, in seconds since the epoch
    last       number  of the last insertion

A place is the user's digest, the time as 16 digits that sort like times, and the number of insertion as 16 digits.
"""

from __future__ import annotations

from turnwise.memory.longterm.items.rules import TOMBSTONE_S
from turnwise.memory.stores.redis.database import MISFIT

KEYS = ("items", "texts", "times", "order", "used", "successors", "deleted", "last")

_COMMON = """
local items, texts, times, order, used, successors, deleted, last = unpack(KEYS)

local function wrong_key()
  local name, why = misfit('hash', {items, texts})
  if not name then name, why = misfit('zset', {times, order, used, successors, deleted}) end
  local number = not name and redis.call('GET', last)
  if number and not string.match(number, '^%d+$') then name, why = last, 'it is no number' end
  return name and redis.error_reply('CORRUPT key ' .. name .. ' ' .. why)
end

local function corrupt(digest, why)
  return redis.error_reply('CORRUPT ' .. items .. ' ' .. digest .. ' ' .. why)
end

local function parse(raw)
  local ok, record = pcall(cjson.decode, raw or '')
  if not ok or type(record) ~= 'table' then return nil end
  for _, value in pairs(record) do
    if type(value) ~= 'string' then return nil end
  end
  if not record.type or not record.id or string.len(record.place or '') ~= 64 then return nil end
  if record.superseded_at and not tonumber(record.superseded_at) then return nil end
  return record
end

local function sees(agent, record)
  return not record.agent or record.agent == agent
end

local function lists(list, kind)
  return list == '' or string.find(list, '|' .. kind .. '|', 1, true) ~= nil
end

local function from(record, session, turn)
  local in_session = session == '' or (record.session_id and '=' .. record.session_id == session)
  return in_session and (turn == '' or record.turn_index == turn)
end

local function use(digest, at)
  redis.call('ZADD', used, 'XX', 'GT', at, digest)
end

local function save(digest, record)
  redis.call('HSET', items, digest, cjson.encode(record))
end

local function was_deleted(digest)
  return redis.call('ZSCORE', deleted, digest)
end

local function insert(tag, at, digest, raw, text, time, successor)
  local number = string.format('%.0f', redis.call('INCR', last))
  local place = tag .. time .. string.rep('0', 16 - string.len(number)) .. number
  redis.call('HSET', items, digest, '{"place":"' .. place .. '",' .. string.sub(raw, 2))
  redis.call('HSET', texts, digest, text)
  redis.call('ZADD', times, 0, place .. digest)
  redis.call('ZADD', order, number, digest)
  redis.call('ZADD', used, at, digest)
  if successor ~= '' then redis.call('ZADD', successors, 0, successor .. digest) end
end

local function add(tag, at, digest, ...)
  if redis.call('HEXISTS', items, digest) == 1 or was_deleted(digest) then return false end
  insert(tag, at, digest, ...)
  return true
end

local function restore(digest, gone)
  for _, member in ipairs(redis.call('ZRANGEBYLEX', successors, '[' .. digest, '[' .. digest .. '~')) do
    local other = string.sub(member, -32)
    local record = parse(redis.call('HGET', items, other))
    redis.call('ZREM', successors, member)
    if record then
      local ended = gone.successor ~= other and gone.successor ~= digest and gone or {}
      record.superseded_at, record.superseded_by = ended.superseded_at, ended.superseded_by
      record.successor = ended.successor
      save(other, record)
      if record.successor then redis.call('ZADD', successors, 0, record.successor .. other) end
    end
  end
end

local function bury(digest, record)
  local now = tonumber(redis.call('TIME')[1])
  redis.call('ZADD', deleted, 'NX', now, digest)
  redis.call('ZREMRANGEBYSCORE', deleted, '-inf', '(' .. (now - TOMBSTONE_S))
  restore(digest, record or {})
end

local function forget(digest, place, record)
  redis.call('HDEL', items, digest) -- first: when memory is full, Redis allows a script that begins with a deletion
  bury(digest, record)
  redis.call('HDEL', texts, digest)
  redis.call('ZREM', times, place .. digest)
  redis.call('ZREM', order, digest)
  redis.call('ZREM', used, digest)
  if record and record.successor then redis.call('ZREM', successors, record.successor .. digest) end
end

local function of_user(tag)
  local found = {}
  for _, member in ipairs(redis.call('ZRANGEBYLEX', times, '[' .. tag, '[' .. tag .. '~')) do
    local place, digest = string.sub(member, 1, 64), string.sub(member, 65)
    found[#found + 1] = {number = tonumber(string.sub(place, 49)), digest = digest, place = place}
  end
  table.sort(found, function(a, b) return a.number < b.number end)
  return found
end

local function show(found, digest, raw)
  found[#found + 1] = digest
  found[#found + 1] = raw or redis.call('HGET', items, digest)
  found[#found + 1] = redis.call('HGET', texts, digest)
end
"""

_PUT = """
local wrong = wrong_key()
if wrong then return wrong end
local new = {}
for at = 3, #ARGV, 5 do
  if add(ARGV[1], ARGV[2], unpack(ARGV, at, at + 4)) then new[#new + 1] = ARGV[at] end
end
return new
"""

_GET = """
local found = {}
for _, digest in ipairs(ARGV) do
  local raw = redis.call('HGET', items, digest)
  if raw then show(found, digest, raw) end
end
return found
"""

_QUERY = """
local tag, agent, max, limit, types, session, turn, as_of, superseded, used_since, live_at = unpack(ARGV)
local found, count, chunk = {}, 0, math.min(tonumber(limit), 500)
limit, as_of, used_since, live_at = tonumber(limit), tonumber(as_of), tonumber(used_since), tonumber(live_at)

local function holds(record, digest)
  local at = tonumber(record.superseded_at)
  return sees(agent, record) and lists(types, record.type) and from(record, session, turn)
    and (not at or superseded == '1' or (as_of and at > as_of))
    and (not live_at or as_of or record.status == 'active')
    and (not live_at or not (tonumber(record.expires_at or 'inf') <= live_at))
    and (not used_since or tonumber(redis.call('ZSCORE', used, digest) or '-inf') >= used_since)
end

repeat
  local members = redis.call('ZREVRANGEBYLEX', times, max, '[' .. tag, 'LIMIT', 0, chunk)
  local digests = {}
  for at, member in ipairs(members) do digests[at] = string.sub(member, 65) end
  local raws = #digests > 0 and redis.call('HMGET', items, unpack(digests)) or {}
  for at, digest in ipairs(digests) do
    local record = parse(raws[at])
    if not record then return corrupt(digest, 'it is missing or not what was written') end
    if holds(record, digest) then
      count = count + 1
      show(found, digest, raws[at])
      if count == limit then return found end
    end
  end
  max, chunk = '(' .. (members[#members] or ''), 500
until #members == 0
return found
"""

_CHANGE = """
local tag, at, now, read, said, digest, raw, text, time, successor, after = unpack(ARGV)
local wrong = wrong_key()
if wrong then return wrong end
local before = redis.call('HGET', items, digest)
if (before or '') ~= read or (before and redis.call('HGET', texts, digest) ~= said) then return 2 end
if after and was_deleted(after) then return 0 end
local old = before and parse(before)
if before and not old then return corrupt(digest, 'it is not what was written') end
if not old then
  insert(tag, now, digest, raw, text, time, successor)
  redis.call('ZREM', deleted, digest)
else
  redis.call('HSET', items, digest, '{"place":"' .. old.place .. '",' .. string.sub(raw, 2))
  redis.call('HSET', texts, digest, text)
  if old.successor then redis.call('ZREM', successors, old.successor .. digest) end
  if successor ~= '' then redis.call('ZADD', successors, 0, successor .. digest) end
  if at ~= '' then use(digest, at) end
end
if after then add(tag, now, unpack(ARGV, 11, 15)) end
return 1
"""

_DELETE = """
local wrong = wrong_key()
if wrong then return wrong end
local seen, records, missing = {}, {}, {}
for at = 2, #ARGV do
  local digest = ARGV[at]
  local raw = redis.call('HGET', items, digest)
  if not raw then
    missing[#missing + 1] = digest
  else
    local record = parse(raw)
    if not record then return corrupt(digest, 'it is not what was written') end
    if sees(ARGV[1], record) then seen[#seen + 1] = digest end
  end
end
for _, digest in ipairs(seen) do
  local record = parse(redis.call('HGET', items, digest))
  forget(digest, record.place, record)
end
for _, digest in ipairs(missing) do bury(digest) end
return seen
"""

_PURGE = """
local wrong = wrong_key()
if wrong then return wrong end
local tag, session, turn = unpack(ARGV)
local found, ids = {}, {}
for _, entry in ipairs(of_user(tag)) do
  local record = parse(redis.call('HGET', items, entry.digest))
  if session ~= '' and not record then return corrupt(entry.digest, 'it is missing or not what was written') end
  if session == '' or from(record, session, turn) then
    found[#found + 1] = entry
    ids[#ids + 1] = record and record.id or entry.digest
  end
end
for _, entry in ipairs(found) do
  forget(entry.digest, entry.place, parse(redis.call('HGET', items, entry.digest)))
end
return ids
"""

_PURGE_SESSIONS = """
local wrong = wrong_key()
if wrong then return wrong end
local most, at, read, users = tonumber(ARGV[1]), 2, 0, {}
while at < #ARGV and read < most do
  local tag, sessions, found = ARGV[at], {}, {}
  local last_place = at + 1 + tonumber(ARGV[at + 1])
  for place = at + 2, last_place do sessions[ARGV[place]] = true end
  for _, entry in ipairs(of_user(tag)) do
    local record = parse(redis.call('HGET', items, entry.digest))
    if not record then return corrupt(entry.digest, 'it is missing or not what was written') end
    if record.session_id and sessions[record.session_id] then found[#found + 1] = entry end
    read = read + 1
  end
  users[#users + 1] = found
  at = last_place + 1
end
local deleted = {}
for place, found in ipairs(users) do
  deleted[place] = {}
  for _, entry in ipairs(found) do
    local record = parse(redis.call('HGET', items, entry.digest))
    forget(entry.digest, entry.place, record)
    table.insert(deleted[place], record.id)
  end
end
return deleted
"""

_TOUCH = """
local wrong = wrong_key()
if wrong then return wrong end
local records = {}
for at = 3, #ARGV do
  if ARGV[2] ~= '' and redis.call('ZSCORE', used, ARGV[at]) then
    records[at] = parse(redis.call('HGET', items, ARGV[at]))
    if not records[at] then return corrupt(ARGV[at], 'it is missing or not what was written') end
  end
end
for at = 3, #ARGV do
  if redis.call('ZADD', used, 'XX', 'GT', 'CH', ARGV[1], ARGV[at]) == 1 and ARGV[2] ~= '' then
    records[at].uses = string.format('%.0f', (tonumber(records[at].uses) or 0) + 1)
    save(ARGV[at], records[at])
  end
end
"""

_SWEEP = """
local wrong = wrong_key()
if wrong then return wrong end
local before, types, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
local found, passed = {}, 0
local function enough(used_at)
  return #found >= limit and found[limit].used ~= used_at
end
repeat
  local entries = redis.call('ZRANGEBYSCORE', used, '-inf', '(' .. before, 'WITHSCORES', 'LIMIT', passed, 500)
  passed = passed + #entries / 2
  for at = 1, #entries, 2 do
    local digest, used_at = entries[at], tonumber(entries[at + 1])
    if enough(used_at) then break end
    local record = parse(redis.call('HGET', items, digest))
    if not record then return corrupt(digest, 'it is missing or not what was written') end
    if lists(types, record.type) then
      found[#found + 1] = {digest = digest, used = used_at, number = tonumber(string.sub(record.place, 49))}
    end
  end
until #entries == 0 or enough(tonumber(entries[#entries]))
table.sort(found, function(a, b)
  if a.used ~= b.used then return a.used < b.used end
  return a.number < b.number
end)
local names = {}
for at = 1, math.min(#found, limit) do
  local record = parse(redis.call('HGET', items, found[at].digest))
  forget(found[at].digest, record.place, record)
  names[#names + 1] = record.user
  names[#names + 1] = record.id
end
return names
"""

_SCAN = """
local tag, after, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local found = {}
if tag == '' then
  for _, digest in ipairs(redis.call('ZRANGEBYSCORE', order, '(' .. ARGV[2], '+inf', 'LIMIT', 0, limit)) do
    show(found, digest)
  end
else
  for _, entry in ipairs(of_user(tag)) do
    if entry.number > after and #found < 3 * limit then show(found, entry.digest) end
  end
end
return found
"""

SCRIPTS = {
    name: f"local TOMBSTONE_S = {TOMBSTONE_S:.0f}\n" + MISFIT + _COMMON + body
    for name, body in {
        "put": _PUT,
        "get": _GET,
        "query": _QUERY,
        "change": _CHANGE,
        "delete": _DELETE,
        "purge": _PURGE,
        "purge_sessions": _PURGE_SESSIONS,
        "touch": _TOUCH,
        "sweep": _SWEEP,
        "scan": _SCAN,
    }.items()
}
"""By name."""
