-- Take the turn of this mailbox, or extend it; 0 if another holder has it. The rule is that of
-- `take_turns` in store/sweep_turns.postgresql.sql: change both.
-- args: holder, seconds, ended {holder whose process has ended}.

local held = redis.call('HMGET', BASE, 'sweeper', 'sweeper_until')
local holder, ends = held[1], tonumber(held[2] or 0)
local is_free = not holder or holder == args.holder
  or ends <= LEASE_NOW or ends > LEASE_NOW + 2 * args.seconds
for _, ended in ipairs(args.ended) do is_free = is_free or holder == ended end
if not is_free then return 0 end

allow_when_full()
redis.call('HSET', BASE, 'sweeper', args.holder,
  'sweeper_until', string.format('%.6f', LEASE_NOW + args.seconds))
return 1
