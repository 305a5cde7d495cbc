-- Remove a message that nobody holds; 0 if there is none. asked: id.

if redis.call('ZREM', FREE, asked.id) + redis.call('ZREM', DELAYED, asked.id) == 0 then return 0 end
erase({asked.id})
return 1
