-- Settle messages, then lease the next ones, in one step.
--
-- args: owner, incarnation, page, limit, lease_seconds, max_failures, max_crashes, max_bytes,
-- settlements {number, term, outcome, owner, delay, reason, error}. A settlement that is done and
-- of the caller's own owner may leave out all but number and term. The response: for each
-- settlement 1, or 0 if its claim no longer matched; claim_again, 1 if the script met only messages
-- that it gave up; and the leased messages, concatenated: length of row and of history, term, row,
-- history.

-- The leases that the settlements name, by owner and number.
local function find_leases(settlements)
  local numbers, leases = {}, {}
  for _, each in ipairs(settlements) do
    local owner = each[4] or args.owner
    numbers[owner] = numbers[owner] or {}
    table.insert(numbers[owner], each[1])
  end
  for owner, named in pairs(numbers) do
    leases[owner] = {}
    for i, lease in ipairs(values_of(LEASES .. owner, named)) do leases[owner][named[i]] = lease end
  end
  return leases
end

local function end_leases(owner, numbers)
  local members = {}
  for i, number in ipairs(numbers) do members[i] = owner .. ':' .. string.format('%.0f', number) end
  in_parts('HDEL', LEASES .. owner, numbers)
  in_parts('ZREM', LEASE_ENDS, members)
end

local function dead_letter(lease, reason, error)
  local id = lease:sub(10)
  local row = redis.call('HGET', MESSAGES, id)
  local history = history_of(redis.call('HGET', HISTORY, id))
  history.deliveries = history.deliveries + 1
  add_dead_letter(id, row, history, reason, error)
  erase({id})
end

-- Compare settlements with leases: a result for each settlement, the numbers of leases to end by
-- owner, and the remaining work.
local function match_leases(settlements)
  local leases, results, ended = find_leases(settlements), {}, {}
  local work = {done = {}, flagged = {}, others = {}}
  for i, each in ipairs(settlements) do
    local owner = each[4] or args.owner
    local lease = leases[owner][each[1]]
    local term, flags = 0, 0
    if lease then term, flags = struct.unpack(LEASE_FORMAT, lease) end
    results[i] = lease and term == each[2] and '1' or '0'
    if results[i] == '1' then
      leases[owner][each[1]] = false
      ended[owner] = ended[owner] or {}
      table.insert(ended[owner], each[1])
      if each[3] then
        table.insert(work.others, {each, lease})
      else
        local is_plain = not has(flags, LEASE_HAS_KEY) and not has(flags, LEASE_HAS_HISTORY)
        table.insert(is_plain and work.done or work.flagged, lease:sub(10))
      end
    end
  end
  return table.concat(results), ended, work
end

local function settle(settlements)
  local results, ended, work = match_leases(settlements)
  local released = false
  for _, pair in ipairs(work.others) do
    local each, lease = pair[1], pair[2]
    if each[3] == 'dead' then
      dead_letter(lease, each[6], each[7])
    else
      release(each[1], lease, each[3], each[5], each[7])
      released = true
    end
  end
  for owner, numbers in pairs(ended) do end_leases(owner, numbers) end
  in_parts('HDEL', MESSAGES, work.done)
  if #work.flagged > 0 then erase(work.flagged) end
  if released then notify() end
  return results
end

-- Why a message is given up instead of leased; nil if it is not. The rule is `give_up_reason` of
-- mailbox/limits.py: change both.
local function give_up_reason(history, expires)
  if history and history.crashes >= args.max_crashes then return 'poison' end
  if history and history.failures >= args.max_failures then return 'failed' end
  return expires > 0 and expires <= WALL_NOW and 'expired' or nil
end

-- Count an expired message; add a dead letter if `is_kept` of mailbox/limits.py.
local function give_up(id, row, history, reason)
  if reason == 'expired' then redis.call('HINCRBY', BASE, 'expired', 1) end
  if is_kept(reason, row) then
    add_dead_letter(id, row, history or history_of(), reason)
  end
end

-- A page of ready messages: {id, number, row, packed history, history, reason to give it up,
-- expires, flags} for each.
local function page_of_ready(first, count)
  local found = redis.call('ZRANGE', READY, first, first + count - 1, 'WITHSCORES')
  local ids, page = {}, {}
  for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
  local rows = values_of(MESSAGES, ids)
  local histories = redis.call('EXISTS', HISTORY) == 1 and values_of(HISTORY, ids) or {}
  for i, id in ipairs(ids) do
    local row, history = rows[i], histories[i] and history_of(histories[i])
    local each = {
      id = id, number = found[2 * i], row = row, packed = histories[i] or '', history = history,
    }
    if row then
      local _, _, expires, flags = struct.unpack(HEAD_FORMAT, row)
      each.expires, each.flags, each.reason = expires, flags, give_up_reason(history, expires)
    end
    page[i] = each
  end
  return page
end

-- Go through the ready messages: which to lease, which to give up, how many were seen. A message
-- that has crashed before is leased by itself.
local function select_ready(limit)
  local leased, given_up, seen, size = {}, {}, 0, 0
  while #leased < limit and seen < BATCH do
    local page = page_of_ready(seen, math.min(limit - #leased, 200))
    if #page == 0 then break end
    for _, each in ipairs(page) do
      local crashed = each.history and each.history.crashes > 0
      if each.reason then
        given_up[#given_up + 1] = each
      elseif each.row then
        if #leased > 0 and (crashed or size + #each.row > args.max_bytes) then
          return leased, given_up, seen
        end
        leased[#leased + 1] = each
        size = size + #each.row
      end
      seen = seen + 1
      if crashed and not each.reason then return leased, given_up, seen end
    end
  end
  return leased, given_up, seen
end

local function lease_messages(leased)
  local now = time[1] * 1000000 + time[2]
  local lease_end = string.format('%.17g', LEASE_NOW + args.lease_seconds)
  local leases, ends, tracked, response = {}, {}, {}, {}
  for i, each in ipairs(leased) do
    -- The server's time, so that no term repeats after an older state was restored.
    local term = each.history and math.max(now, each.history.term + 1) or now
    local flags = (has(each.flags, HAS_KEY) and LEASE_HAS_KEY or 0)
      + (each.history and LEASE_HAS_HISTORY or 0)
    if each.expires > 0 then
      flags = flags + LEASE_HAS_EXPIRY
      tracked[#tracked + 1] = each.id
    end
    leases[2 * i - 1] = each.number
    leases[2 * i] = struct.pack(LEASE_FORMAT, term, flags) .. each.id
    response[i] = struct.pack('>I4I4d', #each.row, #each.packed, term) .. each.row .. each.packed
  end
  -- The last message first: Redis searches a short zset from its start, where the smallest member
  -- of equal scores is.
  for i = #leased, 1, -1 do
    ends[#ends + 1], ends[#ends + 2] = lease_end, args.owner .. ':' .. leased[i].number
  end
  redis.call('HSETNX', OWNERS, args.owner,
    cmsgpack.pack({args.incarnation, args.page or false, WALL_NOW}))
  in_parts('HSET', LEASES .. args.owner, leases)
  in_parts('ZADD', LEASE_ENDS, ends)
  in_parts('ZREM', EXPIRING, tracked)
  return table.concat(response)
end

local function claim()
  if args.limit == 0 or redis.call('HGET', BASE, 'paused') == '1' then return 0, '' end
  promote_due()
  local leased, given_up, seen = select_ready(args.limit)
  if seen == 0 then return 0, '' end
  local erased = {}
  for i, each in ipairs(given_up) do
    give_up(each.id, each.row, each.history, each.reason)
    erased[i] = each.id
  end
  local response = #leased > 0 and lease_messages(leased) or ''
  redis.call('ZREMRANGEBYRANK', READY, 0, seen - 1)
  if #erased > 0 then erase(erased) end
  return #leased == 0 and 1 or 0, response
end

allow_when_full()
local results = #args.settlements > 0 and settle(args.settlements) or ''
local claim_again, rows = claim()
return {results, claim_again, rows}
