-- What `sql.py` asks of every engine in the same words, beyond claims.

-- name: lane
-- The number of a mailbox, made when it is new.
INSERT INTO longwatch_mailboxes (name) VALUES (:name) ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING lane

-- name: find_lane
-- The number of a mailbox, if there is one.
SELECT lane FROM longwatch_mailboxes WHERE name = :name

-- name: name_of
-- The name of a mailbox by its number.
SELECT name FROM longwatch_mailboxes WHERE lane = :lane

-- name: pause
-- Stop or resume handing out.
UPDATE longwatch_mailboxes SET paused = :paused WHERE lane = :lane

-- name: first_with_key
-- The message that bears a key.
SELECT id FROM longwatch_messages WHERE lane = :lane AND dedupe_key = :dedupe_key

-- name: anything
-- Whether anything is free.
SELECT 1 FROM longwatch_messages WHERE lane = :lane AND held = 0 LIMIT 1

-- name: overdue
-- Messages of a lane that nobody holds and whose time has passed.
SELECT seq, keep_expired FROM longwatch_messages WHERE expires_at <= :wall_now AND lane = :lane AND held <> 2 LIMIT :limit

-- name: count_expired
-- Note how many messages were given up because their time had passed.
UPDATE longwatch_mailboxes SET expired = expired + :count WHERE name = :name

-- name: counts
-- How a lane stands.
SELECT (SELECT count(*) FROM longwatch_messages WHERE lane = :lane AND held = 0),
    (SELECT count(*) FROM longwatch_messages WHERE lane = :lane AND held = 1),
    (SELECT count(*) FROM longwatch_messages WHERE lane = :lane AND held = 2),
    (SELECT count(*) FROM longwatch_dead_letters WHERE lane = :lane),
    (SELECT :wall_now - enqueued_at FROM longwatch_messages WHERE lane = :lane AND held = 0 ORDER BY seq LIMIT 1), paused, expired
FROM longwatch_mailboxes WHERE lane = :lane

-- name: cancel
-- Remove a message that nobody holds.
DELETE FROM longwatch_messages WHERE lane = :lane AND id = :id AND held <> 2

-- name: purge
-- Remove every message that nobody holds.
DELETE FROM longwatch_messages WHERE lane = :lane AND held <> 2

-- name: dead
-- A page of the dead, oldest first.
SELECT id, reason, error, died_at, enqueued_at, deliveries, failures, crashes, releases, reply_to, body, seq
FROM longwatch_dead_letters WHERE lane = :lane AND seq > :after ORDER BY seq LIMIT :limit

-- name: find_dead
-- One of the dead.
SELECT id, reason, error, died_at, enqueued_at, deliveries, failures, crashes, releases, reply_to, body, seq
FROM longwatch_dead_letters WHERE lane = :lane AND id = :id

-- name: drop
-- Remove a dead message for good.
DELETE FROM longwatch_dead_letters WHERE lane = :lane AND id = :id

-- name: names
-- Every mailbox.
SELECT name FROM longwatch_mailboxes ORDER BY name
