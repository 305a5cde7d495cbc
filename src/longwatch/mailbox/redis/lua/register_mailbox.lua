-- The number of a mailbox. A new mailbox gets its preferred number, or the next that is not taken.
-- KEYS[1] is the hash number -> name, by itself in its slot; its field `schema` is the version of
-- the layout of all keys, and the lowest version of a process that may use them where that differs
-- (`parse_layout`). ARGV: name, preferred number, how many numbers there are, the version of this
-- process, and the lowest version that can share the keys with it.

local mine, least = tonumber(ARGV[4]), tonumber(ARGV[5])
local found = redis.call('HGET', KEYS[1], 'schema')
local version, min_reader = string.match(found or '', '^(%d+) ?(%d*)$')
version = tonumber(version) or 0
min_reader = tonumber(min_reader) or version
if redis.call('EXISTS', KEYS[1]) == 1 then
  if min_reader > mine then return redis.error_reply('NEWERSCHEMA the keys have a newer layout') end
  if version < least then return redis.error_reply('OTHERSCHEMA the keys have another layout') end
end
if version < mine then
  min_reader = math.max(min_reader, least)
  local layout = min_reader == mine and ARGV[4] or (ARGV[4] .. ' ' .. min_reader)
  redis.call('HSET', KEYS[1], 'schema', layout)
end

local number = tonumber(ARGV[2])
for _ = 1, tonumber(ARGV[3]) do
  local name = redis.call('HGET', KEYS[1], number)
  if not name then redis.call('HSET', KEYS[1], number, ARGV[1]) end
  if not name or name == ARGV[1] then return number end
  number = (number + 1) % ARGV[3]
end
return redis.error_reply('ERR too many mailboxes')
