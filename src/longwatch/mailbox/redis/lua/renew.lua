-- Extend every lease of an owner except those in skip, never shortening one. Return how many.
-- args: owner, lease_seconds, skip {number}.

local skipped = {}
for _, number in ipairs(args.skip) do skipped[string.format('%.0f', number)] = true end
local ends, lease_end = {}, LEASE_NOW + args.lease_seconds
for _, number in ipairs(redis.call('HKEYS', LEASES .. args.owner)) do
  if not skipped[number] then
    ends[#ends + 1], ends[#ends + 2] = lease_end, args.owner .. ':' .. number
  end
end
allow_when_full()
for first = 1, #ends, 4000 do
  redis.call('ZADD', LEASE_ENDS, 'XX', 'GT', unpack(ends, first, math.min(first + 3999, #ends)))
end
return #ends / 2
