-- The keys of one mailbox and the clocks of the server; stands before every script about a mailbox.
--
-- KEYS[1] is the mailbox's own key and holds the hash tag. Every other key is made from it, so all of them are in one slot.
--
--   (itself)     hash    paused, seq (the last number given), expired (how many), deaths (how many)
--   :rows        hash    id -> row: every message that is free, delayed or leased
--   :free        zset    id by number: what may be leased, in order
--   :delayed     zset    id by the moment it is ready
--   :expiring    zset    id by the moment it expires: what is free or delayed and will not wait for ever
--   :past        hash    id -> past: what happened to a message that came back at least once
--   :keys        hash    key of de-duplication -> id
--   :held:OWNER  hash    number -> lease: what an owner holds
--   :until       zset    OWNER:number by the moment its lease ends
--   :owners      hash    owner -> incarnation, beat page, when it entered
--   :dead        hash    id -> dead letter
--   :deaths      zset    id by the order of their deaths
--   :answer:ID   string  what a put was answered; the only key that Redis forgets by itself
--
-- ARGV: what a test adds to the lease clock, what it adds to the wall clock, and what is asked, in msgpack. Redis has one clock, so
-- a jump of the server's time moves leases too. A script that fails half-way (a user without the right to some command) is not
-- undone by Redis, so every script puts a message where it goes before it takes it from where it was: it may then be twice
-- somewhere, never nowhere. Owners are strings throughout: their 62 bits do not fit a number of Lua's.

local BASE = KEYS[1]
local FREE, DELAYED, EXPIRING, UNTIL = BASE .. ':free', BASE .. ':delayed', BASE .. ':expiring', BASE .. ':until'
local ROWS, PAST, NAMED, OWNERS = BASE .. ':rows', BASE .. ':past', BASE .. ':keys', BASE .. ':owners'
local DEAD, DEATHS, HELD = BASE .. ':dead', BASE .. ':deaths', BASE .. ':held:'

local asked = cmsgpack.unpack(ARGV[3])
local time = redis.call('TIME')
local CLOCK = time[1] + time[2] / 1e6
local LEASE_NOW, WALL_NOW = CLOCK + ARGV[1], CLOCK + ARGV[2]

-- A server that is out of memory refuses a script at its first command that needs some, and only there. So whatever must work on a
-- full server (settling, leasing, renewing: how else would it be emptied) begins with a removal, of nothing.
local function begin_even_if_full()
  redis.call('ZREM', UNTIL, '')
end

-- A hint to whoever listens. Its failure (no right to publish) must not end a script half-way.
local function announce()
  redis.pcall('PUBLISH', BASE, '')
end
