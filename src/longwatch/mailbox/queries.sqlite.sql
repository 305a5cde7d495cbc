-- Queries of `sql.py` for SQLite.

-- name: put
-- Insert a message, unless a message with its id or dedupe key exists.
INSERT INTO longwatch_messages (queue, lease_state, ready_at, id, enqueued_at, expires_at,
    keep_expired, dedupe_key, reply_to, headers, body)
VALUES (:queue, :delay > 0, CASE WHEN :delay > 0 THEN :wall_now + :delay ELSE 0 END, :id, :wall_now,
    :wall_now + :expires_in, :keep_expired, :dedupe_key, :reply_to, :headers, :body)
ON CONFLICT DO NOTHING

-- name: count_messages
-- How many messages there are, counted in each state up to :limit.
SELECT count(*) FROM (
    SELECT 1 FROM (
        SELECT seq FROM longwatch_messages WHERE queue = :queue AND lease_state = 0 LIMIT :limit
    )
    UNION ALL SELECT 1 FROM (
        SELECT seq FROM longwatch_messages WHERE queue = :queue AND lease_state = 1 LIMIT :limit
    )
    UNION ALL SELECT 1 FROM (
        SELECT seq FROM longwatch_messages WHERE queue = :queue AND lease_state = 2 LIMIT :limit
    )
)

-- name: insert_dead_letter
-- Copy a leased message to the dead letters, with its history and :failures more.
INSERT INTO longwatch_dead_letters
    (queue, id, reason, error, died_at, enqueued_at, deliveries, failures, crashes, lost, releases,
    traceback, reply_to, headers, body)
SELECT queue, id, :reason, coalesce(:error, error), :wall_now, enqueued_at,
    deliveries - :undelivered, failures + :failures, crashes, lost, releases,
    coalesce(:traceback, traceback), reply_to, headers, body
FROM longwatch_messages WHERE seq = :seq AND lease_state = 2 AND owner = :owner AND term = :term

-- name: find_expired_by_key
-- The message that has a dedupe key, if it has expired and is not leased.
SELECT seq, keep_expired, id FROM longwatch_messages
WHERE queue = :queue AND dedupe_key = :dedupe_key AND expires_at <= :wall_now AND lease_state <> 2

-- name: insert_dead_letters
-- Copy one message that is not leased to the dead letters.
INSERT INTO longwatch_dead_letters
    (queue, id, reason, error, died_at, enqueued_at, deliveries, failures, crashes, lost, releases,
    traceback, reply_to, headers, body)
SELECT queue, id, :reason, error, :wall_now, enqueued_at, deliveries, failures, crashes,
    lost, releases, traceback, reply_to, headers, body
FROM longwatch_messages WHERE seq = :seq

-- name: find_counters
-- The counters of messages that were just released, and the budgets of their mailboxes.
SELECT seq, mailbox.name, id, failures, crashes, lost, max_failures, max_crashes, max_lost
FROM longwatch_messages AS message JOIN longwatch_mailboxes AS mailbox USING (queue)
WHERE seq IN (SELECT value FROM json_each(:seqs)) ORDER BY seq

-- name: find_ids
-- The ids of messages by their seq.
SELECT seq, id FROM longwatch_messages WHERE seq IN (SELECT value FROM json_each(:seqs))

-- name: delete_messages
-- Delete one message by its seq.
DELETE FROM longwatch_messages WHERE seq = :seq

-- name: peek
-- The messages that a claim would return next: free or due, not expired, oldest first.
SELECT id, body, deliveries, failures, crashes, enqueued_at, reply_to, lost, releases, headers
FROM longwatch_messages
WHERE seq IN (
    SELECT seq FROM (
        SELECT seq FROM longwatch_messages
        WHERE queue = :queue AND lease_state = 0
            AND (expires_at IS NULL OR expires_at > :wall_now)
        ORDER BY seq LIMIT :limit
    )
    UNION ALL SELECT seq FROM (
        SELECT seq FROM longwatch_messages
        WHERE queue = :queue AND lease_state = 1 AND ready_at <= :wall_now
            AND (expires_at IS NULL OR expires_at > :wall_now)
        ORDER BY seq LIMIT :limit
    )
) ORDER BY seq LIMIT :limit

-- name: replay_dead_letter
-- Insert a dead letter as a new message. Of its history it keeps only the time it was sent.
INSERT INTO longwatch_messages (queue, id, enqueued_at, reply_to, headers, body)
SELECT queue, id, enqueued_at, reply_to, headers, body FROM longwatch_dead_letters
WHERE queue = :queue AND id = :id

-- name: delete_old_dead_letters
-- Delete the dead letters that are older than the retention.
DELETE FROM longwatch_dead_letters
WHERE queue = :queue AND died_at < :wall_now - :retention

-- name: stale_queues
-- The queues among :queues in which a delayed message is due, a message has expired, or a dead
-- letter is older than the retention. A null retention matches no dead letter.
SELECT wanted.queue
FROM (
    SELECT value AS queue, json_extract(:retentions, '$[' || key || ']') AS retention
    FROM json_each(:queues)
) AS wanted
WHERE (
    SELECT 1 FROM longwatch_messages AS message
    WHERE message.queue = wanted.queue AND lease_state = 1 AND ready_at <= :wall_now LIMIT 1
) = 1 OR (
    SELECT 1 FROM longwatch_messages AS message
    WHERE message.queue = wanted.queue AND expires_at <= :wall_now AND lease_state <> 2 LIMIT 1
) = 1 OR retention IS NOT NULL AND (
    SELECT 1 FROM longwatch_dead_letters AS dead
    WHERE dead.queue = wanted.queue AND died_at < :wall_now - retention LIMIT 1
) = 1
