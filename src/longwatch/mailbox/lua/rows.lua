-- What is in a row, a past, a lease and a dead letter, and how rows are removed; stands before the scripts that need it.
--
--   row     number, enqueued at, expires at (0: never), marks, length of id, key and reply_to, then these three, then the body
--   past    deliveries, failures, crashes, releases, term, whether there is an error, then the error
--   lease   term, marks, then the id
--   dead    died at, deliveries, failures, crashes, releases, length of reason and of error (+1; 0: none), then these, then the row

local ROW, PLACES, A_PAST, A_LEASE, A_DEATH = '>ddd', '>dddBI2I4I2', '>I4I4I4I4dB', '>dB', '>dI4I4I4I4BI4'
local KEEP, KEYED = 1, 2              -- marks of a row
local IS_KEYED, EXPIRES, CAME_BACK = 1, 2, 4  -- marks of a lease
local AT_ONCE = 4000                  -- Lua cannot pass many more values to one call

local function has(marks, mark)
  return marks % (2 * mark) >= mark
end

-- One command over any number of members, or of pairs.
local function in_parts(command, key, list)
  for first = 1, #list, AT_ONCE do
    redis.call(command, key, unpack(list, first, math.min(first + AT_ONCE - 1, #list)))
  end
end

local function values_of(key, fields)
  if #fields <= AT_ONCE then
    return #fields > 0 and redis.call('HMGET', key, unpack(fields)) or {}
  end
  local values = {}
  for first = 1, #fields, AT_ONCE do
    local part = redis.call('HMGET', key, unpack(fields, first, math.min(first + AT_ONCE - 1, #fields)))
    for i = 1, #part do values[#values + 1] = part[i] end
  end
  return values
end

local function key_of(row)
  local _, _, _, marks, id, key = struct.unpack(PLACES, row)
  return has(marks, KEYED) and row:sub(34 + id, 33 + id + key) or nil
end

local function past_of(packed)
  local past = {deliveries = 0, failures = 0, crashes = 0, releases = 0, term = 0}
  if packed then
    local error
    past.deliveries, past.failures, past.crashes, past.releases, past.term, error = struct.unpack(A_PAST, packed)
    past.error = error == 1 and packed:sub(26) or nil
  end
  return past
end

local function packed_past(past)
  local error = past.error and 1 or 0
  return struct.pack(A_PAST, past.deliveries, past.failures, past.crashes, past.releases, past.term, error) .. (past.error or '')
end

-- Write a message among the dead. Its row is not touched.
local function note_death(id, row, past, reason, error)
  error = error or past.error
  local counts = struct.pack(A_DEATH, WALL_NOW, past.deliveries, past.failures, past.crashes, past.releases, #reason,
    error and #error + 1 or 0)
  redis.call('HSET', DEAD, id, counts .. reason .. (error or '') .. row)
  redis.call('ZADD', DEATHS, redis.call('HINCRBY', BASE, 'deaths', 1), id)
end

-- Remove rows that stand in no line any more, with all that is known about them.
local function erase(ids)
  local keys = {}
  for i, row in ipairs(values_of(ROWS, ids)) do
    local key = row and key_of(row)
    if key then keys[#keys + 1] = key end
  end
  in_parts('HDEL', ROWS, ids)
  in_parts('HDEL', PAST, ids)
  in_parts('ZREM', EXPIRING, ids)
  in_parts('HDEL', NAMED, keys)
end

-- Give up messages that nobody took in their time: counted, and kept among the dead if that was asked for.
local function expire(ids)
  if #ids == 0 then return 0 end
  for i, row in ipairs(values_of(ROWS, ids)) do
    if row and has(select(4, struct.unpack(PLACES, row)), KEEP) then
      note_death(ids[i], row, past_of(redis.call('HGET', PAST, ids[i])), 'expired')
    end
  end
  in_parts('ZREM', FREE, ids)
  in_parts('ZREM', DELAYED, ids)
  erase(ids)
  redis.call('HINCRBY', BASE, 'expired', #ids)
  return #ids
end

local function overdue(limit)
  return redis.call('ZRANGEBYSCORE', EXPIRING, '-inf', WALL_NOW, 'LIMIT', 0, limit)
end

-- Free the delayed messages whose time has come; how many.
local function free_the_due()
  local ids = redis.call('ZRANGEBYSCORE', DELAYED, '-inf', WALL_NOW, 'LIMIT', 0, AT_ONCE / 2)
  if #ids == 0 then return 0 end
  local freed = {}
  for i, row in ipairs(values_of(ROWS, ids)) do
    if row then
      freed[#freed + 1] = struct.unpack(ROW, row)
      freed[#freed + 1] = ids[i]
    end
  end
  in_parts('ZADD', FREE, freed)
  in_parts('ZREM', DELAYED, ids)
  return #ids
end

-- Put a message that was leased back in its place, or among the delayed, and count why. `counter`: failures, crashes or releases.
local function give_back(number, lease, counter, delay, error)
  local term, marks = struct.unpack(A_LEASE, lease)
  local id = lease:sub(10)
  local past = past_of(has(marks, CAME_BACK) and redis.call('HGET', PAST, id))
  past.deliveries, past.term, past.error = past.deliveries + 1, term, error or past.error
  past[counter] = past[counter] + 1
  redis.call('HSET', PAST, id, packed_past(past))
  if delay > 0 then
    redis.call('ZADD', DELAYED, WALL_NOW + delay, id)
  else
    redis.call('ZADD', FREE, number, id)
  end
  local row = has(marks, EXPIRES) and redis.call('HGET', ROWS, id)
  if row then redis.call('ZADD', EXPIRING, select(3, struct.unpack(ROW, row)), id) end
end
