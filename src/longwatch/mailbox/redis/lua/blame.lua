-- Applies the budgets of a mailbox; prefixed to the scripts that lease and release.
--
-- A message has a counter for each kind of end of a lease: failures, crashes, lost, releases
-- (store/blame.py says which one rises). Each but releases has a budget. The mailbox's own hash
-- holds the budgets, so that every process applies the same ones. `release` counts an event and
-- gives the message up, in the same script, if that spent a budget.
--
-- A ready message is in one of two zsets: a suspect, which one more crash or loss would give up, in
-- SUSPECTS, every other message in READY. So a claim that takes no suspects finds none. When the
-- limits change, `set_limits.lua` moves all suspects to READY, and later claims move them back. So
-- a message in SUSPECTS is always a suspect, and a message in READY may be one for a while.

-- The defaults are those of `MailboxLimits` in mailbox/limits.py: change both.
local SETTINGS = redis.call('HMGET', BASE, 'max_failures', 'max_crashes', 'max_lost', 'paused')
local MAX_FAILURES = tonumber(SETTINGS[1] or 5)
local MAX_CRASHES, MAX_LOST = tonumber(SETTINGS[2] or 3), tonumber(SETTINGS[3] or 5)
local IS_PAUSED = SETTINGS[4] == '1'

-- The messages that this script dead-lettered: id and reason, in turn.
local dead_lettered = {}

local function report_dead_letter(id, reason)
  dead_lettered[#dead_lettered + 1], dead_lettered[#dead_lettered + 2] = id, reason
end

-- The rule is `BlameBudget.is_suspect` of store/blame.py: change both.
local function is_suspect(history)
  local crashes, lost = history.crashes, history.lost
  return crashes > 0 and crashes >= MAX_CRASHES - 1 or lost > 0 and lost >= MAX_LOST - 1
end

-- Which budget a message has spent; nil if none. The rule is `give_up_reason` of mailbox/limits.py:
-- change both.
local function spent_reason(history)
  if history.crashes >= MAX_CRASHES then return 'poison' end
  if history.lost >= MAX_LOST then return 'lost' end
  return history.failures >= MAX_FAILURES and 'failed' or nil
end

-- Make due messages ready, and return how many.
local function promote_due()
  local ids = redis.call('ZRANGEBYSCORE', DELAYED, '-inf', WALL_NOW, 'LIMIT', 0, BATCH / 2)
  if #ids == 0 then return 0 end
  local ready, suspects, histories = {}, {}, values_of(HISTORY, ids)
  for i, row in ipairs(values_of(MESSAGES, ids)) do
    if row then
      local suspect = histories[i] and is_suspect(history_of(histories[i]))
      local due = suspect and suspects or ready
      due[#due + 1] = struct.unpack(ROW_FORMAT, row)
      due[#due + 1] = ids[i]
    end
  end
  in_parts('ZADD', READY, ready)
  in_parts('ZADD', SUSPECTS, suspects)
  in_parts('ZREM', DELAYED, ids)
  return #ids
end

-- Count the end of a lease, and return the id of the message and its new history.
local function count_end(lease, counter, error)
  local term, flags = struct.unpack(LEASE_FORMAT, lease)
  local id = lease:sub(10)
  local history = history_of(has(flags, LEASE_HAS_HISTORY) and redis.call('HGET', HISTORY, id))
  history.deliveries, history.term = history.deliveries + 1, term
  history.error = error or history.error
  if counter then history[counter] = history[counter] + 1 end
  return id, history
end

-- Dead-letter a leased message. The caller ends the lease.
local function dead_letter(id, history, reason, traceback)
  local row = redis.call('HGET', MESSAGES, id)
  if row then add_dead_letter(id, row, history, reason, traceback) end
  erase({id})
end

-- Release a leased message and raise a counter. It returns to its old place, is delayed, or becomes
-- a dead letter if that spent a budget. The caller ends the lease.
local function release(number, lease, counter, delay, error, traceback)
  local id, history = count_end(lease, counter, error)
  local reason = counter ~= 'releases' and spent_reason(history)
  if reason then
    dead_letter(id, history, reason, traceback)
    report_dead_letter(id, reason)
    return
  end
  redis.call('HSET', HISTORY, id, pack_history(history))
  if traceback then redis.call('HSET', TRACEBACKS, id, traceback) end
  if delay > 0 then
    redis.call('ZADD', DELAYED, WALL_NOW + delay, id)
  else
    redis.call('ZADD', is_suspect(history) and SUSPECTS or READY, number, id)
  end
  local row = has(select(2, struct.unpack(LEASE_FORMAT, lease)), LEASE_HAS_EXPIRY)
    and redis.call('HGET', MESSAGES, id)
  if row then redis.call('ZADD', EXPIRING, select(3, struct.unpack(ROW_FORMAT, row)), id) end
end
