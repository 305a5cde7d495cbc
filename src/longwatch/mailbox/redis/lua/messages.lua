-- The layouts of a row, a history, a lease and a dead letter, and functions over messages; prefixed
-- to the scripts that need them.
--
--   row          number, enqueued at, expires at (0: never), flags, length of id, key and reply_to,
--                then these three, then the body. The reply is the name of its mailbox, followed by
--                a zero byte and the headers as JSON if there are any.
--   history      deliveries, failures, crashes, lost, releases, term, 1 if there is an error, the
--                error
--   lease        term, flags, then the id
--   dead letter  died at, deliveries, failures, crashes, lost, releases, length of reason, and of
--                error and traceback (+1; 0: none), then these three, then the row

local ROW_FORMAT, HEAD_FORMAT, HISTORY_FORMAT = '>ddd', '>dddBI2I4I2', '>I4I4I4I4I4dB'
local LEASE_FORMAT, DEAD_LETTER_FORMAT = '>dB', '>dI4I4I4I4I4BI4I4'
local COUNTERS_SIZE = 20  -- the counters, at the start of a history
local KEEP_EXPIRED, HAS_KEY = 1, 2  -- flags of a row
local LEASE_HAS_KEY, LEASE_HAS_EXPIRY, LEASE_HAS_HISTORY = 1, 2, 4  -- flags of a lease
local BATCH = 4000  -- values in one call; Lua cannot pass many more

local function has(flags, flag)
  return flags % (2 * flag) >= flag
end

-- Run one command over any number of members, or of pairs.
local function in_parts(command, key, list)
  for first = 1, #list, BATCH do
    redis.call(command, key, unpack(list, first, math.min(first + BATCH - 1, #list)))
  end
end

local function values_of(key, fields)
  if #fields <= BATCH then
    return #fields > 0 and redis.call('HMGET', key, unpack(fields)) or {}
  end
  local values = {}
  for first = 1, #fields, BATCH do
    local last = math.min(first + BATCH - 1, #fields)
    local part = redis.call('HMGET', key, unpack(fields, first, last))
    for i = 1, #part do values[#values + 1] = part[i] end
  end
  return values
end

local function key_of(row)
  local _, _, _, flags, id, key = struct.unpack(HEAD_FORMAT, row)
  return has(flags, HAS_KEY) and row:sub(34 + id, 33 + id + key) or nil
end

local function history_of(packed)
  local history = {deliveries = 0, failures = 0, crashes = 0, lost = 0, releases = 0, term = 0}
  if packed then
    local error, start
    history.deliveries, history.failures, history.crashes, history.lost, history.releases,
      history.term, error, start = struct.unpack(HISTORY_FORMAT, packed)
    history.error = error == 1 and packed:sub(start) or nil
  end
  return history
end

local function pack_history(history)
  local error = history.error and 1 or 0
  return struct.pack(HISTORY_FORMAT, history.deliveries, history.failures, history.crashes,
    history.lost, history.releases, history.term, error) .. (history.error or '')
end

-- Add a dead letter. The message itself stays. Without a traceback it gets that of the last
-- failure.
local function add_dead_letter(id, row, history, reason, traceback)
  local error = history.error
  traceback = traceback or history.deliveries > 0 and redis.call('HGET', TRACEBACKS, id)
  local head = struct.pack(DEAD_LETTER_FORMAT, WALL_NOW, history.deliveries, history.failures,
    history.crashes, history.lost, history.releases, #reason, error and #error + 1 or 0,
    traceback and #traceback + 1 or 0)
  redis.call('HSET', DEAD, id, head .. reason .. (error or '') .. (traceback or '') .. row)
  redis.call('ZADD', DEAD_ORDER, redis.call('HINCRBY', BASE, 'dead_seq', 1), id)
end

-- Delete messages that are neither ready nor delayed any more, with their history and dedupe keys.
local function erase(ids)
  local keys = {}
  for i, row in ipairs(values_of(MESSAGES, ids)) do
    local key = row and key_of(row)
    if key then keys[#keys + 1] = key end
  end
  in_parts('HDEL', MESSAGES, ids)
  in_parts('HDEL', HISTORY, ids)
  in_parts('HDEL', TRACEBACKS, ids)
  in_parts('ZREM', EXPIRING, ids)
  in_parts('HDEL', DEDUPE, keys)
end

-- Whether a message that is given up becomes a dead letter. The rule is `is_kept` of
-- mailbox/limits.py: change both.
local function is_kept(reason, row)
  return reason ~= 'expired' or has(select(4, struct.unpack(HEAD_FORMAT, row)), KEEP_EXPIRED)
end

-- Give up messages that expired before a claim: count them, and keep those with KEEP_EXPIRED as
-- dead letters. The response: how many expired, and the ids of the dead letters.
local function expire(ids)
  local kept = {}
  if #ids == 0 then return 0, kept end
  for i, row in ipairs(values_of(MESSAGES, ids)) do
    if row and is_kept('expired', row) then
      add_dead_letter(ids[i], row, history_of(redis.call('HGET', HISTORY, ids[i])), 'expired')
      kept[#kept + 1] = ids[i]
    end
  end
  in_parts('ZREM', READY, ids)
  in_parts('ZREM', SUSPECTS, ids)
  in_parts('ZREM', DELAYED, ids)
  erase(ids)
  redis.call('HINCRBY', BASE, 'expired', #ids)
  return #ids, kept
end

local function find_expired(limit)
  return redis.call('ZRANGEBYSCORE', EXPIRING, '-inf', WALL_NOW, 'LIMIT', 0, limit)
end
