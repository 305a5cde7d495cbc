-- Queries of `sql.py` for PostgreSQL, under READ COMMITTED: a select locks the rows that the same
-- transaction changes afterwards.

-- name: put
-- Insert messages, given as arrays, unless a message with the id or dedupe key exists. They are
-- numbered in the order of the arrays. Between concurrent senders the numbers decide the order, not
-- the commits. A mailbox that a restore of the database has removed yields a null queue, which the
-- table refuses.
INSERT INTO longwatch_messages (queue, lease_state, ready_at, id, enqueued_at, expires_at,
    keep_expired, dedupe_key, reply_to, headers, body)
SELECT (SELECT queue FROM longwatch_mailboxes AS mailbox WHERE mailbox.queue = message.queue),
    CASE WHEN delay > 0 THEN 1 ELSE 0 END, CASE WHEN delay > 0 THEN :wall_now + delay ELSE 0 END,
    id, :wall_now, :wall_now + expires_in, keep_expired, dedupe_key, reply_to, headers,
    body
FROM unnest(:queue::int8[], :delay::float8[], :id::text[], :expires_in::float8[],
    :keep_expired::int8[], :dedupe_key::text[], :reply_to::text[], :headers::text[],
    :body::bytea[])
    AS message (queue, delay, id, expires_in, keep_expired, dedupe_key, reply_to, headers, body)
ON CONFLICT DO NOTHING

-- name: lock_size
-- Make other transactions that count messages of this queue wait until this one ends.
SELECT pg_advisory_xact_lock(:queue)

-- name: count_messages
-- How many messages there are, counted in each state up to :limit.
SELECT count(*) FROM (
    (SELECT 1 FROM longwatch_messages WHERE queue = :queue AND lease_state = 0 LIMIT :limit)
    UNION ALL
    (SELECT 1 FROM longwatch_messages WHERE queue = :queue AND lease_state = 1 LIMIT :limit)
    UNION ALL
    (SELECT 1 FROM longwatch_messages WHERE queue = :queue AND lease_state = 2 LIMIT :limit)
) AS present

-- name: insert_dead_letter
-- Copy a leased message to the dead letters, with its history and :failures more. Lock it until the
-- transaction ends.
INSERT INTO longwatch_dead_letters
    (queue, id, reason, error, died_at, enqueued_at, deliveries, failures, crashes, lost, releases,
    traceback, reply_to, headers, body)
SELECT queue, id, :reason, coalesce(:error, error), :wall_now, enqueued_at,
    deliveries - :undelivered, failures + :failures, crashes, lost, releases,
    coalesce(:traceback, traceback), reply_to, headers, body
FROM longwatch_messages
WHERE seq = :seq AND lease_state = 2 AND owner = :owner AND term = :term FOR UPDATE

-- name: lock_expired
-- `find_expired`, with the messages locked until they are deleted.
SELECT seq, keep_expired, id FROM longwatch_messages
WHERE expires_at <= :wall_now AND queue = :queue AND lease_state <> 2
LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: find_expired_by_key
-- The message that has a dedupe key, if it has expired and is not leased.
SELECT seq, keep_expired, id FROM longwatch_messages
WHERE queue = :queue AND dedupe_key = :dedupe_key AND expires_at <= :wall_now AND lease_state <> 2
FOR UPDATE SKIP LOCKED

-- name: insert_dead_letters
-- Copy messages that are not leased to the dead letters, in the order of the arrays.
INSERT INTO longwatch_dead_letters
    (queue, id, reason, error, died_at, enqueued_at, deliveries, failures, crashes, lost, releases,
    traceback, reply_to, headers, body)
SELECT queue, id, given_up.reason, error, :wall_now, enqueued_at, deliveries, failures, crashes,
    lost, releases, traceback, reply_to, headers, body
FROM unnest(:seq::int8[], :reason::text[]) WITH ORDINALITY AS given_up (seq, reason, place)
JOIN longwatch_messages USING (seq) ORDER BY place

-- name: find_counters
-- The counters of messages that were just released, and the budgets of their mailboxes.
SELECT seq, mailbox.name, id, failures, crashes, lost, max_failures, max_crashes, max_lost
FROM longwatch_messages JOIN longwatch_mailboxes AS mailbox USING (queue)
WHERE seq = ANY (:seqs::int8[]) ORDER BY seq

-- name: find_ids
-- The ids of messages by their seq.
SELECT seq, id FROM longwatch_messages WHERE seq = ANY (:seqs::int8[])

-- name: delete_messages
-- Delete messages by their seq.
DELETE FROM longwatch_messages WHERE seq = ANY (:seq::int8[])

-- name: peek
-- The messages that a claim would return next: free or due, not expired, oldest first.
SELECT id, body, deliveries, failures, crashes, enqueued_at, reply_to, lost, releases, headers
FROM longwatch_messages
WHERE seq = ANY (ARRAY(
    (
        SELECT seq FROM longwatch_messages
        WHERE queue = :queue AND lease_state = 0
            AND (expires_at IS NULL OR expires_at > :wall_now)
        ORDER BY seq LIMIT :limit
    )
    UNION ALL (
        SELECT seq FROM longwatch_messages
        WHERE queue = :queue AND lease_state = 1 AND ready_at <= :wall_now
            AND (expires_at IS NULL OR expires_at > :wall_now)
        ORDER BY seq LIMIT :limit
    )
)) ORDER BY seq LIMIT :limit

-- name: replay_dead_letter
-- Insert a dead letter as a new message. Of its history it keeps only the time it was sent.
INSERT INTO longwatch_messages (queue, id, enqueued_at, reply_to, headers, body)
SELECT queue, id, enqueued_at, reply_to, headers, body FROM longwatch_dead_letters
WHERE queue = :queue AND id = :id FOR UPDATE

-- name: delete_old_dead_letters
-- Delete the dead letters that are older than the retention.
DELETE FROM longwatch_dead_letters
WHERE queue = :queue AND died_at < :wall_now - :retention::float8

-- name: stale_queues
-- The queues among :queues in which a delayed message is due, a message has expired, or a dead
-- letter is older than the retention. A null retention matches no dead letter.
SELECT wanted.queue
FROM unnest(:queues::int8[], :retentions::float8[]) AS wanted (queue, retention)
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
