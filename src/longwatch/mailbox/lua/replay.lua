-- Put dead letters back at the end of the line, their past forgotten but for their age; for each whether it was there. asked: ids.

-- The row of a dead letter, without key and expiry, under a new number.
local function row_anew(letter)
  local _, _, _, _, _, reason, error = struct.unpack(A_DEATH, letter)
  local row = letter:sub(30 + reason + math.max(error - 1, 0))
  local _, enqueued, _, _, id, key, reply = struct.unpack(PLACES, row)
  local number = redis.call('HINCRBY', BASE, 'seq', 1)
  local head = struct.pack(PLACES, number, enqueued, 0, 0, id, 0, reply)
  return number, head .. row:sub(34, 33 + id) .. row:sub(34 + id + key)
end

local answer = {}
for i, id in ipairs(asked.ids) do
  local letter = redis.call('HGET', DEAD, id)
  answer[i] = letter and redis.call('HEXISTS', ROWS, id) == 0 and 1 or 0
  if answer[i] == 1 then
    local number, row = row_anew(letter)
    redis.call('ZADD', FREE, number, id)
    redis.call('HSET', ROWS, id, row)
    redis.call('HDEL', DEAD, id)
    redis.call('ZREM', DEATHS, id)
  end
end
announce()
return answer
