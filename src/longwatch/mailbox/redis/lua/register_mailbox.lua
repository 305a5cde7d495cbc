-- The number of a mailbox; a new mailbox gets its preferred number, or the next that is not taken.
-- KEYS[1] is the hash number -> name, by itself in its slot. ARGV: name, preferred number, how many
-- numbers there are.

local number = tonumber(ARGV[2])
for _ = 1, tonumber(ARGV[3]) do
  local name = redis.call('HGET', KEYS[1], number)
  if not name then redis.call('HSET', KEYS[1], number, ARGV[1]) end
  if not name or name == ARGV[1] then return number end
  number = (number + 1) % ARGV[3]
end
return redis.error_reply('ERR too many mailboxes')
