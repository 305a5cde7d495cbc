-- Prolong every lease of an owner but those to skip, never shortening one; how many there are.
-- asked: owner, duration, skip {number}.

local skipped = {}
for _, number in ipairs(asked.skip) do skipped[string.format('%.0f', number)] = true end
local ending, until_then = {}, LEASE_NOW + asked.duration
for _, number in ipairs(redis.call('HKEYS', HELD .. asked.owner)) do
  if not skipped[number] then ending[#ending + 1], ending[#ending + 2] = until_then, asked.owner .. ':' .. number end
end
begin_even_if_full()
for first = 1, #ending, 4000 do
  redis.call('ZADD', UNTIL, 'XX', 'GT', unpack(ending, first, math.min(first + 3999, #ending)))
end
return #ending / 2
