-- Store the limits of a mailbox, if they differ from those stored. args: max_failures, max_crashes,
-- max_lost. Suspects by the old limits go back to the other ready messages: the next claims judge
-- them by the new limits.

local stored = redis.call('HMGET', BASE, 'max_failures', 'max_crashes', 'max_lost')
local limits = {args.max_failures, args.max_crashes, args.max_lost}
local is_same = true
for i, limit in ipairs(limits) do is_same = is_same and tonumber(stored[i] or 0) == limit end
if is_same then return 0 end

allow_when_full()
redis.call('HSET', BASE, 'max_failures', limits[1], 'max_crashes', limits[2], 'max_lost', limits[3])
while true do
  local found = redis.call('ZRANGE', SUSPECTS, 0, BATCH / 2 - 1, 'WITHSCORES')
  if #found == 0 then break end
  local ready, ids = {}, {}
  for i = 1, #found, 2 do
    ready[i], ready[i + 1] = found[i + 1], found[i]
    ids[#ids + 1] = found[i]
  end
  in_parts('ZADD', READY, ready)
  in_parts('ZREM', SUSPECTS, ids)
end
notify()
return 1
