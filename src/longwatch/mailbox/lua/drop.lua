-- Remove dead letters for good; for each whether it was there. asked: ids.

local answer = {}
for i, id in ipairs(asked.ids) do
  answer[i] = redis.call('HDEL', DEAD, id)
  redis.call('ZREM', DEATHS, id)
end
return answer
