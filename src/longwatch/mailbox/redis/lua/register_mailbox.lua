-- The number of a mailbox. A new mailbox gets its preferred number, or the next that is not taken.
-- KEYS[1] is the hash number -> name, by itself in its slot; its field `schema` is the version of
-- the layout of all keys. ARGV: name, preferred number, how many numbers there are, the version.

if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('HSET', KEYS[1], 'schema', ARGV[4]) end
if redis.call('HGET', KEYS[1], 'schema') ~= ARGV[4] then
  return redis.error_reply('OTHERSCHEMA the keys have another layout')
end

local number = tonumber(ARGV[2])
for _ = 1, tonumber(ARGV[3]) do
  local name = redis.call('HGET', KEYS[1], number)
  if not name then redis.call('HSET', KEYS[1], number, ARGV[1]) end
  if not name or name == ARGV[1] then return number end
  number = (number + 1) % ARGV[3]
end
return redis.error_reply('ERR too many mailboxes')
