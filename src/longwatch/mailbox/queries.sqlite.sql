-- What `sql.py` asks of SQLite beyond claims.

-- name: put
-- Store a message; one that is there already, by id or by key, is left as it is.
INSERT INTO longwatch_messages (lane, held, ready_at, id, enqueued_at, expires_at, keep_expired, dedupe_key, reply_to, body)
VALUES (:lane, :delay > 0, CASE WHEN :delay > 0 THEN :wall_now + :delay ELSE 0 END, :id, :wall_now, :wall_now + :expires_in,
    :keep_expired, :dedupe_key, :reply_to, :body)
ON CONFLICT DO NOTHING

-- name: room
-- How many messages there are, counted no further than needed.
SELECT count(*) FROM (
    SELECT 1 FROM (SELECT seq FROM longwatch_messages WHERE lane = :lane AND held = 0 LIMIT :most)
    UNION ALL SELECT 1 FROM (SELECT seq FROM longwatch_messages WHERE lane = :lane AND held = 1 LIMIT :most)
    UNION ALL SELECT 1 FROM (SELECT seq FROM longwatch_messages WHERE lane = :lane AND held = 2 LIMIT :most)
)

-- name: bury
-- Copy a leased message to the dead, with its history.
INSERT INTO longwatch_dead_letters
    (lane, id, reason, error, died_at, enqueued_at, deliveries, failures, crashes, releases, reply_to, body)
SELECT lane, id, :reason, coalesce(:error, error), :wall_now, enqueued_at, deliveries - :undelivered, failures, crashes, releases,
    reply_to, body
FROM longwatch_messages WHERE seq = :seq AND held = 2 AND owner = :owner AND term = :term

-- name: overdue_with_key
-- The message that bears a key, if nobody holds it and its time has passed.
SELECT seq, keep_expired FROM longwatch_messages
WHERE lane = :lane AND dedupe_key = :dedupe_key AND expires_at <= :wall_now AND held <> 2

-- name: bury_overdue
-- Copy one of them to the dead.
INSERT INTO longwatch_dead_letters
    (lane, id, reason, error, died_at, enqueued_at, deliveries, failures, crashes, releases, reply_to, body)
SELECT lane, id, 'expired', error, :wall_now, enqueued_at, deliveries, failures, crashes, releases, reply_to, body
FROM longwatch_messages WHERE seq = :seq

-- name: remove
-- Remove one message by its number.
DELETE FROM longwatch_messages WHERE seq = :seq

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

-- name: replay
-- Put a dead message back in line, its past forgotten but for its age.
INSERT INTO longwatch_messages (lane, id, enqueued_at, reply_to, body)
SELECT lane, id, enqueued_at, reply_to, body FROM longwatch_dead_letters WHERE lane = :lane AND id = :id

-- name: forget_dead
-- Remove the dead that are past their retention.
DELETE FROM longwatch_dead_letters WHERE lane = :lane AND died_at < :wall_now - :retention

-- name: old_dead
-- Whether there are any of those.
SELECT 1 FROM longwatch_dead_letters WHERE lane = :lane AND died_at < :wall_now - :retention LIMIT 1
