-- The number of a mailbox among all of them, given when it is new: the first that is not taken from the one its name leads to.
-- KEYS[1] is the hash number -> name, alone in its slot. ARGV: name, where to begin, how many numbers there are.

local number = tonumber(ARGV[2])
for _ = 1, tonumber(ARGV[3]) do
  local name = redis.call('HGET', KEYS[1], number)
  if not name then redis.call('HSET', KEYS[1], number, ARGV[1]) end
  if not name or name == ARGV[1] then return number end
  number = (number + 1) % ARGV[3]
end
return redis.error_reply('ERR too many mailboxes')
