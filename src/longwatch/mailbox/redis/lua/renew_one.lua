-- Extend one lease, never shortening it; 0 if the claim no longer matches.
-- args: owner, number, term, lease_seconds.

local number = string.format('%.0f', args.number)
local lease = redis.call('HGET', LEASES .. args.owner, number)
if not lease or struct.unpack('>d', lease) ~= args.term then return 0 end
allow_when_full()
local lease_end = LEASE_NOW + args.lease_seconds
redis.call('ZADD', LEASE_ENDS, 'XX', 'GT', lease_end, args.owner .. ':' .. number)
return 1
