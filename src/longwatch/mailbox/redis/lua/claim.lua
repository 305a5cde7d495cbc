-- Select ready messages and lease them; prefixed to `exchange.lua`, whose args it reads.
--
-- Messages are leased in the order of their numbers, across READY and SUSPECTS: the ordinary ones
-- up to the first suspect, or the suspect by itself. A message that has expired, or that spent a
-- budget when the limits were lowered, is given up instead. One script gives up BATCH at most.

-- Why a message is given up instead of leased; nil if it is not. The rule is `give_up_reason` of
-- mailbox/limits.py: change both.
local function give_up_reason(history, expires)
  local reason = history and spent_reason(history)
  return reason or (expires > 0 and expires <= WALL_NOW and 'expired' or nil)
end

-- Give messages up: count the expired ones, and add dead letters if `is_kept` of mailbox/limits.py.
local function give_up(messages)
  local ids = {}
  for i, each in ipairs(messages) do
    ids[i] = each.id
    if each.reason == 'expired' then redis.call('HINCRBY', BASE, 'expired', 1) end
    if is_kept(each.reason, each.row) then
      add_dead_letter(each.id, each.row, each.history or history_of(), each.reason)
      report_dead_letter(each.id, each.reason)
    end
  end
  return ids
end

-- A page of READY or SUSPECTS: {id, number, row, history, counters, reason to give it up, expires,
-- flags, is_suspect} for each.
local function page_of(zset, first, count)
  local found = redis.call('ZRANGE', zset, first, first + count - 1, 'WITHSCORES')
  if #found == 0 then return {} end
  local ids, page = {}, {}
  for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
  local rows = values_of(MESSAGES, ids)
  local histories = redis.call('EXISTS', HISTORY) == 1 and values_of(HISTORY, ids) or {}
  for i, id in ipairs(ids) do
    local row, packed, history = rows[i], histories[i], nil
    local each = {id = id, number = found[2 * i], row = row, counters = ''}
    if packed then
      history = history_of(packed)
      each.history, each.is_suspect = history, is_suspect(history)
      each.counters = packed:sub(1, COUNTERS_SIZE)
    end
    if row then
      local _, _, expires, flags = struct.unpack(HEAD_FORMAT, row)
      each.expires, each.flags, each.reason = expires, flags, give_up_reason(history, expires)
    end
    page[i] = each
  end
  return page
end

-- The first message of SUSPECTS that may be leased, and the messages before it that are to be given
-- up or do not exist.
local function select_suspect()
  local given_up, gone, seen = {}, {}, 0
  while seen < BATCH do
    local page = page_of(SUSPECTS, seen, 20)
    if #page == 0 then break end
    for _, each in ipairs(page) do
      if each.row and not each.reason then return each, given_up, gone end
      table.insert(each.row and given_up or gone, each.row and each or each.id)
    end
    seen = seen + #page
  end
  return nil, given_up, gone
end

-- Search READY up to a number: which messages to lease, which to give up, which to move to
-- SUSPECTS, how many were seen, and whether the end was reached. With 'any' a suspect is leased by
-- itself. With 'ordinary' it is moved.
local function select_ready(limit, up_to)
  local found = {leased = {}, given_up = {}, moved = {}, seen = 0, is_end = false}
  local leased, size = found.leased, 0
  while #leased < limit and found.seen < BATCH do
    local page = page_of(READY, found.seen, math.min(limit - #leased, 200))
    if #page == 0 then
      found.is_end = true
      return found
    end
    for _, each in ipairs(page) do
      if up_to and tonumber(each.number) > up_to then
        found.is_end = true
        return found
      end
      if each.reason then
        table.insert(found.given_up, each)
      elseif each.is_suspect and args.selection == 'ordinary' then
        table.insert(found.moved, each)
      elseif each.row then
        size = size + #each.row
        if #leased > 0 and (each.is_suspect or size > args.max_bytes) then return found end
        leased[#leased + 1] = each
      end
      found.seen = found.seen + 1
      if each.is_suspect and leased[1] == each then return found end
    end
  end
  return found
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
    response[i] = struct.pack('>I4I4d', #each.row, #each.counters, term)
      .. each.row .. each.counters
  end
  -- The last message first: Redis searches a short zset from its start, where the smallest member
  -- of equal scores is.
  for i = #leased, 1, -1 do
    ends[#ends + 1], ends[#ends + 2] = lease_end, args.owner .. ':' .. leased[i].number
  end
  register_owner(args.owner, args.record)
  in_parts('HSET', LEASES .. args.owner, leases)
  in_parts('ZADD', LEASE_ENDS, ends)
  in_parts('ZREM', EXPIRING, tracked)
  return table.concat(response)
end

-- Lease the messages that `select_ready` found in READY, and give up or move the others.
local function claim_ready(found)
  local erased = give_up(found.given_up)
  local moved = {}
  for _, each in ipairs(found.moved) do
    moved[#moved + 1], moved[#moved + 2] = each.number, each.id
  end
  local response = #found.leased > 0 and lease_messages(found.leased) or ''
  in_parts('ZADD', SUSPECTS, moved)
  if found.seen > 0 then redis.call('ZREMRANGEBYRANK', READY, 0, found.seen - 1) end
  if #erased > 0 then erase(erased) end
  if #moved > 0 then notify() end
  return response
end

-- Lease one message of SUSPECTS, or none, and remove those that are given up or do not exist.
local function claim_suspect(suspect, given_up, gone)
  local removed = give_up(given_up)
  local response = suspect and lease_messages({suspect}) or ''
  for _, id in ipairs(gone) do removed[#removed + 1] = id end
  in_parts('ZREM', SUSPECTS, removed)
  if suspect then redis.call('ZREM', SUSPECTS, suspect.id) end
  if #removed > 0 then erase(removed) end
  return response
end

-- Lease messages in the order of their numbers: ordinary ones up to the first suspect, or the
-- suspect by itself. The response: claim_again, the leased messages, whether it is a suspect.
local function claim()
  if args.limit == 0 or IS_PAUSED then return 0, '', 0 end
  promote_due()
  local suspect, given_up, gone
  if args.selection ~= 'ordinary' then
    suspect, given_up, gone = select_suspect()
    if args.selection == 'suspects' then
      local response = claim_suspect(suspect, given_up, gone)
      return not suspect and #given_up > 0 and 1 or 0, response, 1
    end
  end
  local found = select_ready(args.limit, suspect and tonumber(suspect.number))
  local leased = found.leased
  local response = claim_ready(found)
  local takes_suspect = suspect and #leased == 0 and found.is_end
  if takes_suspect or given_up and #given_up + #gone > 0 then
    local rows = claim_suspect(takes_suspect and suspect or nil, given_up, gone)
    if takes_suspect then return 0, rows, 1 end
  end
  local claim_again = #leased == 0 and (found.seen > 0 or given_up and #given_up > 0)
  return claim_again and 1 or 0, response, leased[1] and leased[1].is_suspect and 1 or 0
end
