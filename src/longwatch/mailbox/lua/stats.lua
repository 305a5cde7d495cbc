-- How a mailbox stands: ready, delayed, leased, dead, age of the oldest that is ready (none: nothing is), paused, expired.

local oldest = redis.call('ZRANGE', FREE, 0, 0)[1]
local row = oldest and redis.call('HGET', ROWS, oldest)
local age = row and string.format('%.6f', math.max(WALL_NOW - select(2, struct.unpack('>dd', row)), 0))
local facts = redis.call('HMGET', BASE, 'paused', 'expired')
return {
  redis.call('ZCARD', FREE), redis.call('ZCARD', DELAYED), redis.call('ZCARD', UNTIL), redis.call('HLEN', DEAD),
  age or '', tonumber(facts[1] or 0), tonumber(facts[2] or 0),
}
