-- A page of the dead, in the order they died, and their places in it. asked: after (a place), limit.

local found = redis.call('ZRANGEBYSCORE', DEATHS, '(' .. asked.after, '+inf', 'WITHSCORES', 'LIMIT', 0, asked.limit)
local ids, places = {}, {}
for index = 1, #found, 2 do
  ids[#ids + 1], places[#places + 1] = found[index], found[index + 1]
end
return {values_of(DEAD, ids), places}
