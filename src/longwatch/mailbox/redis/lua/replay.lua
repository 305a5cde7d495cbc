-- Make dead letters ready again behind all other messages. Of their history they keep only the time
-- they were sent. The response: for each 1 if it existed, else 0. args: ids.

-- The row of a dead letter, without key and expiry, under a new number.
local function new_row(letter)
  local _, _, _, _, _, _, reason, error, traceback, start =
    struct.unpack(DEAD_LETTER_FORMAT, letter)
  local row = letter:sub(start + reason + math.max(error - 1, 0) + math.max(traceback - 1, 0))
  local _, enqueued, _, _, id, key, reply = struct.unpack(HEAD_FORMAT, row)
  local number = redis.call('HINCRBY', BASE, 'seq', 1)
  local head = struct.pack(HEAD_FORMAT, number, enqueued, 0, 0, id, 0, reply)
  return number, head .. row:sub(34, 33 + id) .. row:sub(34 + id + key)
end

local response = {}
for i, id in ipairs(args.ids) do
  local letter = redis.call('HGET', DEAD, id)
  response[i] = letter and redis.call('HEXISTS', MESSAGES, id) == 0 and 1 or 0
  if response[i] == 1 then
    local number, row = new_row(letter)
    redis.call('ZADD', READY, number, id)
    redis.call('HSET', MESSAGES, id, row)
    redis.call('HDEL', DEAD, id)
    redis.call('ZREM', DEAD_ORDER, id)
  end
end
notify()
return response
