-- The rows that would be handed out next, each followed by its past: those in line, and those that are due; in no order.
-- asked: limit. What has expired is left out.

local answer = {}

-- Some rows of a line; how many of them have not expired.
local function show(ids)
  local pasts, shown = values_of(PAST, ids), 0
  for i, row in ipairs(values_of(ROWS, ids)) do
    local expires = row and select(3, struct.unpack(ROW, row))
    if row and (expires == 0 or expires > WALL_NOW) then
      answer[#answer + 1], answer[#answer + 2] = row, pasts[i] or ''
      shown = shown + 1
    end
  end
  return shown
end

local function show_line(page_from)
  local shown, first = 0, 0
  while shown < asked.limit do
    local ids = page_from(first)
    if #ids == 0 then return end
    shown = shown + show(ids)
    first = first + #ids
  end
end

show_line(function(first) return redis.call('ZRANGE', FREE, first, first + 199) end)
show_line(function(first) return redis.call('ZRANGEBYSCORE', DELAYED, '-inf', WALL_NOW, 'LIMIT', first, 200) end)
return answer
