-- Remove messages that nobody holds, as many as asked for at the most; how many. asked: limit.

local ids = redis.call('ZRANGE', FREE, 0, asked.limit - 1)
local delayed = #ids < asked.limit and redis.call('ZRANGE', DELAYED, 0, asked.limit - #ids - 1) or {}
if #ids > 0 then redis.call('ZREMRANGEBYRANK', FREE, 0, #ids - 1) end
if #delayed > 0 then redis.call('ZREMRANGEBYRANK', DELAYED, 0, #delayed - 1) end
for _, id in ipairs(delayed) do ids[#ids + 1] = id end
if #ids > 0 then erase(ids) end
return #ids
