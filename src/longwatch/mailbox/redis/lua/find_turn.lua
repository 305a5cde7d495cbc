-- The turn of this mailbox: its holder ('' if there is none), and the seconds until it ends.

local held = redis.call('HMGET', BASE, 'sweeper', 'sweeper_until')
return {held[1] or '', string.format('%.6f', (held[2] or LEASE_NOW) - LEASE_NOW)}
