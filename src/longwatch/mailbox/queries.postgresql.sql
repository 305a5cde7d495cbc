-- What `sql.py` asks of PostgreSQL beyond claims, under READ COMMITTED: what is looked at and then changed is locked by the look.

-- name: put
-- Store messages, given as arrays; one that is there already, by id or by key, is left as it is. They are numbered in the order
-- of the arrays; among senders that work at the same time the numbers decide who was first, not the commits. A mailbox that is
-- not there, because the database was restored meanwhile, has no lane, and is refused.
INSERT INTO longwatch_messages (lane, held, ready_at, id, enqueued_at, expires_at, keep_expired, dedupe_key, reply_to, body)
SELECT (SELECT lane FROM longwatch_mailboxes AS mailbox WHERE mailbox.lane = letter.lane), CASE WHEN delay > 0 THEN 1 ELSE 0 END,
    CASE WHEN delay > 0 THEN :wall_now + delay ELSE 0 END, id, :wall_now,
    :wall_now + expires_in, keep_expired, dedupe_key, reply_to, body
FROM unnest(:lane::int8[], :delay::float8[], :id::text[], :expires_in::float8[], :keep_expired::int8[], :dedupe_key::text[],
    :reply_to::text[], :body::bytea[]) AS letter (lane, delay, id, expires_in, keep_expired, dedupe_key, reply_to, body)
ON CONFLICT DO NOTHING

-- name: lock_room
-- Let nobody else count and add messages of this lane until the end of the transaction.
SELECT pg_advisory_xact_lock(:lane)

-- name: room
-- How many messages there are, counted no further than needed.
SELECT count(*) FROM (
    (SELECT 1 FROM longwatch_messages WHERE lane = :lane AND held = 0 LIMIT :most)
    UNION ALL (SELECT 1 FROM longwatch_messages WHERE lane = :lane AND held = 1 LIMIT :most)
    UNION ALL (SELECT 1 FROM longwatch_messages WHERE lane = :lane AND held = 2 LIMIT :most)
) AS present

-- name: bury
-- Copy a leased message to the dead, with its history; until the end of the transaction nobody takes it.
INSERT INTO longwatch_dead_letters
    (lane, id, reason, error, died_at, enqueued_at, deliveries, failures, crashes, releases, reply_to, body)
SELECT lane, id, :reason, coalesce(:error, error), :wall_now, enqueued_at, deliveries - :undelivered, failures, crashes, releases,
    reply_to, body
FROM longwatch_messages WHERE seq = :seq AND held = 2 AND owner = :owner AND term = :term FOR UPDATE

-- name: overdue_for_burial
-- Those messages, and nobody takes them until they are gone.
SELECT seq, keep_expired FROM longwatch_messages WHERE expires_at <= :wall_now AND lane = :lane AND held <> 2
LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: overdue_with_key
-- The message that bears a key, if nobody holds it and its time has passed.
SELECT seq, keep_expired FROM longwatch_messages
WHERE lane = :lane AND dedupe_key = :dedupe_key AND expires_at <= :wall_now AND held <> 2
FOR UPDATE SKIP LOCKED

-- name: bury_overdue
-- Copy some of them to the dead.
INSERT INTO longwatch_dead_letters
    (lane, id, reason, error, died_at, enqueued_at, deliveries, failures, crashes, releases, reply_to, body)
SELECT lane, id, 'expired', error, :wall_now, enqueued_at, deliveries, failures, crashes, releases, reply_to, body
FROM longwatch_messages WHERE seq = ANY (:seq::int8[])

-- name: remove
-- Remove messages by their numbers.
DELETE FROM longwatch_messages WHERE seq = ANY (:seq::int8[])

-- name: peek
-- What would be handed out next: the free and the due that have not expired, oldest first.
SELECT id, body, deliveries, failures, crashes, enqueued_at, reply_to FROM longwatch_messages WHERE seq = ANY (ARRAY(
    (
        SELECT seq FROM longwatch_messages WHERE lane = :lane AND held = 0 AND (expires_at IS NULL OR expires_at > :wall_now)
        ORDER BY seq LIMIT :limit
    )
    UNION ALL (
        SELECT seq FROM longwatch_messages
        WHERE lane = :lane AND held = 1 AND ready_at <= :wall_now AND (expires_at IS NULL OR expires_at > :wall_now)
        ORDER BY seq LIMIT :limit
    )
)) ORDER BY seq LIMIT :limit

-- name: replay
-- Put a dead message back in line, its past forgotten but for its age.
INSERT INTO longwatch_messages (lane, id, enqueued_at, reply_to, body)
SELECT lane, id, enqueued_at, reply_to, body FROM longwatch_dead_letters WHERE lane = :lane AND id = :id FOR UPDATE

-- name: forget_dead
-- Remove the dead that are past their retention.
DELETE FROM longwatch_dead_letters WHERE lane = :lane AND died_at < :wall_now - :retention::float8

-- name: old_dead
-- Whether there are any of those.
SELECT 1 FROM longwatch_dead_letters WHERE lane = :lane AND died_at < :wall_now - :retention::float8 LIMIT 1
