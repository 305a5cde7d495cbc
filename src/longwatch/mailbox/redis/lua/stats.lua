-- The counts of a mailbox: ready, delayed, leased, dead letters; the age of the oldest ready
-- message ('' if none is ready), paused, expired.

-- The ready message with the lowest number.
local function oldest()
  local first = redis.call('ZRANGE', READY, 0, 0, 'WITHSCORES')
  local suspect = redis.call('ZRANGE', SUSPECTS, 0, 0, 'WITHSCORES')
  if #first == 0 then return suspect[1] end
  return #suspect > 0 and tonumber(suspect[2]) < tonumber(first[2]) and suspect[1] or first[1]
end

local id = oldest()
local row = id and redis.call('HGET', MESSAGES, id)
local age = row
  and string.format('%.6f', math.max(WALL_NOW - select(2, struct.unpack('>dd', row)), 0))
local fields = redis.call('HMGET', BASE, 'paused', 'expired')
return {
  redis.call('ZCARD', READY) + redis.call('ZCARD', SUSPECTS), redis.call('ZCARD', DELAYED),
  redis.call('ZCARD', LEASE_ENDS), redis.call('HLEN', DEAD), age or '',
  tonumber(fields[1] or 0), tonumber(fields[2] or 0),
}
