"""The scripts of `RedisStore` that read."""

from __future__ import annotations

from turnwise.memory.stores.redis.file_scripts import FILE_READS
from turnwise.memory.stores.redis.scripts import COMMON
from turnwise.memory.values.weights import BLOCK_BYTES, PAGE_BYTES

_GET = r"""
local number = redis.call('HGET', ids, take())
if not number then return {'missing'} end
return {'', show(number)}
"""

_STATE = r"""
local number, user = redis.call('HGET', ids, take()), take()
if not number then return {'missing'} end
local head, turns, runs, passed = nil, {}, {}, 0
repeat
  local found = redis.call('ZREVRANGEBYLEX', key(number, ':turns'), '+', '-', 'LIMIT', passed, 8)
  for _, turn in ipairs(found) do
    if not head and string.sub(turn, 20, 20) == 'e' then head = turn end
  end
  passed = passed + 8
until head or #found == 0
for _, name in ipairs(redis.call('ZRANGEBYLEX', key(number, ':open'), '[r', '(u')) do
  local is_turn = string.sub(name, 1, 1) == 't'
  local found = is_turn and turns or runs
  found[#found + 1] = one(key(number, is_turn and ':turns' or ':runs'), string.sub(name, 2)) or name
end
return {'', show(number), head and {head} or {}, turns, runs, now(), redis.call('HGET', tenant_of, user) or ''}
"""

_NOW = r"""
return {'', now()}
"""

_FIRST = f"local PAGE_BYTES, BLOCK_BYTES = {PAGE_BYTES}, {BLOCK_BYTES}\n"

_BLOCKS = (
    _FIRST
    + r"""
local found, size = {}, 0
for _, span in ipairs(rows(3)) do
  local log = key(span[1], ':log')
  for position = tonumber(span[2]), tonumber(span[3]) - 1 do
    if size > PAGE_BYTES then return {'', found} end
    local name = string.format('%.0f', position)
    local block = redis.call('HGET', log, name)
    if not block then return {'gone', span[1], name, ''} end
    found[#found + 1], size = block, size + BLOCK_BYTES + #block
  end
end
return {'', found}
"""
)

_PAGE = (
    _FIRST
    + r"""
local number = redis.call('HGET', ids, take())
if not number then return {'missing'} end
local index, limit, found, upto = take(), tonumber(take()), {}, nil
while at < #ARGV do
  local set, part, size, low = key(number, take()), {}, 0, after(index)
  repeat
    local count = #part == 0 and 1 or math.ceil((PAGE_BYTES - size) * #part / math.max(size, 1))
    count = math.min(limit - #part, math.max(1, math.min(count, #part * 4)))
    local more = redis.call('ZRANGEBYLEX', set, low, '+', 'LIMIT', 0, count)
    for _, entry in ipairs(more) do
      part[#part + 1], size = entry, size + #entry
    end
    low = #part > 0 and '(' .. part[#part]
    if #more == count and size > PAGE_BYTES then -- other sets may have entries behind what is not read of this one
      if not upto or part[#part] < upto then upto = part[#part] end
      break
    end
  until #more < count or #part == limit
  found[#found + 1] = part
end
return {'', number, upto or '', unpack(found)}
"""
)

_RUN = r"""
local run, user = take(), take()
local number = redis.call('HGET', run_ids, run)
if not number then return {'missing'} end
local id = redis.pcall('HGET', key(number), 'id') -- what is damaged may be another user's, who must not be told
if type(id) ~= 'string' or string.sub(id, -#user) ~= user then return {'missing'} end
local index = redis.call('HGET', key(number, ':keys'), 'i' .. run)
return {'', number, id, index and one(key(number, ':runs'), index) or ''}
"""

_OF_KEY = r"""
local number = redis.call('HGET', ids, take())
if not number then return {'missing'} end
local index = redis.call('HGET', key(number, ':keys'), take())
if not index then return {'', number} end
return {'', number, one(key(number, take()), index) or index}
"""

_SHOWN = (
    _FIRST
    + r"""
local shown, size, is_cut = {}, 0, 0

-- Add a session; return false if those before it have enough text: then it is the last, and not of the page.
local function add(number)
  is_cut = size > PAGE_BYTES and 1 or 0
  shown[#shown + 1] = show(number)
  size = size + #(shown[#shown][3] or '')
  return is_cut == 0
end
"""
)

_QUERY = (
    _SHOWN
    + r"""
local order, limit, time, before = take(), tonumber(take()), take(), take()
local entries = {}

local function behind(set)
  if time == '' then return 0 end
  local low, high = redis.call('ZCOUNT', set, '(' .. time, '+inf'), redis.call('ZCOUNT', set, time, '+inf')
  while low < high do
    local middle = math.floor((low + high) / 2)
    if redis.call('ZREVRANGE', set, middle, middle)[1] >= before then low = middle + 1 else high = middle end
  end
  return low
end

while at < #ARGV do
  local set = base .. ':' .. order .. ':' .. take()
  local first = behind(set)
  local found = redis.call('ZREVRANGE', set, first, first + limit - 1, 'WITHSCORES')
  for index = 1, #found, 2 do
    entries[#entries + 1] = {found[index], tonumber(found[index + 1]), found[index + 1]}
  end
end
table.sort(entries, function(a, b)
  if a[2] ~= b[2] then return a[2] > b[2] end
  return a[1] > b[1]
end)
for index = 1, math.min(limit, #entries) do
  local has_room = add(number_of(entries[index][1]))
  shown[index][7] = entries[index][3] -- its time, also if its record cannot be read
  if not has_room then break end
end
return {'', shown, is_cut}
"""
)

_COUNT = r"""
local count = 0
while at < #ARGV do count = count + redis.call('ZCARD', base .. ':created:' .. take()) end
return {'', string.format('%.0f', count)}
"""

_LEDGER = r"""
local user, since, till, found = take(), take(), take(), {}
local names = redis.call('ZRANGE', user == '' and ledgers or ledgers .. ':' .. user, 0, -1)
if user ~= '' then names[#names + 1] = user end
for _, name in ipairs(names) do
  local wrong = wrong_key({ledger(name)}, {})
  if wrong then return wrong end
  local session = tonumber(name) and redis.call('HGET', key(name), 'id') or ''
  local rows, numbers = redis.call('HGETALL', ledger(name)), {}
  local owner = ''
  for place = 1, #rows, 2 do
    local day = string.sub(rows[place], 3, 12)
    if rows[place] == 'user' then
      owner = rows[place + 1]
    elseif since <= day and (till == '' or day <= till) then
      numbers[#numbers + 1], numbers[#numbers + 2] = rows[place], rows[place + 1]
    end
  end
  if #numbers > 0 then found[#found + 1] = {session, owner, numbers} end
end
return {'', found}
"""

_UNSETTLED = r"""
local shown = {}
for index, found in ipairs(redis.call('ZRANGEBYLEX', unsettled, after(take()), '+', 'LIMIT', 0, take())) do
  local number = number_of(found)
  shown[index] = {number, redis.call('HGET', key(number), 'id')}
end
return {'', shown}
"""

_EXPIRED = (
    _SHOWN
    + r"""
local now, before, limit = take(), take(), tonumber(take())
local members = redis.call('ZRANGEBYSCORE', expiring, '-inf', now)
table.sort(members)
for _, found in ipairs(members) do
  if #shown == limit then break end
  if found > before and not add(number_of(found)) then break end
end
return {'', shown, is_cut}
"""
)

_DELIVERY = r"""
local number = redis.call('HGET', ids, take())
if not number then return {'missing'} end
local id = redis.call('HGET', key(number, ':deliveries'), take())
if not id then return {''} end
return {'', id, redis.call('HGET', deliveries, id)}
"""

_FOUND = (
    _FIRST
    + r"""
local found, size = {}, 0

-- Add a delivery; return false, and do not add it, if those before it are a whole page.
local function add(id, limit, score)
  if #found == limit or size > PAGE_BYTES then return false end
  local text = redis.call('HGET', deliveries, id) or ''
  local number = string.match(text, '^%d+')
  found[#found + 1] = {id, number and redis.call('HGET', key(number), 'id') or '', text, score}
  size = size + #text
  return true
end
"""
)

_DELIVERIES = (
    _FOUND
    + r"""
local session, place, last, stop, limit = take(), take(), take(), take(), tonumber(take())
local names
if session == '' then
  names = redis.call('ZRANGEBYLEX', base .. ':deliveries:' .. place, '(' .. last, '(' .. stop, 'LIMIT', 0, limit)
else
  local number = redis.call('HGET', ids, session)
  names = number and redis.call('HVALS', key(number, ':deliveries')) or {}
  table.sort(names)
end
for _, id in ipairs(names) do
  if id > last and id < stop and not add(id, limit, '') then break end
end
return {'', found}
"""
)

_DUE = (
    "local STRIDE, MOST_PASSED = 256, 10000 -- passing over more at a time would delay other callers\n"
    + _FOUND
    + r"""
local time, last_time, last, limit = tonumber(take()), take(), take(), tonumber(take())
local low, high = redis.call('ZCOUNT', due, '-inf', '(' .. last_time), redis.call('ZCOUNT', due, '-inf', last_time)
while low < high do
  local middle = math.floor((low + high) / 2)
  if redis.call('ZRANGE', due, middle, middle)[1] <= last then low = middle + 1 else high = middle end
end
local without = {}
for index = at + 1, #ARGV do without[ARGV[index]] = true end

local function is_left_out(id)
  local number = string.match(redis.call('HGET', deliveries, id) or '', '^%d+')
  local name = number and redis.call('HGET', key(number), 'id')
  return name and without[cjson.decode(name)[2]]
end

local passed, last_due_at = 0, ''
last = ''
repeat
  local entries = redis.call('ZRANGE', due, low, low + STRIDE - 1, 'WITHSCORES')
  for index = 1, #entries, 2 do
    local id, due_at = entries[index], entries[index + 1]
    if tonumber(due_at) > time then return {'', found, '', ''} end
    if next(without) and is_left_out(id) then
      passed = passed + 1
    elseif not add(id, limit, due_at) then
      return {'', found, last_due_at, last}
    end
    last_due_at, last = due_at, id
    if passed == MOST_PASSED then return {'', found, last_due_at, last} end
  end
  low = low + STRIDE
until #entries == 0
return {'', found, '', ''}
"""
)

_WEBHOOKS = r"""
local wrong = wrong_key({base .. ':webhooks'}, {})
if wrong then return wrong end
local texts = redis.call('HVALS', base .. ':webhooks')
for index, text in ipairs(texts) do texts[index] = string.match(text, '^%d+ (.*)$') or '' end
return {'', texts}
"""

_QUOTAS = r"""
local wrong = wrong_key({base .. ':quotas'}, {})
if wrong then return wrong end
return {'', redis.call('HVALS', base .. ':quotas')}
"""

_QUOTA_COUNTERS = r"""
local names, found = rows(1), {}
local wrong = wrong_key({}, {base .. ':counters'})
if wrong then return wrong end
for _, quota in ipairs(redis.call('ZRANGE', base .. ':counters', 0, -1)) do
  wrong = wrong_key({counter_hash(quota)}, {})
  if wrong then return wrong end
  for _, name in ipairs(names) do
    local text = redis.call('HGET', counter_hash(quota), name[1])
    if text then found[#found + 1] = {quota, name[1], text} end
  end
end
return {'', now(), found}
"""

_TENANTS_OF = r"""
local users, found = rows(1), {}
local wrong = wrong_key({tenant_of}, {})
if wrong then return wrong end
for _, user in ipairs(users) do
  local tenant = redis.call('HGET', tenant_of, user[1])
  if tenant then found[#found + 1] = {user[1], tenant} end
end
return {'', found}
"""

_TENANTS = r"""
local last, limit, found = take(), take(), {}
local wrong = wrong_key({}, {tenants})
if wrong then return wrong end
local low = last == '' and '-' or '(' .. last
for index, name in ipairs(redis.call('ZRANGEBYLEX', tenants, low, '+', 'LIMIT', 0, limit)) do
  found[index] = {name, redis.call('ZCARD', base .. ':users:' .. name)}
end
return {'', found}
"""

_USERS = r"""
local set, last, limit = base .. ':users:' .. take(), take(), take()
local wrong = wrong_key({}, {set})
if wrong then return wrong end
return {'', redis.call('ZRANGEBYLEX', set, last == '' and '-' or '(' .. last, '+', 'LIMIT', 0, limit)}
"""

READS = {
    name: COMMON + body
    for name, body in {
        "get": _GET,
        "state": _STATE,
        "now": _NOW,
        "blocks": _BLOCKS,
        "page": _PAGE,
        "run": _RUN,
        "of_key": _OF_KEY,
        "query": _QUERY,
        "count": _COUNT,
        "ledger": _LEDGER,
        "unsettled": _UNSETTLED,
        "expired": _EXPIRED,
        "delivery": _DELIVERY,
        "deliveries": _DELIVERIES,
        "due": _DUE,
        "webhooks": _WEBHOOKS,
        "quotas": _QUOTAS,
        "quota_counters": _QUOTA_COUNTERS,
        "tenants_of": _TENANTS_OF,
        "tenants": _TENANTS,
        "users": _USERS,
        **FILE_READS,
    }.items()
}
"""By name."""
