-- Find what a sweep would change. Writes nothing. args: limit, retention (of dead letters, in
-- seconds; none: they are kept), reads ('all', 'owners' or 'queue'), version (of the owners that
-- the caller knows), notifies ('ordinary' or 'any'; none: no), to_all (whether no receiver may
-- ignore the notification). The response, in msgpack:
--   version        changes whenever an owner is registered
--   owners         {owner, incarnation, page, parent, whether it drains, seconds between its
--                  renewals, seconds since registration, whether it holds a lease}; none if the
--                  caller knows them, and with 'queue' only if a lease has lapsed
--   lapsed leases  {owner, {number}}, with limit numbers of an owner at most; none with 'owners'
--   is stale       whether any message is due or has expired, or any dead letter is older than the
--                  retention; false with 'owners'
--   next due       seconds until the next delayed message is due; false if none is delayed
--   is waiting     whether it has notified
--
-- With `notifies` it also notifies if a message waits that may be claimed, because no engine may
-- have answered the notification of the put. Ordinary engines may not claim suspects.
--
-- The caller compares the owners that lapsed with those that did not, so a few owners with many
-- lapsed leases must not hide the others: the script reads 20,000 lapsed leases, oldest first.

local PAGE, MAX_PAGES = 4000, 5

local function owners()
  local found, flat = {}, redis.call('HGETALL', OWNERS)
  for i = 1, #flat, 2 do
    local incarnation, page, registered, parent, is_draining, renew_seconds =
      unpack(cmsgpack.unpack(flat[i + 1]))
    local has_leases = redis.call('EXISTS', LEASES .. flat[i]) == 1
    found[#found + 1] = {
      flat[i], incarnation, page, parent, is_draining, renew_seconds, WALL_NOW - registered,
      has_leases,
    }
  end
  return found
end

local function has_due(zset)
  return #redis.call('ZRANGEBYSCORE', zset, '-inf', WALL_NOW, 'LIMIT', 0, 1) > 0
end

local function has_old_dead_letter()
  local oldest = args.retention and redis.call('ZRANGE', DEAD_ORDER, 0, 0)[1]
  return oldest
    and struct.unpack('>d', redis.call('HGET', DEAD, oldest)) < WALL_NOW - args.retention
end

local function lapsed()
  local now, found, numbers = '(' .. string.format('%.17g', LEASE_NOW), {}, {}
  for page = 0, MAX_PAGES - 1 do
    local members =
      redis.call('ZRANGEBYSCORE', LEASE_ENDS, '-inf', now, 'LIMIT', page * PAGE, PAGE)
    for _, member in ipairs(members) do
      local owner, number = member:match('^(%d+):(%d+)$')
      if not numbers[owner] then
        numbers[owner] = {}
        found[#found + 1] = {owner, numbers[owner]}
      end
      if #numbers[owner] < args.limit then table.insert(numbers[owner], number) end
    end
    if #members < PAGE then break end
  end
  return found
end

local function next_due()
  local now = '(' .. string.format('%.17g', WALL_NOW)
  local first =
    redis.call('ZRANGEBYSCORE', DELAYED, now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return first[2] and first[2] - WALL_NOW or false
end

local function is_waiting()
  return redis.call('HGET', BASE, 'paused') ~= '1' and (redis.call('ZCARD', READY) > 0
    or args.notifies == 'any' and redis.call('ZCARD', SUSPECTS) > 0)
end

-- A process of before `registered` counts by the number of owners only.
local version = (redis.call('HGET', BASE, 'registered') or '') .. ':' .. redis.call('HLEN', OWNERS)
if args.reads == 'owners' then
  local changed = version ~= args.version and owners() or {}
  return cmsgpack.pack({version, changed, {}, false, false, false})
end
local waiting = args.notifies and is_waiting() or false
if waiting then notify(args.to_all and 'all') end
local stale = has_due(DELAYED) or has_due(EXPIRING) or has_old_dead_letter() or false
local found = lapsed()
local needs_owners = args.reads == 'all' or #found > 0
return cmsgpack.pack({
  version, needs_owners and owners() or {}, found, stale, next_due(), waiting,
})
