-- Delete a message that is not leased; 0 if there is none. args: id.

if redis.call('ZREM', READY, args.id) + redis.call('ZREM', DELAYED, args.id) == 0 then return 0 end
erase({args.id})
return 1
