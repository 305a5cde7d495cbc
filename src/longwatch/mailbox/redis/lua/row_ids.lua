-- The ids of leased and ready messages by number. Writes nothing. args: numbers. The response:
-- number and id, in turn.

local LEASE_ID = 10  -- where the id starts in a lease
local response, missing = {}, {}
for i, number in ipairs(args.numbers) do missing[i] = string.format('%.0f', number) end

-- Move the numbers whose id `find` returns from `missing` to the response.
local function collect(find)
  if #missing == 0 then return end
  local ids, left = find(missing), {}
  for i, number in ipairs(missing) do
    if ids[i] then
      response[#response + 1], response[#response + 2] = number, ids[i]
    else
      left[#left + 1] = number
    end
  end
  missing = left
end

for _, owner in ipairs(redis.call('HKEYS', OWNERS)) do
  collect(function(numbers)
    local ids = redis.call('HMGET', LEASES .. owner, unpack(numbers))
    for i, lease in ipairs(ids) do ids[i] = lease and lease:sub(LEASE_ID) end
    return ids
  end)
end
for _, zset in ipairs({READY, SUSPECTS}) do
  collect(function(numbers)
    local ids = {}
    for i, number in ipairs(numbers) do
      ids[i] = redis.call('ZRANGEBYSCORE', zset, number, number)[1] or false
    end
    return ids
  end)
end
return response
