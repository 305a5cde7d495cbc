-- Pause or resume claims from a mailbox. args: paused.

allow_when_full()
if args.paused then
  redis.call('HSET', BASE, 'paused', 1)
else
  redis.call('HDEL', BASE, 'paused')
end
notify()
