-- What a sweep would find; a read. asked: limit, retention (of dead letters, in seconds; none: for ever).
-- The answer, in msgpack: owners {owner, incarnation, page, seconds since it entered, whether it holds anything}, lapsed leases
-- {OWNER:number}, and whether there is anything that is due, has expired, or is past its retention.

local function owners()
  local found, flat = {}, redis.call('HGETALL', OWNERS)
  for i = 1, #flat, 2 do
    local facts = cmsgpack.unpack(flat[i + 1])
    local holds = redis.call('EXISTS', HELD .. flat[i]) == 1
    found[#found + 1] = {flat[i], facts[1], facts[2], WALL_NOW - facts[3], holds}
  end
  return found
end

local function is_any(line)
  return #redis.call('ZRANGEBYSCORE', line, '-inf', WALL_NOW, 'LIMIT', 0, 1) > 0
end

local function is_any_too_old()
  local oldest = asked.retention and redis.call('ZRANGE', DEATHS, 0, 0)[1]
  return oldest and struct.unpack('>d', redis.call('HGET', DEAD, oldest)) < WALL_NOW - asked.retention
end

local lapsed = redis.call('ZRANGEBYSCORE', UNTIL, '-inf', '(' .. string.format('%.17g', LEASE_NOW), 'LIMIT', 0, asked.limit)
local stale = is_any(DELAYED) or is_any(EXPIRING) or is_any_too_old() or false
return cmsgpack.pack({owners(), lapsed, stale})
