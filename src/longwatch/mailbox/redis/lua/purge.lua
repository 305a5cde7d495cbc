-- Delete messages that are not leased, at most limit; how many. args: limit.

local ids = redis.call('ZRANGE', READY, 0, args.limit - 1)
local left = args.limit - #ids
local delayed = left > 0 and redis.call('ZRANGE', DELAYED, 0, left - 1) or {}
if #ids > 0 then redis.call('ZREMRANGEBYRANK', READY, 0, #ids - 1) end
if #delayed > 0 then redis.call('ZREMRANGEBYRANK', DELAYED, 0, #delayed - 1) end
for _, id in ipairs(delayed) do ids[#ids + 1] = id end
if #ids > 0 then erase(ids) end
return #ids
