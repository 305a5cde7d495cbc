-- Settle what is done, then lease what comes next: one step, which nobody sees half done.
--
-- asked: owner, incarnation, page, want, duration, max_failures, max_crashes, most_bytes, settlements {number, term, outcome,
-- owner, delay, reason, error}; of one that is done and the asker's own the first two are enough. The answer: for each settlement
-- 1, or 0 if the row was not the claimant's any more; whether to ask again, because only spent rows were met; and the leased rows,
-- one behind the other: length of row and past, term, row, past.

-- The leases that the settlements name, by owner and number.
local function leases_named(settlements)
  local numbers, leases = {}, {}
  for _, each in ipairs(settlements) do
    local owner = each[4] or asked.owner
    numbers[owner] = numbers[owner] or {}
    table.insert(numbers[owner], each[1])
  end
  for owner, named in pairs(numbers) do
    leases[owner] = {}
    for i, lease in ipairs(values_of(HELD .. owner, named)) do leases[owner][named[i]] = lease end
  end
  return leases
end

local function end_leases(owner, numbers)
  local members = {}
  for i, number in ipairs(numbers) do members[i] = owner .. ':' .. string.format('%.0f', number) end
  in_parts('HDEL', HELD .. owner, numbers)
  in_parts('ZREM', UNTIL, members)
end

local function bury(lease, reason, error)
  local id = lease:sub(10)
  local row = redis.call('HGET', ROWS, id)
  local past = past_of(redis.call('HGET', PAST, id))
  past.deliveries = past.deliveries + 1
  note_death(id, row, past, reason, error)
  erase({id})
end

-- Which settlements are their claimants' own: a verdict for each, the numbers to end by owner, and the rest of the work.
local function judged(settlements)
  local leases, verdicts, ended, work = leases_named(settlements), {}, {}, {done = {}, marked = {}, others = {}}
  for i, each in ipairs(settlements) do
    local owner = each[4] or asked.owner
    local lease = leases[owner][each[1]]
    local term, marks = 0, 0
    if lease then term, marks = struct.unpack(A_LEASE, lease) end
    verdicts[i] = lease and term == each[2] and '1' or '0'
    if verdicts[i] == '1' then
      leases[owner][each[1]] = false
      ended[owner] = ended[owner] or {}
      table.insert(ended[owner], each[1])
      if each[3] then
        table.insert(work.others, {each, lease})
      else
        local is_plain = not has(marks, IS_KEYED) and not has(marks, CAME_BACK)
        table.insert(is_plain and work.done or work.marked, lease:sub(10))
      end
    end
  end
  return table.concat(verdicts), ended, work
end

local function settle(settlements)
  local verdicts, ended, work = judged(settlements)
  local given_back = false
  for _, pair in ipairs(work.others) do
    local each, lease = pair[1], pair[2]
    if each[3] == 'dead' then
      bury(lease, each[6], each[7])
    else
      give_back(each[1], lease, each[3], each[5], each[7])
      given_back = true
    end
  end
  for owner, numbers in pairs(ended) do end_leases(owner, numbers) end
  in_parts('HDEL', ROWS, work.done)
  if #work.marked > 0 then erase(work.marked) end
  if given_back then announce() end
  return verdicts
end

-- Why a row is given up instead of being handed out; nil if it is not.
local function spent(past, expires)
  if past and past.crashes >= asked.max_crashes then return 'poison' end
  if past and past.failures >= asked.max_failures then return 'failed' end
  return expires > 0 and expires <= WALL_NOW and 'expired' or nil
end

local function give_up(id, row, past, reason)
  if reason == 'expired' then redis.call('HINCRBY', BASE, 'expired', 1) end
  if reason ~= 'expired' or has(select(4, struct.unpack(PLACES, row)), KEEP) then
    note_death(id, row, past or past_of(), reason)
  end
end

-- What stands at the head of the line: {id, number, row, packed past, past, reason to give it up, expires, marks} for each.
local function page_of_line(first, count)
  local found = redis.call('ZRANGE', FREE, first, first + count - 1, 'WITHSCORES')
  local ids, page = {}, {}
  for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
  local rows = values_of(ROWS, ids)
  local pasts = redis.call('EXISTS', PAST) == 1 and values_of(PAST, ids) or {}
  for i, id in ipairs(ids) do
    local row, past = rows[i], pasts[i] and past_of(pasts[i])
    local each = {id = id, number = found[2 * i], row = row, packed = pasts[i] or '', past = past}
    if row then
      local _, _, expires, marks = struct.unpack(PLACES, row)
      each.expires, each.marks, each.reason = expires, marks, spent(past, expires)
    end
    page[i] = each
  end
  return page
end

-- Look along the line: what to lease, what to give up, how many were looked at. One that has crashed before comes alone.
local function chosen(want)
  local leased, given_up, seen, size = {}, {}, 0, 0
  while #leased < want and seen < AT_ONCE do
    local page = page_of_line(seen, math.min(want - #leased, 200))
    if #page == 0 then break end
    for _, each in ipairs(page) do
      local crashed = each.past and each.past.crashes > 0
      if each.reason then
        given_up[#given_up + 1] = each
      elseif each.row then
        if #leased > 0 and (crashed or size + #each.row > asked.most_bytes) then return leased, given_up, seen end
        leased[#leased + 1] = each
        size = size + #each.row
      end
      seen = seen + 1
      if crashed and not each.reason then return leased, given_up, seen end
    end
  end
  return leased, given_up, seen
end

local function lease_rows(leased)
  local now, until_then = time[1] * 1000000 + time[2], string.format('%.17g', LEASE_NOW + asked.duration)
  local held, ending, watched, answer = {}, {}, {}, {}
  for i, each in ipairs(leased) do
    -- The server's time, so that a term does not repeat after an older state was restored.
    local term = each.past and math.max(now, each.past.term + 1) or now
    local marks = (has(each.marks, KEYED) and IS_KEYED or 0) + (each.past and CAME_BACK or 0)
    if each.expires > 0 then
      marks = marks + EXPIRES
      watched[#watched + 1] = each.id
    end
    held[2 * i - 1], held[2 * i] = each.number, struct.pack(A_LEASE, term, marks) .. each.id
    answer[i] = struct.pack('>I4I4d', #each.row, #each.packed, term) .. each.row .. each.packed
  end
  -- The last one first: a short zset is searched from its beginning, and there the smallest of equal scores stands.
  for i = #leased, 1, -1 do
    ending[#ending + 1], ending[#ending + 2] = until_then, asked.owner .. ':' .. leased[i].number
  end
  redis.call('HSETNX', OWNERS, asked.owner, cmsgpack.pack({asked.incarnation, asked.page or false, WALL_NOW}))
  in_parts('HSET', HELD .. asked.owner, held)
  in_parts('ZADD', UNTIL, ending)
  in_parts('ZREM', EXPIRING, watched)
  return table.concat(answer)
end

local function claim()
  if asked.want == 0 or redis.call('HGET', BASE, 'paused') == '1' then return 0, '' end
  free_the_due()
  local leased, given_up, seen = chosen(asked.want)
  if seen == 0 then return 0, '' end
  local erased = {}
  for i, each in ipairs(given_up) do
    give_up(each.id, each.row, each.past, each.reason)
    erased[i] = each.id
  end
  local answer = #leased > 0 and lease_rows(leased) or ''
  redis.call('ZREMRANGEBYRANK', FREE, 0, seen - 1)
  if #erased > 0 then erase(erased) end
  return #leased == 0 and 1 or 0, answer
end

begin_even_if_full()
local verdicts = #asked.settlements > 0 and settle(asked.settlements) or ''
local again, rows = claim()
return {verdicts, again, rows}
