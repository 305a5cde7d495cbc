-- Store messages, all or none, once: a put that is asked again is answered as before, even if they are gone by then.
--
-- asked: request (by chance), answered (requests whose answers arrived: nobody will ask them again), remember (seconds), most (how
-- many messages there may be; none: any number). ARGV[4] is the messages, one behind the other: delay, expires in (0: never),
-- length, and the row but for its number and times. The answer begins with '=' when the ids are as asked, '+' when they follow, '!'
-- when there is no room, with how many there are.

local ANSWER = BASE .. ':answer:'
local known = redis.call('GET', ANSWER .. asked.request)
if known then return known end

local function letters_in(packed)
  local letters, place = {}, 1
  while place <= #packed do
    local delay, expires, size, start = struct.unpack('>ddI4', packed, place)
    place = start + size
    local rest = packed:sub(start, place - 1)
    local marks, id, key = struct.unpack('>BI2I4', rest)
    letters[#letters + 1] = {
      id = rest:sub(10, 9 + id), key = has(marks, KEYED) and rest:sub(10 + id, 9 + id + key),
      delay = delay, expires = expires > 0 and WALL_NOW + expires or 0, rest = rest,
    }
  end
  return letters
end

-- Which of these keys some message bears; one that has expired, swept or not, does not stand for a new one.
local function bearers(letters)
  local keys, ids, met = {}, {}, {}
  for _, letter in ipairs(letters) do
    local key = letter.key
    if key and not met[key] then
      keys[#keys + 1], met[key] = key, true
    end
  end
  for i, id in ipairs(values_of(NAMED, keys)) do
    local expires = id and redis.call('ZSCORE', EXPIRING, id)
    if expires and tonumber(expires) <= WALL_NOW then
      expire({id})
    elseif id then
      ids[keys[i]] = id
    end
  end
  return ids
end

-- What is new, and the id that each letter is known by.
local function sorted_out(letters)
  local bearing, ids, fresh, names, same = bearers(letters), {}, {}, {}, true
  for i, letter in ipairs(letters) do names[i] = letter.id end
  local present = values_of(ROWS, names)
  for i, letter in ipairs(letters) do
    local first = letter.key and bearing[letter.key]
    ids[i] = first or letter.id
    same = same and not first
    if not first and not present[i] then
      fresh[#fresh + 1] = letter
      if letter.key then bearing[letter.key] = letter.id end
    end
  end
  return fresh, same and '=' or '+' .. cmsgpack.pack(ids)
end

local function is_full(coming)
  return asked.most and redis.call('HLEN', ROWS) + coming > asked.most
end

local function store(letters)
  local number = redis.call('HINCRBY', BASE, 'seq', #letters) - #letters
  local free, delayed, rows, expiring, named = {}, {}, {}, {}, {}
  for i, letter in ipairs(letters) do
    local id, delay, expires = letter.id, letter.delay, letter.expires
    local line, place = free, number + i
    if delay > 0 then line, place = delayed, WALL_NOW + delay end
    line[#line + 1], line[#line + 2] = place, id
    rows[2 * i - 1], rows[2 * i] = id, struct.pack(ROW, number + i, WALL_NOW, expires) .. letter.rest
    if expires > 0 then expiring[#expiring + 1], expiring[#expiring + 2] = expires, id end
    if letter.key then named[#named + 1], named[#named + 2] = letter.key, id end
  end
  local was_empty = redis.call('ZCARD', FREE) == 0
  in_parts('ZADD', FREE, free)
  in_parts('ZADD', DELAYED, delayed)
  in_parts('HSET', ROWS, rows)
  in_parts('ZADD', EXPIRING, expiring)
  in_parts('HSET', NAMED, named)
  -- Who found something left in line comes back by itself; only who found nothing waits.
  if was_empty or #delayed > 0 then announce() end
end

local fresh, answer = sorted_out(letters_in(ARGV[4]))
if is_full(#fresh) then
  expire(overdue(500))
  if is_full(#fresh) then return '!' .. redis.call('HLEN', ROWS) end
end
if #fresh > 0 then store(fresh) end
redis.call('SET', ANSWER .. asked.request, answer, 'EX', asked.remember)
for _, request in ipairs(asked.answered) do redis.call('DEL', ANSWER .. request) end
return answer
