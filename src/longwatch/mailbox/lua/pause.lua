-- Stop or resume handing messages out. asked: paused.

begin_even_if_full()
if asked.paused then redis.call('HSET', BASE, 'paused', 1) else redis.call('HDEL', BASE, 'paused') end
announce()
