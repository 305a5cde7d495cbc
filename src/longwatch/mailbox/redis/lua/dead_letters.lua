-- A page of dead letters in the order they died, and their positions.
-- args: after (a position), limit.

local found = redis.call('ZRANGEBYSCORE', DEAD_ORDER, '(' .. args.after, '+inf', 'WITHSCORES',
  'LIMIT', 0, args.limit)
local ids, positions = {}, {}
for index = 1, #found, 2 do
  ids[#ids + 1], positions[#positions + 1] = found[index], found[index + 1]
end
return {values_of(DEAD, ids), positions}
