-- The keys of one mailbox and the clocks of the server; prefixed to every script about a mailbox.
--
-- KEYS[1] is the mailbox's own key and holds the hash tag. Every other key is derived from it, so
-- all of them are in one slot.
--
--   (itself)       hash    paused, seq (the last number given), expired (a count), dead_seq (the
--                          last position given to a dead letter), max_failures, max_crashes and
--                          max_lost (each as the last process set it that set it at all; none: the
--                          defaults in blame.lua); sweeper and sweeper_until (the engine that
--                          has the turn to sweep, by its incarnation, and when the turn ends;
--                          store/sweep_turns.py); registered (how many times an owner was
--                          registered); hinted_at (when a put behind other messages last notified)
--   :messages      hash    id -> row: every message that is ready, delayed or leased
--   :ready         zset    id by number: messages that may be leased, in order
--   :suspects      zset    the same of suspects (blame.lua), which are leased one at a time
--   :delayed       zset    id by the time it becomes ready
--   :expiring      zset    id by the time it expires: messages with an expiry that are not leased
--   :history       hash    id -> history, of messages that were released at least once
--   :tracebacks    hash    id -> traceback of its last failure; apart, so that histories stay small
--   :dedupe        hash    dedupe key -> id
--   :leases:OWNER  hash    number -> lease, for every lease of an owner
--   :lease_ends    zset    OWNER:number by the time its lease ends
--   :owners        hash    owner -> incarnation, beat page, time of registration, incarnation of
--                          its parent, whether it drains, seconds between its renewals
--   :dead          hash    id -> dead letter
--   :dead_order    zset    id by position, in the order they died
--   :put:REQUEST   string  the response to a put; the only key that expires in Redis
--
-- ARGV: the seconds that a test adds to the lease clock and to the wall clock, then the arguments
-- in msgpack. Redis has one clock, so a jump of the server's time moves leases too. Redis does not
-- undo a script that fails half-way, as for a user without permission for some command. So every
-- script writes a message to its new place before it removes it from the old one: a message may
-- then be in two places, never in none. Owners are strings: their 62 bits do not fit in a Lua
-- number.

local BASE = KEYS[1]
local READY, SUSPECTS, DELAYED = BASE .. ':ready', BASE .. ':suspects', BASE .. ':delayed'
local EXPIRING, LEASE_ENDS = BASE .. ':expiring', BASE .. ':lease_ends'
local MESSAGES, HISTORY = BASE .. ':messages', BASE .. ':history'
local TRACEBACKS, DEDUPE = BASE .. ':tracebacks', BASE .. ':dedupe'
local OWNERS = BASE .. ':owners'
local DEAD, DEAD_ORDER, LEASES = BASE .. ':dead', BASE .. ':dead_order', BASE .. ':leases:'

local args = cmsgpack.unpack(ARGV[3])
local time = redis.call('TIME')
local CLOCK = time[1] + time[2] / 1e6
local LEASE_NOW, WALL_NOW = CLOCK + ARGV[1], CLOCK + ARGV[2]

-- While a slot moves to another node of a Cluster, its keys are on either node. This node then
-- refuses every key that is missing here, and a script would stop half-way. So every script looks
-- for a key that never exists before it writes.
if type(redis.pcall('EXISTS', BASE .. ':never')) == 'table' then
  return redis.error_reply('TRYAGAIN the slot of this mailbox is moving')
end

-- A server that is out of memory refuses a script only if its first write is a command that needs
-- memory. So scripts that must work on a full server (settle, lease, renew) start with a ZREM of
-- nothing: otherwise no worker could empty it.
local function allow_when_full()
  redis.call('ZREM', LEASE_ENDS, '')
end

-- Register an owner unless it is registered. record: incarnation, page, parent, is_draining,
-- renew_seconds.
local function register_owner(owner, record)
  local page, parent = record.page or false, record.parent or false
  local is_new = redis.call('HSETNX', OWNERS, owner, cmsgpack.pack({
    record.incarnation, page, WALL_NOW, parent, record.is_draining, record.renew_seconds or false,
  }))
  if is_new == 1 then redis.call('HINCRBY', BASE, 'registered', 1) end
end

-- Notify listeners. Idle receivers may ignore it, unless the message is 'all'. A failure, as for a
-- user without permission to publish, must not stop the script half-way.
local function notify(message)
  redis.pcall('PUBLISH', BASE, message or '')
end
