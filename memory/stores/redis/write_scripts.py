"""The scripts of `RedisStore` that write. Each checks everything before it writes."""

from __future__ import annotations

from turnwise.memory.stores.redis.file_scripts import FILE_WRITES
from turnwise.memory.stores.redis.scripts import COMMON

_CREATE = r"""
local number, session, born, row, epoch, status = take(), take(), take(), take(), take(), take()
local revision, size = take(), take()
local places, created, updated, deadline = take(), take(), take(), take()
local borrowed, turns, changes = rows(3), rows(3), rows(5)
local user, source, owner = take(), take(), take()
if redis.call('HEXISTS', ids, session) == 1 then return {'exists'} end
if redis.call('EXISTS', key(number), key(number, ':log')) > 0 then return {'', 'given'} end
for _, span in ipairs(borrowed) do
  local log = key(span[1], ':log')
  for position = tonumber(span[2]), tonumber(span[3]) - 1 do
    if redis.call('HEXISTS', log, string.format('%.0f', position)) == 0 then return {'gone', unpack(span)} end
  end
end
local refusal = refused(number, changes)
if refusal then return refusal end
local hashes, sets = {meta, ids}, lists(places, status)
if #changes > 0 then
  for _, hash in ipairs({deliveries, key(number, ':deliveries')}) do hashes[#hashes + 1] = hash end
  for _, set in ipairs({due, unpack(delivery_lists(places))}) do sets[#sets + 1] = set end
end
for _, span in ipairs(borrowed) do hashes[#hashes + 1] = key(span[1], ':lent') end
for _, part in ipairs({':turns', ':open'}) do sets[#sets + 1] = key(number, part) end
local wrong = wrong_key(hashes, sets) or wrong_files(user, source, owner)
if wrong then return wrong end

redis.call('HSETNX', meta, 'version', VERSION)
redis.call('HSET', ids, session, number)
local logs = {}
for _, span in ipairs(borrowed) do
  local lent = key(span[1], ':lent')
  local spans = redis.call('HGET', lent, number) or ''
  if spans == '' then logs[#logs + 1] = span[1] end
  redis.call('HSET', lent, number, spans .. ' ' .. span[2] .. ' ' .. span[3])
end
redis.call('HSET', key(number), 'id', session, 'born', born, 'row', row, 'epoch', epoch, 'status', status,
  'revision', revision, 'size', size,
  'places', places, 'created', created, 'borrowed', table.concat(logs, ' '))
list(number, status, places, created, updated)
expire(number, deadline)
for _, turn in ipairs(turns) do
  put(key(number, ':turns'), turn[1], turn[2] .. turn[3])
  mark(key(number, ':open'), 't' .. turn[1], turn[2] == 'o')
end
change_deliveries(number, places, changes)
if source ~= '' then copy_files(user, source, owner) end
return {''}
"""

_ACTIVATE = r"""
local session, number, epoch, revision, new_epoch, new_revision = take(), take(), take(), take(), take(), take()
local found = redis.call('HGET', ids, session)
if not found then return {'missing'} end
local found_epoch, found_revision = unpack(redis.call('HMGET', key(found), 'epoch', 'revision'))
if found ~= number or found_epoch ~= epoch or (found_revision or '0') ~= revision then return {'', 'changed'} end
redis.call('HSET', key(number), 'epoch', new_epoch, 'revision', new_revision)
return {''}
"""

_COMMIT = r"""
local number, epoch, session, row, status = take(), take(), take(), take(), take()
local revision, revision_before, size, size_before = take(), take(), take(), take()
local updated, deadline, upto = take(), take(), take()
local turns_upto, cleared = tonumber(take()), rows(2)
local blocks, dropped, turns, new, runs, events = rows(2), rows(1), rows(3), rows(5), rows(3), rows(3)
local changes, received, spent, counts = rows(5), rows(4), rows(2), rows(5)
local joined, left = take(), take()
local home, log, keys = key(number), key(number, ':log'), key(number, ':keys')
local open, turn_set, run_set = key(number, ':open'), key(number, ':turns'), key(number, ':runs')
local loose, keyed = key(number, ':events'), key(number, ':keyed')

local owned, owned_epoch, old_revision, old_size, old_status, places, created =
  unpack(redis.call('HMGET', home, 'id', 'epoch', 'revision', 'size', 'status', 'places', 'created'))
if owned ~= session or owned_epoch ~= epoch or (old_revision or '0') ~= revision_before
  or (old_size or size_before) ~= size_before then return {'fenced'} end
if not (old_status and places and created) then return {'corrupt', home, 'a field of it is missing'} end
if not tonumber(created) then return {'corrupt', home, 'the time of its creation is no number'} end

local seen = {}
for _, event in ipairs(events) do
  local name = event[2]
  if name ~= '' then
    if seen[name] or redis.call('HEXISTS', keys, name) == 1 then return {'duplicate', string.sub(name, 3)} end
    seen[name] = true
  end
end
for _, run in ipairs(new) do
  if run[3] ~= '' and redis.call('HEXISTS', keys, run[3]) == 1 then return {'duplicate', string.sub(run[3], 3)} end
  if redis.call('HEXISTS', run_ids, run[2]) == 1 then return {'duplicate', run[2]} end
  if one(run_set, run[1]) then return {'taken', 'a run of index', run[1]} end
end
for _, block in ipairs(blocks) do
  if redis.call('HEXISTS', log, block[1]) == 1 then return {'taken', 'block', block[1]} end
end
for _, event in ipairs(events) do
  local seq = event[1]
  if seen[' ' .. seq] or one(keyed, seq) or (seq > upto and one(loose, seq)) then
    return {'taken', 'event', seq}
  end
  seen[' ' .. seq] = true
end

local refusal = refused(number, changes) or refused_received(received)
if refusal then return refusal end

local gone = {}
if turns_upto >= 0 then
  for _, event in ipairs(redis.call('ZRANGE', loose, 0, -1)) do
    local head = string.match(event, '^' .. string.rep('.', 19) .. '([^\n]*)\n')
    local is_read, about = pcall(cjson.decode, head or '')
    if not is_read or type(about) ~= 'table' then
      return {'corrupt', loose .. ' ' .. string.sub(event, 1, 19), 'it is not what was written'}
    end
    if type(about[3]) == 'number' and about[3] <= turns_upto then gone[#gone + 1] = event end
  end
end
local sets = lists(places .. ' ' .. joined, status, old_status)
for _, set in ipairs({open, turn_set, run_set, loose, keyed}) do sets[#sets + 1] = set end
local hashes = {log, keys, run_ids, key(number, ':lent')}
if #changes + #received > 0 then
  for _, hash in ipairs({deliveries, key(number, ':deliveries')}) do hashes[#hashes + 1] = hash end
  for _, set in ipairs({due, unpack(delivery_lists(places))}) do sets[#sets + 1] = set end
end
local lists_of_ledger = {}
if #spent > 0 then
  hashes[#hashes + 1] = ledger(number)
  if redis.call('EXISTS', ledger(number)) == 0 then
    lists_of_ledger = {ledgers, ledgers .. ':' .. user_place(places)}
  end
  for _, set in ipairs(lists_of_ledger) do sets[#sets + 1] = set end
end
count_keys(counts, hashes, sets)
local wrong = wrong_key(hashes, sets)
if wrong then return wrong end
local counters, used_up = all_counted(counts)
if used_up then return used_up end

-- First the writes that a Redis without memory refuses.
redis.call('HSET', home, 'row', row, 'status', status, 'revision', revision, 'size', size)
if joined ~= '' or left ~= '' then
  unlist(number, old_status, left)
  list(number, old_status, joined, created, updated)
  local kept, gone = {}, {}
  for place in string.gmatch(left, '%S+') do gone[place] = true end
  for place in string.gmatch(places .. ' ' .. joined, '%S+') do
    if not gone[place] then kept[#kept + 1] = place end
  end
  places = table.concat(kept, ' ')
  redis.call('HSET', home, 'places', places)
end
if status ~= old_status then
  unlist(number, old_status, places)
  list(number, status, places, created, updated)
else
  list(number, status, places, nil, updated)
end
expire(number, deadline)
for _, number_spent in ipairs(spent) do redis.call('HINCRBY', ledger(number), number_spent[1], number_spent[2]) end
for _, set in ipairs(lists_of_ledger) do redis.call('ZADD', set, 0, number) end
store_counters(counts, counters)
for _, block in ipairs(blocks) do redis.call('HSET', log, block[1], block[2]) end
if #cleared > 0 then
  local spans = lent(number)
  for _, block in ipairs(cleared) do -- but not what a fork keeps: from start up to, and without, stop
    local position, is_lent = tonumber(block[1]), false
    for _, span in ipairs(spans) do
      is_lent = is_lent or (span.start <= position and position < span.stop)
    end
    if not is_lent and redis.call('HEXISTS', log, block[1]) == 1 then redis.call('HSET', log, block[1], block[2]) end
  end
end
for _, turn in ipairs(dropped) do
  remove(turn_set, turn[1])
  mark(open, 't' .. turn[1], false)
end
for _, turn in ipairs(turns) do
  put(turn_set, turn[1], turn[2] .. turn[3])
  mark(open, 't' .. turn[1], turn[2] == 'o')
end
local function set_run(index, letter, text)
  put(run_set, index, letter .. text)
  mark(open, 'r' .. index, letter ~= 'e')
  mark(open, 'u' .. index, letter == 'u')
end
for _, run in ipairs(new) do
  redis.call('HSET', run_ids, run[2], number)
  redis.call('HSET', keys, 'i' .. run[2], run[1])
  if run[3] ~= '' then redis.call('HSET', keys, run[3], run[1]) end
  set_run(run[1], run[4], run[5])
end
for _, run in ipairs(runs) do
  local index = redis.call('HGET', keys, 'i' .. run[1])
  if index then set_run(index, run[2], run[3]) end
end
if #new + #runs > 0 then
  mark(unsettled, member(number), redis.call('ZLEXCOUNT', open, '[u', '[u\255') > 0)
end
if upto ~= '' then redis.call('ZREMRANGEBYLEX', loose, '-', '[' .. upto .. '\255') end
for _, event in ipairs(gone) do redis.call('ZREM', loose, event) end
for _, event in ipairs(events) do
  redis.call('ZADD', event[2] == '' and loose or keyed, 0, event[1] .. event[3])
  if event[2] ~= '' then redis.call('HSET', keys, event[2], event[1]) end
end
change_deliveries(number, places, changes)
receive(places, received)
return {''}
"""

_DELETING = r"""
-- What of a session a deletion reads: the name of the session and of its user, and the places of its files.
local function take_session()
  return {session = take(), user_name = take(), file_user = take(), owner = take()}
end

-- Completes a session by its hash; returns the answer that refuses a deletion, if a key has another kind or is damaged.
local function undeletable(one)
  local number = one.number
  one.epoch, one.status, one.places, one.borrowed =
    unpack(redis.call('HMGET', key(number), 'epoch', 'status', 'places', 'borrowed'))
  if not (one.epoch and one.status and one.places and one.borrowed) then
    return {'corrupt', key(number), 'a field of it is missing'}
  end
  one.user = user_place(one.places)
  local hashes = {run_ids, ledger(number), ledger(one.user)}
  for _, part in ipairs({':keys', ':log', ':lent', ':deliveries'}) do hashes[#hashes + 1] = key(number, part) end
  hashes[#hashes + 1] = deliveries
  for log in string.gmatch(one.borrowed, '%S+') do
    for _, part in ipairs({':log', ':lent'}) do hashes[#hashes + 1] = key(log, part) end
  end
  local sets = lists(one.places, one.status)
  for _, set in ipairs({ledgers, ledgers .. ':' .. one.user}) do sets[#sets + 1] = set end
  for _, set in ipairs({key(number, ':turns'), due, unpack(delivery_lists(one.places))}) do sets[#sets + 1] = set end
  return wrong_key(hashes, sets) or wrong_files(one.file_user, one.owner)
end

-- Deletes a session, which has been completed; returns how many turns it had.
local function delete(one)
  local number, user, delivery_sets = one.number, one.user, delivery_lists(one.places)
  local turns = redis.call('ZCARD', key(number, ':turns'))
  redis.call('HDEL', ids, one.session) -- first: Redis without memory lets a script that began with a deletion go on
  for _, name in ipairs(redis.call('HKEYS', key(number, ':keys'))) do
    if string.sub(name, 1, 1) == 'i' then redis.call('HDEL', run_ids, string.sub(name, 2)) end
  end
  for _, id in ipairs(redis.call('HVALS', key(number, ':deliveries'))) do drop_delivery(id, delivery_sets) end
  unlist(number, one.status, one.places)
  if move_ledger(number, user) > 0 then redis.call('HSET', ledger(user), 'user', one.user_name) end
  redis.call('ZREM', ledgers .. ':' .. user, number)
  redis.call('ZREM', unsettled, member(number))
  redis.call('ZREM', expiring, member(number))
  redis.call('DEL', key(number), key(number, ':turns'), key(number, ':runs'), key(number, ':events'),
    key(number, ':keyed'), key(number, ':keys'), key(number, ':open'), key(number, ':deliveries'))
  release(number)
  for log in string.gmatch(one.borrowed, '%S+') do
    redis.call('HDEL', key(log, ':lent'), number)
    release(log)
  end
  drop_files(one.file_user, one.owner)
  return turns
end

-- Whether nobody has used a session since it was read: its number, epoch and revision are these, no run of it is open,
-- and the lists of sessions that it has called are empty.
local function is_unchanged(one, number, epoch, revision, called)
  if redis.call('HGET', ids, one.session) ~= number then return false end
  local found_epoch, found_revision = unpack(redis.call('HMGET', key(number), 'epoch', 'revision'))
  if found_epoch ~= epoch or (found_revision or '0') ~= revision then return false end
  if redis.call('ZRANGEBYLEX', key(number, ':open'), '[r', '[r\255', 'LIMIT', 0, 1)[1] then return false end
  for _, status in ipairs({'active', 'ended'}) do
    if redis.call('ZCARD', base .. ':created:' .. status .. ':' .. called) > 0 then return false end
  end
  return true
end
"""

_DELETE = r"""
local one, epoch, log = take_session(), take(), take()
one.number = redis.call('HGET', ids, one.session)
if not one.number then return {'missing'} end
local wrong = undeletable(one)
if wrong and not one.user then return wrong end
if (epoch ~= '' and epoch ~= one.epoch) or (log ~= '' and log ~= one.number) then return {'fenced'} end
if wrong then return wrong end
return {'', delete(one)}
"""

_DELETE_UNCHANGED = r"""
local found = {}
for place = 1, tonumber(take()) do
  local one = take_session()
  local number, epoch, revision, called = take(), take(), take(), take()
  if is_unchanged(one, number, epoch, revision, called) then
    one.number, one.place = number, place
    if not undeletable(one) then found[#found + 1] = one end -- else `delete` says what is wrong
  end
end
local places = {}
for _, one in ipairs(found) do
  delete(one)
  places[#places + 1] = one.place
end
return {'', places}
"""

_END_UNCHANGED = r"""
local found = {}
for place = 1, tonumber(take()) do
  local one = take_session()
  local number, epoch, revision, called = take(), take(), take(), take()
  local new_epoch, new_revision, row, created, updated = take(), take(), take(), take(), take()
  if is_unchanged(one, number, epoch, revision, called) then
    local status, places = unpack(redis.call('HMGET', key(number), 'status', 'places'))
    if status and places and not wrong_key({}, lists(places, status, 'ended')) then
      one.number, one.place, one.status, one.places = number, place, status, places
      one.epoch, one.revision, one.row, one.created, one.updated = new_epoch, new_revision, row, created, updated
      found[#found + 1] = one
    end
  end
end
local ended = {}
for _, one in ipairs(found) do
  redis.call('HSET', key(one.number), 'epoch', one.epoch, 'revision', one.revision, 'status', 'ended', 'row', one.row)
  if one.status ~= 'ended' then
    unlist(one.number, one.status, one.places)
    list(one.number, 'ended', one.places, one.created, one.updated)
  end
  ended[#ended + 1] = one.place
end
return {'', ended}
"""

_ADD_DELIVERY = r"""
local session, changes = take(), rows(5)
local number = redis.call('HGET', ids, session)
if not number then return {'missing'} end
local home = key(number, ':deliveries')
local wrong = wrong_key({deliveries, home}, {due})
if wrong then return wrong end
local id = redis.call('HGET', home, changes[1][1])
if id then return {'', id, redis.call('HGET', deliveries, id)} end
local refusal = refused(number, changes)
if refusal then return refusal end
local places = redis.call('HGET', key(number), 'places')
if not places then return {'corrupt', key(number), 'a field of it is missing'} end
wrong = wrong_key({}, delivery_lists(places))
if wrong then return wrong end
change_deliveries(number, places, changes)
return {''}
"""

_CHANGE_DELIVERY = r"""
local session, changes = take(), rows(5)
local number = redis.call('HGET', ids, session)
if not number then return {'changed', changes[1][2]} end
local wrong = wrong_key({deliveries, key(number, ':deliveries')}, {due})
if wrong then return wrong end
local refusal = refused(number, changes)
if refusal then return refusal end
local places = redis.call('HGET', key(number), 'places')
if not places then return {'corrupt', key(number), 'a field of it is missing'} end
wrong = wrong_key({}, delivery_lists(places))
if wrong then return wrong end
change_deliveries(number, places, changes)
return {''}
"""

_FORGET_IN_LEDGER = r"""
local user, user_name = take(), take()
local wrong = wrong_key({ledger(user), ledger('nobody')}, {ledgers, ledgers .. ':' .. user, base .. ':counters'})
if wrong then return wrong end
local names = redis.call('ZRANGE', ledgers .. ':' .. user, 0, -1)
names[#names + 1] = user
for _, name in ipairs(names) do
  wrong = wrong_key({ledger(name)}, {})
  if wrong then return wrong end
end
local quotas = redis.call('ZRANGE', base .. ':counters', 0, -1)
for _, quota in ipairs(quotas) do
  wrong = wrong_key({counter_hash(quota)}, {})
  if wrong then return wrong end
end
for _, quota in ipairs(quotas) do
  for _, name in ipairs(redis.call('HKEYS', counter_hash(quota))) do
    if cjson.decode(name)[1] == user_name then redis.call('HDEL', counter_hash(quota), name) end
  end
end
for _, name in ipairs(names) do move_ledger(name, 'nobody') end
redis.call('DEL', ledgers .. ':' .. user)
return {''}
"""

_LEASE = r"""
local asking, ttl, lease, time = take(), take(), base .. ':lease', now()
local wrong = wrong_key({lease}, {due})
if wrong then return wrong end
local holder, ends = unpack(redis.call('HMGET', lease, 'holder', 'until'))
holder, ends = holder or '', ends or '0'
if (tonumber(ends) or 0) <= tonumber(time) then holder = '' end
if ttl ~= '' and (holder == '' or holder == asking) then
  holder, ends = asking, string.format('%.6f', tonumber(time) + tonumber(ttl))
  redis.call('HSET', lease, 'holder', holder, 'until', ends)
end
return {'', holder, ends, time, redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2] or ''}
"""

_CLAIM_SWEEP = r"""
local every, lease, time = tonumber(take()), base .. ':lease', tonumber(now())
local wrong = wrong_key({lease}, {})
if wrong then return wrong end
local due_at = tonumber(redis.call('HGET', lease, 'sweep_at') or '')
local left, next_at = 0, time + every
if not due_at or due_at > time then
  next_at = math.min(due_at or next_at, next_at)
  left = next_at - time
end
redis.call('HSET', lease, 'sweep_at', string.format('%.6f', next_at))
return {'', string.format('%.6f', left)}
"""

_CHANGE_WEBHOOK = r"""
local id, before, after, text, webhooks = take(), take(), take(), take(), base .. ':webhooks'
local wrong = wrong_key({webhooks}, {})
if wrong then return wrong end
local stored = string.match(redis.call('HGET', webhooks, id) or '', '^%d+') or ''
if stored ~= before then return {'', stored} end
if text == '' then redis.call('HDEL', webhooks, id) else redis.call('HSET', webhooks, id, after .. ' ' .. text) end
return {''}
"""

_SET_QUOTA = r"""
local id, text, most, quotas = take(), take(), take(), base .. ':quotas'
local wrong = wrong_key({quotas}, {})
if wrong then return wrong end
if redis.call('HEXISTS', quotas, id) == 0 and redis.call('HLEN', quotas) >= tonumber(most) then return {'', 'many'} end
redis.call('HSET', quotas, id, text)
return {''}
"""

_USE_QUOTAS = r"""
local counts, hashes, sets = rows(5), {}, {}
count_keys(counts, hashes, sets)
local wrong = wrong_key(hashes, sets)
if wrong then return wrong end
local counters, used_up = all_counted(counts)
if used_up then return used_up end
store_counters(counts, counters)
return {''}
"""

_REMOVE_QUOTA = r"""
local id, quotas = take(), base .. ':quotas'
local wrong = wrong_key({quotas}, {base .. ':counters'})
if wrong then return wrong end
if redis.call('HDEL', quotas, id) == 0 then return {'', 'none'} end
redis.call('DEL', counter_hash(id))
redis.call('ZREM', base .. ':counters', id)
return {''}
"""

_SET_TENANT = r"""
local user, tenant = take(), take()
local wrong = wrong_key({tenant_of}, {tenants})
if wrong then return wrong end
local old = redis.call('HGET', tenant_of, user)
wrong = wrong_key({}, {base .. ':users:' .. tenant, base .. ':users:' .. (old or '')})
if wrong then return wrong end
if old and old ~= tenant then
  redis.call('HDEL', tenant_of, user)
  redis.call('ZREM', base .. ':users:' .. old, user)
  mark(tenants, old, redis.call('EXISTS', base .. ':users:' .. old) == 1)
end
if tenant ~= '' then
  redis.call('HSET', tenant_of, user, tenant)
  redis.call('ZADD', base .. ':users:' .. tenant, 0, user)
  redis.call('ZADD', tenants, 0, tenant)
end
return {''}
"""

_PROBE = r"""
local probe = base .. ':probe'
redis.call('SET', probe, take())
redis.call('DEL', probe)
return {''}
"""

WRITES = {
    name: COMMON + body
    for name, body in {
        "create": _CREATE,
        "activate": _ACTIVATE,
        "commit": _COMMIT,
        "delete": _DELETING + _DELETE,
        "delete_unchanged": _DELETING + _DELETE_UNCHANGED,
        "end_unchanged": _DELETING + _END_UNCHANGED,
        "add_delivery": _ADD_DELIVERY,
        "change_delivery": _CHANGE_DELIVERY,
        "forget_in_ledger": _FORGET_IN_LEDGER,
        "lease": _LEASE,
        "claim_sweep": _CLAIM_SWEEP,
        "change_webhook": _CHANGE_WEBHOOK,
        "set_quota": _SET_QUOTA,
        "remove_quota": _REMOVE_QUOTA,
        "use_quotas": _USE_QUOTAS,
        "set_tenant": _SET_TENANT,
        "probe": _PROBE,
        **FILE_WRITES,
    }.items()
}
"""By name."""
