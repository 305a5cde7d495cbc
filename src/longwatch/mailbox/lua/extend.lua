-- Prolong one lease, never shortening it; 0 if it is not the claimant's any more.
-- asked: owner, number, term, duration.

local number = string.format('%.0f', asked.number)
local lease = redis.call('HGET', HELD .. asked.owner, number)
if not lease or struct.unpack('>d', lease) ~= asked.term then return 0 end
begin_even_if_full()
redis.call('ZADD', UNTIL, 'XX', 'GT', LEASE_NOW + asked.duration, asked.owner .. ':' .. number)
return 1
