-- Find what a sweep would change. Writes nothing. args: limit, retention (of dead letters, in
-- seconds; none: they are kept). The response, in msgpack:
--   owners         {owner, incarnation, page, parent, whether it drains, seconds between its
--                  renewals, seconds since registration, whether it holds a lease}
--   lapsed leases  {owner, {number}}, with limit numbers of an owner at most
--   is stale       whether any message is due or has expired, or any dead letter is older than the
--                  retention
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

local stale = has_due(DELAYED) or has_due(EXPIRING) or has_old_dead_letter() or false
return cmsgpack.pack({owners(), lapsed(), stale})
