-- Settle messages, then lease the next ones, in one step.
--
-- args: owner, record (of the owner; keys.lua), limit, selection ('any', 'ordinary' or 'suspects'),
-- lease_seconds, max_bytes, settlements {number, term, outcome, owner, delay, reason, error,
-- traceback}. A settlement that is done and of the caller's own owner may leave out all but number
-- and term. The response:
--   results        for each settlement 1, or 0 if its claim no longer matched
--   claim_again    1 if the script met only messages that it gave up
--   rows           the leased messages, concatenated: length of row and of counters, term, row,
--                  counters
--   is_suspect     1 if the leased message is a suspect, and so the only one
--   max_failures   of the mailbox
--   dead_lettered  id and reason, in turn; not those that a settlement asked for

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

-- The reasons of a dead letter that count as one failure more.
local FAILURE_REASONS = {failed = true, unanswered = true}

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
    local number, _, outcome, _, delay, reason, error, traceback = unpack(each, 1, 8)
    if outcome == 'dead' then
      local counter = FAILURE_REASONS[reason] and 'failures'
      local id, history = count_end(lease, counter, error)
      dead_letter(id, history, reason, traceback)
    else
      release(number, lease, outcome, delay, error, traceback)
      released = true
    end
  end
  for owner, numbers in pairs(ended) do end_leases(owner, numbers) end
  in_parts('HDEL', MESSAGES, work.done)
  if #work.flagged > 0 then erase(work.flagged) end
  if released then notify() end
  return results
end

allow_when_full()
local results = #args.settlements > 0 and settle(args.settlements) or ''
local claim_again, rows, is_suspect_leased = claim()
return {results, claim_again, rows, is_suspect_leased, MAX_FAILURES, dead_lettered}
