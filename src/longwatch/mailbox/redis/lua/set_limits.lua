-- Store budgets of a mailbox, if they differ from the stored ones. args: budgets, with those of
-- max_failures, max_crashes and max_lost that the caller has set. Suspects by the old budgets move
-- back to READY, where the next claims judge them by the new ones.

local changed = {}
for name, value in pairs(args.budgets) do
  if tonumber(redis.call('HGET', BASE, name) or 0) ~= value then
    changed[#changed + 1], changed[#changed + 2] = name, value
  end
end
if #changed == 0 then return 0 end

allow_when_full()
redis.call('HSET', BASE, unpack(changed))
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
