-- Give back what dead owners and ended leases held, free what is due, give up what has expired, forget owners and old dead letters.
--
-- asked: leases {owner, number, counter that rises, whether only if it has ended}, forget {owner}, limit, retention.
-- What was seen may have changed meanwhile: a lease that was renewed stays, an owner that holds something is not forgotten.
-- The answer: how many rows changed, and the owners that were forgotten.

local found = 0

local function give_back_one(owner, number, counter, if_ended)
  number = string.format('%.0f', number)
  local member = owner .. ':' .. number
  local ending = redis.call('ZSCORE', UNTIL, member)
  local lease = redis.call('HGET', HELD .. owner, number)
  if not lease then redis.call('ZREM', UNTIL, member) end
  if not lease or (if_ended and ending and tonumber(ending) >= LEASE_NOW) then return end
  give_back(number, lease, counter, 0)
  redis.call('HDEL', HELD .. owner, number)
  redis.call('ZREM', UNTIL, member)
  found = found + 1
end

local function forget_owners(owners)
  local forgotten = {}
  for _, owner in ipairs(owners) do
    if redis.call('EXISTS', HELD .. owner) == 0 then
      redis.call('HDEL', OWNERS, owner)
      forgotten[#forgotten + 1] = owner
    end
  end
  return forgotten
end

local function forget_the_dead(limit)
  for _ = 1, limit do
    local oldest = redis.call('ZRANGE', DEATHS, 0, 0)[1]
    if not oldest or struct.unpack('>d', redis.call('HGET', DEAD, oldest)) >= WALL_NOW - asked.retention then return end
    redis.call('ZREM', DEATHS, oldest)
    redis.call('HDEL', DEAD, oldest)
  end
end

begin_even_if_full()
for _, lease in ipairs(asked.leases) do give_back_one(unpack(lease)) end
found = found + free_the_due() + expire(overdue(asked.limit))
if asked.retention then forget_the_dead(asked.limit) end
local forgotten = forget_owners(asked.forget)
if found > 0 then announce() end
return {found, forgotten}
