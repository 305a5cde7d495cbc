-- Delete at most limit messages that are not leased, and return how many. args: limit.

local purged = {}
for _, zset in ipairs({READY, SUSPECTS, DELAYED}) do
  local left = args.limit - #purged
  local ids = left > 0 and redis.call('ZRANGE', zset, 0, left - 1) or {}
  if #ids > 0 then redis.call('ZREMRANGEBYRANK', zset, 0, #ids - 1) end
  for _, id in ipairs(ids) do purged[#purged + 1] = id end
end
if #purged > 0 then erase(purged) end
return #purged
