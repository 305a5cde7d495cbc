-- Delete a message that is not leased; 0 if there is none. args: id.

local removed = 0
for _, zset in ipairs({READY, SUSPECTS, DELAYED}) do
  removed = removed + redis.call('ZREM', zset, args.id)
end
if removed == 0 then return 0 end
erase({args.id})
return 1
