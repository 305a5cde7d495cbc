-- Release the messages of dead owners and of ended leases, make due messages ready, give up
-- messages that expired or spent a budget, and delete dead owners and old dead letters.
--
-- args: leases {owner, number, counter to raise, whether only if the lease has ended}, forget
-- {owner}, limit, retention. The state may have changed since `find_stale`: a lease that was
-- renewed stays, and so does an owner that holds a lease. The response: how many messages changed,
-- the owners that were deleted, and the new dead letters (id and reason, in turn).

local changed = 0

local function release_one(owner, number, counter, if_ended)
  number = string.format('%.0f', number)
  local member = owner .. ':' .. number
  local lease_end = redis.call('ZSCORE', LEASE_ENDS, member)
  local lease = redis.call('HGET', LEASES .. owner, number)
  if not lease then redis.call('ZREM', LEASE_ENDS, member) end
  if not lease or (if_ended and lease_end and tonumber(lease_end) >= LEASE_NOW) then return end
  release(number, lease, counter, 0)
  redis.call('HDEL', LEASES .. owner, number)
  redis.call('ZREM', LEASE_ENDS, member)
  changed = changed + 1
end

local function delete_owners(owners)
  local deleted = {}
  for _, owner in ipairs(owners) do
    if redis.call('EXISTS', LEASES .. owner) == 0 then
      redis.call('HDEL', OWNERS, owner)
      deleted[#deleted + 1] = owner
    end
  end
  return deleted
end

allow_when_full()
for _, lease in ipairs(args.leases) do release_one(unpack(lease)) end
changed = changed + promote_due()
local expired, kept = expire(find_expired(args.limit))
changed = changed + expired
for _, id in ipairs(kept) do report_dead_letter(id, 'expired') end
if args.retention then delete_old(args.limit) end
local deleted = delete_owners(args.forget)
if changed > 0 then notify() end
return {changed, deleted, dead_lettered}
