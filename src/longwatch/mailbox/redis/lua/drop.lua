-- Delete dead letters. The response: for each 1 if it existed, else 0. args: ids.

local response = {}
for i, id in ipairs(args.ids) do
  response[i] = redis.call('HDEL', DEAD, id)
  redis.call('ZREM', DEAD_ORDER, id)
end
return response
