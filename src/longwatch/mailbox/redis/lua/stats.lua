-- The counts of a mailbox: ready, delayed, leased, dead letters; the age of the oldest ready
-- message ('' if none is ready), paused, expired.

local oldest = redis.call('ZRANGE', READY, 0, 0)[1]
local row = oldest and redis.call('HGET', MESSAGES, oldest)
local age = row
  and string.format('%.6f', math.max(WALL_NOW - select(2, struct.unpack('>dd', row)), 0))
local fields = redis.call('HMGET', BASE, 'paused', 'expired')
return {
  redis.call('ZCARD', READY), redis.call('ZCARD', DELAYED), redis.call('ZCARD', LEASE_ENDS),
  redis.call('HLEN', DEAD), age or '', tonumber(fields[1] or 0), tonumber(fields[2] or 0),
}
