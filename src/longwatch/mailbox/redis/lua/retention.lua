-- Deletes dead letters that are older than `args.retention`; prefixed to the scripts that do it.

-- Delete as many of them as the limit allows, oldest first. Return how many.
local function delete_old(limit)
  for deleted = 0, limit - 1 do
    local oldest = redis.call('ZRANGE', DEAD_ORDER, 0, 0)[1]
    if not oldest then return deleted end
    local died_at = struct.unpack('>d', redis.call('HGET', DEAD, oldest))
    if died_at >= WALL_NOW - args.retention then return deleted end
    redis.call('ZREM', DEAD_ORDER, oldest)
    redis.call('HDEL', DEAD, oldest)
  end
  return limit
end
