-- A page of the dead, in the order they died. asked: after (an id; none, or one that is not there: from the first), limit.

local after = asked.after and redis.call('ZSCORE', DEATHS, asked.after)
local ids = redis.call('ZRANGEBYSCORE', DEATHS, after and '(' .. after or '-inf', '+inf', 'LIMIT', 0, asked.limit)
return values_of(DEAD, ids)
