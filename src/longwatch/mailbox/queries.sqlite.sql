-- What `sql.py` asks of SQLite beyond claims.

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

-- name: put
-- Store a message; one that is there already, by id or by key, is left as it is.
INSERT INTO longwatch_messages (lane, held, ready_at, id, enqueued_at, expires_at, keep_expired, dedupe_key, reply_to, body)
VALUES (:lane, :delay > 0, CASE WHEN :delay > 0 THEN :wall_now + :delay ELSE 0 END, :id, :wall_now, :wall_now + :expires_in,
    :keep_expired, :dedupe_key, :reply_to, :body)
ON CONFLICT DO NOTHING

-- name: first_with_key
-- The message that bears a key.
SELECT id FROM longwatch_messages WHERE lane = :lane AND dedupe_key = :dedupe_key

-- name: room
-- How many messages there are, counted no further than needed.
SELECT count(*) FROM (
    SELECT 1 FROM (SELECT seq FROM longwatch_messages WHERE lane = :lane AND held = 0 LIMIT :most)
    UNION ALL SELECT 1 FROM (SELECT seq FROM longwatch_messages WHERE lane = :lane AND held = 1 LIMIT :most)
    UNION ALL SELECT 1 FROM (SELECT seq FROM longwatch_messages WHERE lane = :lane AND held = 2 LIMIT :most)
)

-- name: anything
-- Whether anything is free.
SELECT 1 FROM longwatch_messages WHERE lane = :lane AND held = 0 LIMIT 1

-- name: bury
-- Copy a leased message to the dead, with its history.
INSERT INTO longwatch_dead_letters
    (lane, id, reason, error, died_at, enqueued_at, deliveries, failures, crashes, releases, reply_to, body)
SELECT lane, id, :reason, coalesce(:error, error), :wall_now, enqueued_at, deliveries - :undelivered, failures, crashes, releases, reply_to,
    body
FROM longwatch_messages WHERE seq = :seq AND held = 2 AND owner = :owner AND term = :term

-- name: overdue
-- Messages of a lane that nobody holds and whose time has passed.
SELECT seq, keep_expired FROM longwatch_messages WHERE expires_at <= :wall_now AND lane = :lane AND held <> 2 LIMIT :limit

-- name: overdue_with_key
-- The message that bears a key, if nobody holds it and its time has passed.
SELECT seq, keep_expired FROM longwatch_messages WHERE lane = :lane AND dedupe_key = :dedupe_key AND expires_at <= :wall_now AND held <> 2

-- name: count_expired
-- Note how many messages were given up because their time had passed.
UPDATE longwatch_mailboxes SET expired = expired + :count WHERE name = :name

-- name: bury_overdue
-- Copy one of them to the dead.
INSERT INTO longwatch_dead_letters
    (lane, id, reason, error, died_at, enqueued_at, deliveries, failures, crashes, releases, reply_to, body)
SELECT lane, id, 'expired', error, :wall_now, enqueued_at, deliveries, failures, crashes, releases, reply_to, body
FROM longwatch_messages WHERE seq = :seq

-- name: remove
-- Remove one message by its number.
DELETE FROM longwatch_messages WHERE seq = :seq

-- name: counts
-- How a lane stands.
SELECT (SELECT count(*) FROM longwatch_messages WHERE lane = :lane AND held = 0),
    (SELECT count(*) FROM longwatch_messages WHERE lane = :lane AND held = 1),
    (SELECT count(*) FROM longwatch_messages WHERE lane = :lane AND held = 2),
    (SELECT count(*) FROM longwatch_dead_letters WHERE lane = :lane),
    (SELECT :wall_now - enqueued_at FROM longwatch_messages WHERE lane = :lane AND held = 0 ORDER BY seq LIMIT 1), paused, expired
FROM longwatch_mailboxes WHERE lane = :lane

-- name: peek
-- What would be handed out next: the free and the due that have not expired, oldest first.
SELECT id, body, deliveries, failures, crashes, enqueued_at, reply_to FROM longwatch_messages WHERE seq IN (
    SELECT seq FROM (
        SELECT seq FROM longwatch_messages WHERE lane = :lane AND held = 0 AND (expires_at IS NULL OR expires_at > :wall_now)
        ORDER BY seq LIMIT :limit
    )
    UNION ALL SELECT seq FROM (
        SELECT seq FROM longwatch_messages
        WHERE lane = :lane AND held = 1 AND ready_at <= :wall_now AND (expires_at IS NULL OR expires_at > :wall_now)
        ORDER BY seq LIMIT :limit
    )
) ORDER BY seq LIMIT :limit

-- name: cancel
-- Remove a message that nobody holds.
DELETE FROM longwatch_messages WHERE lane = :lane AND id = :id AND held <> 2

-- name: purge
-- Remove every message that nobody holds.
DELETE FROM longwatch_messages WHERE lane = :lane AND held <> 2

-- name: dead
-- A page of the dead, oldest first.
SELECT id, reason, error, died_at, enqueued_at, deliveries, failures, crashes, releases, reply_to, body, seq FROM longwatch_dead_letters
WHERE lane = :lane AND seq > :after ORDER BY seq LIMIT :limit

-- name: find_dead
-- One of the dead.
SELECT id, reason, error, died_at, enqueued_at, deliveries, failures, crashes, releases, reply_to, body, seq FROM longwatch_dead_letters
WHERE lane = :lane AND id = :id

-- name: replay
-- Put a dead message back in line, its past forgotten but for its age.
INSERT INTO longwatch_messages (lane, id, enqueued_at, reply_to, body)
SELECT lane, id, enqueued_at, reply_to, body FROM longwatch_dead_letters WHERE lane = :lane AND id = :id

-- name: drop
-- Remove a dead message for good.
DELETE FROM longwatch_dead_letters WHERE lane = :lane AND id = :id

-- name: forget_dead
-- Remove the dead that are past their retention.
DELETE FROM longwatch_dead_letters WHERE lane = :lane AND died_at < :wall_now - :retention

-- name: old_dead
-- Whether there are any of those.
SELECT 1 FROM longwatch_dead_letters WHERE lane = :lane AND died_at < :wall_now - :retention LIMIT 1

-- name: names
-- Every mailbox.
SELECT name FROM longwatch_mailboxes ORDER BY name
