-- Seconds until the next delayed message is due; none if no message is delayed.

local first = redis.call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')
return first[2] and string.format('%.6f', math.max(first[2] - WALL_NOW, 0)) or false
