-- Give the turn of this mailbox up, unless another holder has it. args: holder.

if redis.call('HGET', BASE, 'sweeper') ~= args.holder then return 0 end
allow_when_full()
return redis.call('HDEL', BASE, 'sweeper', 'sweeper_until')
