"""The keys of `RedisStore`, and the Lua code that its scripts share. A script checks everything before it writes.

All keys begin with one hash tag, so that they are on one node of a cluster. The scripts build most key names from the
numbers of sessions; only the hash tag is declared in KEYS.

    meta       hash    version, and of a later version writable_from
    ids        hash    JSON of a session's id and user -> number
    runs       hash    run id -> number of its session
    ledgers    sorted  names of all ledgers: numbers of sessions, places of users, and `nobody`
    ledgers:<place of a user>
               sorted  numbers of the user's sessions that have a ledger
    ledger:<place of a user>, ledger:nobody
               hash    what was spent by deleted sessions, and by forgotten users: JSON of day, agent, kind, model,
                       tool and tenant, and the name of a number -> that number; and `user` -> JSON of the user
    unsettled  sorted  members of sessions with a run that is queued or running, by name
    expiring   sorted  members of sessions that expire, by time of expiry
    deliveries hash    id of a delivery -> number of its session, revision, JSON
    due        sorted  ids of deliveries, by the time at which they are due
    lease      hash    holder and end of the lease of the deliveries; when the next sweep is due
    webhooks   hash    id of a webhook -> revision, JSON
    quotas     hash    id of a quota -> JSON
    counters   sorted  ids of the quotas that have counters
    counters:<id of a quota>
               hash    JSON of user, agent and tenant -> begin and end of the period, and what was used in it
    tenant_of  hash    user -> tenant
    tenants    sorted  tenants that users have, by name
    users:<tenant>
               sorted  the users who have it, by name
    deliveries:<place>
               sorted  ids of deliveries, by name; of the places `all` and those of users
    created:<status>:<place>, updated:<status>:<place>
               sorted  members, by time

    <number>           hash    the session: id, born and row (JSON), epoch, revision, size (of the log), status, places,
                               created, borrowed; older ones have neither revision nor size until a commit
    <number>:log       hash    position -> block; outlives the session while a fork keeps some
    <number>:lent      hash    number of a fork -> the spans of the log that it keeps, as ` start stop`, without stop
    <number>:turns, :runs      sorted  index, one letter, JSON; by name
    <number>:events, :keyed    sorted  number and event, by name: those without a key, those with one
    <number>:keys      hash    e=<event key> -> number; k=<idempotency key>, i<run id> -> index
    <number>:deliveries        hash    key of a delivery -> its id
    <number>:ledger            hash    what the session has spent, as above
    <number>:open      sorted  t<index> of open turns, r<index> of open runs, u<index> of those queued or running

A session's number is made by `new_key` and has 19 digits. It is text everywhere, since Lua's numbers cannot hold it.
Numbers of old stores were counted up and are shorter. A member is the number with at least 16 digits, zero-padded, so
members sort by creation. The index of a turn and the number of an event have 19 digits and sort likewise. A place is a
list of sessions: `all`, one per user, one per agent, and one per user and agent. Sessions that are called as agents are
in places of their own, whose names begin with `called-`, and in those of their callers. A shared session is also in
places of each member, whose names begin with `member-`. A session has one status, so it is in one list per place, and a
page of any status, with agents or without, is merged from several lists.

The keys of files are in `file_scripts`.

Large numbers are never converted to Lua numbers: they are passed as text, and Redis adds those of ledgers. Counters of
quotas are, since their limits are at most 2**53.
"""

from __future__ import annotations

from turnwise.memory.stores.redis.database import MISFIT
from turnwise.memory.stores.redis.file_scripts import FILES

VERSION = "1"
"""The version of the key layout. A later one also has `writable_from` there, the oldest whose code may use it."""

COMMON = (
    f"local VERSION = '{VERSION}'\n{MISFIT}"
    r"""
local base, at = KEYS[1], 0
local ids, run_ids, meta, ledgers = base .. ':ids', base .. ':runs', base .. ':meta', base .. ':ledgers'
local unsettled, expiring = base .. ':unsettled', base .. ':expiring'
local deliveries, due = base .. ':deliveries', base .. ':due'
local tenant_of, tenants = base .. ':tenant_of', base .. ':tenants'

local function now()
  local time = redis.call('TIME')
  return time[1] .. '.' .. string.rep('0', 6 - #time[2]) .. time[2]
end

local function take()
  at = at + 1
  return ARGV[at]
end

local function rows(width)
  local found = {}
  for row = 1, tonumber(take()) do
    found[row] = {}
    for column = 1, width do found[row][column] = take() end
  end
  return found
end

local function key(number, part)
  return base .. ':' .. number .. (part or '')
end

local function member(number)
  return string.rep('0', 16 - #number) .. number
end

local function number_of(found)
  return (string.gsub(found, '^0+', ''))
end

local function after(index)
  return index == '' and '-' or '(' .. index .. '\255'
end

local function one(set, index)
  return redis.call('ZRANGEBYLEX', set, '[' .. index, '[' .. index .. '\255', 'LIMIT', 0, 1)[1]
end

local function remove(set, index)
  redis.call('ZREMRANGEBYLEX', set, '[' .. index, '[' .. index .. '\255')
end

local function put(set, index, text)
  remove(set, index)
  redis.call('ZADD', set, 0, index .. text)
end

local function mark(set, name, on)
  if on then redis.call('ZADD', set, 0, name) else redis.call('ZREM', set, name) end
end

local function show(number)
  local row = redis.pcall('HMGET', key(number), 'born', 'row', 'epoch', 'id', 'revision')
  if row.err then row = {false, false, false, false, false} end -- it is no hash: its reader says that it is damaged
  return {number, unpack(row, 1, 5)}
end

local function wrong_key(hashes, sets)
  local name, why = misfit('hash', hashes)
  if not name then name, why = misfit('zset', sets) end
  return name and {'corrupt', name, why}
end

local function lists(places, ...)
  local names = {unsettled, expiring}
  for place in string.gmatch(places, '%S+') do
    for _, status in ipairs({...}) do
      names[#names + 1] = base .. ':created:' .. status .. ':' .. place
      names[#names + 1] = base .. ':updated:' .. status .. ':' .. place
    end
  end
  return names
end

local function list(number, status, places, created, updated)
  for place in string.gmatch(places, '%S+') do
    if created then redis.call('ZADD', base .. ':created:' .. status .. ':' .. place, created, member(number)) end
    redis.call('ZADD', base .. ':updated:' .. status .. ':' .. place, updated, member(number))
  end
end

local function unlist(number, status, places)
  for place in string.gmatch(places, '%S+') do
    redis.call('ZREM', base .. ':created:' .. status .. ':' .. place, member(number))
    redis.call('ZREM', base .. ':updated:' .. status .. ':' .. place, member(number))
  end
end

local function expire(number, deadline)
  if deadline == '' then
    redis.call('ZREM', expiring, member(number))
  else
    redis.call('ZADD', expiring, deadline, member(number))
  end
end

-- The answer that refuses changes of a session's deliveries; nil if they can be made.
local function refused(number, changes)
  local home, seen = key(number, ':deliveries'), {}
  for _, change in ipairs(changes) do
    local name, id, revision = change[1], change[2], change[3]
    if revision ~= '' then
      local text = redis.call('HGET', home, name) == id and redis.call('HGET', deliveries, id)
      local is_same = text and string.match(text, '^%d+ (%d+) ') == revision
      if not is_same or seen['i' .. id] then return {'changed', id} end
    else
      if seen['k' .. name] or redis.call('HEXISTS', home, name) == 1 then return {'duplicate', name} end
      if seen['i' .. id] or redis.call('HEXISTS', deliveries, id) == 1 then return {'duplicate', id} end
      seen['k' .. name] = true
    end
    seen['i' .. id] = true
  end
end

local function user_place(places)
  return string.match(places, 'user%-%x+') or ''
end

local function delivery_lists(places)
  return {base .. ':deliveries:all', base .. ':deliveries:' .. user_place(places)}
end

local function drop_delivery(id, sets)
  redis.call('HDEL', deliveries, id)
  redis.call('ZREM', due, id)
  for _, set in ipairs(sets) do redis.call('ZREM', set, id) end
end

local function change_deliveries(number, places, changes)
  if #changes == 0 then return end
  local home, sets = key(number, ':deliveries'), delivery_lists(places)
  for _, change in ipairs(changes) do
    local name, id, _, due_at, text = unpack(change)
    if text == '' then
      drop_delivery(id, sets)
      redis.call('HDEL', home, name)
    else
      redis.call('HSET', deliveries, id, number .. ' ' .. text)
      redis.call('HSET', home, name, id)
      for _, set in ipairs(sets) do redis.call('ZADD', set, 0, id) end
      if due_at == '' then redis.call('ZREM', due, id) else redis.call('ZADD', due, due_at, id) end
    end
  end
end

-- The answer that refuses to receive deliveries of other sessions; nil if they are as they were read.
local function refused_received(received)
  local seen = {}
  for _, delivery in ipairs(received) do
    local session, name, id, revision = unpack(delivery)
    local sender = redis.call('HGET', ids, session)
    local text = sender and redis.call('HGET', key(sender, ':deliveries'), name) == id
      and redis.call('HGET', deliveries, id)
    local is_same = text and string.match(text, '^%d+ (%d+) ') == revision
    if not is_same or seen[id] then return {'changed', id} end
    seen[id] = true
  end
end

local function receive(places, received)
  for _, delivery in ipairs(received) do
    local session, name, id = unpack(delivery)
    drop_delivery(id, delivery_lists(places))
    redis.call('HDEL', key(redis.call('HGET', ids, session), ':deliveries'), name)
  end
end

local function ledger(name)
  return tonumber(name) and key(name, ':ledger') or base .. ':ledger:' .. name
end

-- Adds what a ledger has to another one, and deletes it.
local function move_ledger(from, to)
  local found = redis.call('HGETALL', ledger(from))
  for place = 1, #found, 2 do
    if found[place] ~= 'user' then redis.call('HINCRBY', ledger(to), found[place], found[place + 1]) end
  end
  if #found > 0 then redis.call('ZADD', ledgers, 0, to) end
  redis.call('DEL', ledger(from))
  redis.call('ZREM', ledgers, from)
  return #found / 2
end

local function lent(log)
  local spans = {}
  for _, text in ipairs(redis.call('HVALS', key(log, ':lent'))) do
    for start, stop in string.gmatch(text, '(%d+) (%d+)') do
      spans[#spans + 1] = {start = tonumber(start), stop = tonumber(stop)}
    end
  end
  return spans
end

local function release(log)
  if redis.call('EXISTS', key(log)) == 1 then return end
  local spans, positions, home = lent(log), {}, key(log, ':log')
  if #spans == 0 then
    redis.call('DEL', home)
    return
  end
  for _, name in ipairs(redis.call('HKEYS', home)) do
    if tonumber(name) then positions[#positions + 1] = tonumber(name) else redis.call('HDEL', home, name) end
  end
  table.sort(spans, function(a, b) return a.start < b.start end)
  table.sort(positions)
  local next, stop = 1, 0
  for _, position in ipairs(positions) do
    while spans[next] and spans[next].start <= position do
      stop, next = math.max(stop, spans[next].stop), next + 1
    end
    if position >= stop then redis.call('HDEL', home, string.format('%.0f', position)) end
  end
end

local function counter_hash(quota)
  return base .. ':counters:' .. quota
end

-- When the period at a time begins and ends.
local function period(per, time)
  local second = math.floor(tonumber(time))
  local day = math.floor(second / 86400)
  if per == 'minute' then return second - second % 60, second - second % 60 + 60 end
  if per == 'day' then return day * 86400, day * 86400 + 86400 end
  local first, length, year = 0, 0, 1970 -- from here on, a month is found by counting days
  repeat
    local is_leap = year % 4 == 0 and (year % 100 ~= 0 or year % 400 == 0)
    for _, days in ipairs({31, is_leap and 29 or 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}) do
      first, length = first + length, days
      if first + length > day then break end
    end
    year = year + 1
  until first + length > day
  return first * 86400, (first + length) * 86400
end

-- The counter of a count after it, as begin, end and what is used; or nil, what is used, and the end, if that is all.
local function counted(count, counters, time)
  local quota, name, per, amount, most = unpack(count)
  local place = quota .. name
  local starts, ends = period(per, time)
  local text = counters[place] or redis.call('HGET', counter_hash(quota), name) or ''
  local old_starts, old_ends, used = string.match(text, '^(%d+) (%d+) (%d+)$')
  if old_starts and starts <= tonumber(old_starts) and tonumber(old_starts) <= ends then
    starts, ends, used = tonumber(old_starts), tonumber(old_ends), tonumber(used)
  else
    used = 0
  end
  if most ~= '' and used >= tonumber(most) then return nil, used, ends end
  counters[place] = string.format('%.0f %.0f %.0f', starts, ends, used + tonumber(amount))
  return counters[place]
end

-- The counters after all counts, by quota and field; or nil and the answer that refuses them.
local function all_counted(counts)
  local counters, time = {}, now()
  for index, count in ipairs(counts) do
    local counter, used, ends = counted(count, counters, time)
    if not counter then
      return nil, {'', index, string.format('%.0f', used), string.format('%.0f', ends), time}
    end
  end
  return counters
end

local function count_keys(counts, hashes, sets)
  for _, count in ipairs(counts) do
    hashes[#hashes + 1] = counter_hash(count[1])
    sets[#sets + 1] = base .. ':counters'
  end
end

local function store_counters(counts, counters)
  for _, count in ipairs(counts) do
    redis.call('HSET', counter_hash(count[1]), count[2], counters[count[1] .. count[2]])
    redis.call('ZADD', base .. ':counters', 0, count[1])
  end
end

local found_version = redis.call('HGET', meta, 'version')
if found_version and found_version ~= VERSION then
  local writable_from = redis.call('HGET', meta, 'writable_from') or found_version
  local found, oldest, own = tonumber(found_version), tonumber(writable_from), tonumber(VERSION)
  if not (found and oldest and oldest <= own and own < found) then
    return {'version', found_version, writable_from}
  end
end
""" + FILES
)
"""The code at the beginning of each script."""
