-- How many suspects may be leased now.

return redis.call('HGET', BASE, 'paused') == '1' and 0 or redis.call('ZCARD', SUSPECTS)
