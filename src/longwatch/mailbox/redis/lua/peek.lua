-- The messages that a claim would lease next, ready or due but not expired, each followed by the
-- counters of its history; in no order. args: limit.

local response = {}

-- Add messages to the response, and return how many of them have not expired.
local function add(ids)
  local histories, added = values_of(HISTORY, ids), 0
  for i, row in ipairs(values_of(MESSAGES, ids)) do
    local expires = row and select(3, struct.unpack(ROW_FORMAT, row))
    if row and (expires == 0 or expires > WALL_NOW) then
      local counters = histories[i] and histories[i]:sub(1, COUNTERS_SIZE) or ''
      response[#response + 1], response[#response + 2] = row, counters
      added = added + 1
    end
  end
  return added
end

local function add_pages(page_from)
  local added, first = 0, 0
  while added < args.limit do
    local ids = page_from(first)
    if #ids == 0 then return end
    added = added + add(ids)
    first = first + #ids
  end
end

for _, zset in ipairs({READY, SUSPECTS}) do
  add_pages(function(first) return redis.call('ZRANGE', zset, first, first + 199) end)
end
add_pages(function(first)
  return redis.call('ZRANGEBYSCORE', DELAYED, '-inf', WALL_NOW, 'LIMIT', first, 200)
end)
return response
