-- Store messages, all or none, once: a put that is sent again gets the same response, even if its
-- messages are gone by then.
--
-- args: request (random), answered (requests whose responses arrived and that no client sends
-- again), remember (seconds), max_size (of the mailbox; none: no limit). ARGV[4] holds the
-- messages, concatenated: delay, expires in (0: never), length, and the row without its number and
-- times. The response is '=' when the ids are those sent, '+' and the ids when some differ, and '!'
-- and the size of the mailbox when it is full.

local HINT_SECONDS = 0.1
local RESPONSE = BASE .. ':put:'
local known = redis.call('GET', RESPONSE .. args.request)
if known then return known end

local function unpack_messages(packed)
  local messages, position = {}, 1
  while position <= #packed do
    local delay, expires, size, start = struct.unpack('>ddI4', packed, position)
    position = start + size
    local rest = packed:sub(start, position - 1)
    local flags, id, key = struct.unpack('>BI2I4', rest)
    messages[#messages + 1] = {
      id = rest:sub(10, 9 + id), key = has(flags, HAS_KEY) and rest:sub(10 + id, 9 + id + key),
      delay = delay, expires = expires > 0 and WALL_NOW + expires or 0, rest = rest,
    }
  end
  return messages
end

-- The ids of stored messages by dedupe key. An expired message is removed first, so that it does
-- not replace a new one.
local function ids_by_key(messages)
  local keys, ids, seen = {}, {}, {}
  for _, message in ipairs(messages) do
    local key = message.key
    if key and not seen[key] then
      keys[#keys + 1], seen[key] = key, true
    end
  end
  for i, id in ipairs(values_of(DEDUPE, keys)) do
    local expires = id and redis.call('ZSCORE', EXPIRING, id)
    if expires and tonumber(expires) <= WALL_NOW then
      expire({id})
    elseif id then
      ids[keys[i]] = id
    end
  end
  return ids
end

-- The messages to add, and the response.
local function deduplicate(messages)
  local known_ids, ids, added = ids_by_key(messages), {}, {}
  local names, same = {}, true
  for i, message in ipairs(messages) do names[i] = message.id end
  local present = values_of(MESSAGES, names)
  for i, message in ipairs(messages) do
    local first = message.key and known_ids[message.key]
    ids[i] = first or message.id
    same = same and not first
    if not first and not present[i] then
      added[#added + 1] = message
      if message.key then known_ids[message.key] = message.id end
    end
  end
  return added, same and '=' or '+' .. cmsgpack.pack(ids)
end

local function is_full(added)
  return args.max_size and redis.call('HLEN', MESSAGES) + added > args.max_size
end

-- Whether the last notification of messages behind others was HINT_SECONDS ago.
local function is_hint_due()
  local hinted_at = tonumber(redis.call('HGET', BASE, 'hinted_at') or 0)
  if math.abs(LEASE_NOW - hinted_at) < HINT_SECONDS then return false end
  redis.call('HSET', BASE, 'hinted_at', string.format('%.6f', LEASE_NOW))
  return true
end

local function store(messages)
  local number = redis.call('HINCRBY', BASE, 'seq', #messages) - #messages
  local ready, delayed, rows, expiring, keys = {}, {}, {}, {}, {}
  for i, message in ipairs(messages) do
    local id, delay, expires = message.id, message.delay, message.expires
    local zset, score = ready, number + i
    if delay > 0 then zset, score = delayed, WALL_NOW + delay end
    zset[#zset + 1], zset[#zset + 2] = score, id
    rows[2 * i - 1] = id
    rows[2 * i] = struct.pack(ROW_FORMAT, number + i, WALL_NOW, expires) .. message.rest
    if expires > 0 then expiring[#expiring + 1], expiring[#expiring + 2] = expires, id end
    if message.key then keys[#keys + 1], keys[#keys + 2] = message.key, id end
  end
  local was_empty = redis.call('ZCARD', READY) == 0
  -- A script is not undone where the server refuses a command: no number without its row.
  in_parts('HSET', MESSAGES, rows)
  in_parts('ZADD', READY, ready)
  in_parts('ZADD', DELAYED, delayed)
  in_parts('ZADD', EXPIRING, expiring)
  in_parts('HSET', DEDUPE, keys)
  -- A receiver waits that found the queue empty; others claim again without a notification. But an
  -- idle engine may have ignored that one (engine/hint_gate.py).
  if was_empty or #delayed > 0 or is_hint_due() then notify() end
end

local added, response = deduplicate(unpack_messages(ARGV[4]))
if is_full(#added) then
  expire(find_expired(500))
  if is_full(#added) then return '!' .. redis.call('HLEN', MESSAGES) end
end
if #added > 0 then store(added) end
redis.call('SET', RESPONSE .. args.request, response, 'EX', args.remember)
for _, request in ipairs(args.answered) do redis.call('DEL', RESPONSE .. request) end
return response
