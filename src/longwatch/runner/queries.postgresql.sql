-- Queries of the runner about event sources and stream events for PostgreSQL, under READ COMMITTED:
-- a select locks the rows that the same transaction changes afterwards.

-- name: fence
-- Store the last event id of a source, and renew its lease. Changes nothing unless the lease
-- matches. The row stays locked, so no other runner gets the lease before the transaction ends.
-- Returns the time of the store.
UPDATE longwatch_runner_sources SET last_event_id = :cursor,
    last_event_at = CASE WHEN :items > 0 THEN :wall_now ELSE last_event_at END,
    lease_until = greatest(lease_until, :lease_now + :lease_seconds::float8)
WHERE seq = :seq AND lease_state = 2 AND owner = :owner AND term = :term
RETURNING :wall_now

-- name: find_stored
-- Which of these ids of a stream are stored, with the hash of their data.
SELECT stream_id, data_hash FROM longwatch_runner_events
WHERE source = :source AND stream_id = ANY (:stream_ids::text[])

-- name: load_window
-- When each fault of a source was last queued, oldest first.
SELECT fault_key, max(received_at) FROM longwatch_runner_events
WHERE source = :source AND received_at > :wall_now - :window::float8 AND fault_key IS NOT NULL
    AND (outcome IS NULL OR outcome NOT IN ('filtered', 'dropped'))
GROUP BY fault_key ORDER BY 2

-- name: insert_events
-- Insert stream events, numbered in the order of the arrays.
INSERT INTO longwatch_runner_events (id, source, stream_id, data_hash, received_at, severity,
    fault_key, data, outcome, reason, ended_at)
SELECT id, source, stream_id, data_hash, :wall_now, severity, fault_key, data, outcome, reason,
    CASE WHEN outcome IS NULL THEN NULL ELSE :wall_now END
FROM unnest(:id::text[], :source::text[], :stream_id::text[], :data_hash::bytea[],
    :severity::text[], :fault_key::text[], :data::text[], :outcome::text[], :reason::text[])
    WITH ORDINALITY AS event
    (id, source, stream_id, data_hash, severity, fault_key, data, outcome, reason, place)
ORDER BY place

-- name: insert_dead_letters
-- Insert stream events that are not queued as dead letters, in the order of the arrays.
INSERT INTO longwatch_dead_letters (queue, id, reason, error, died_at, enqueued_at, deliveries,
    failures, crashes, lost, releases, body)
SELECT queue, id, reason, error, :wall_now, :wall_now, 0, 0, 0, 0, 0, body
FROM unnest(:queue::int8[], :id::text[], :reason::text[], :error::text[], :body::bytea[])
    WITH ORDINALITY AS letter (queue, id, reason, error, body, place)
ORDER BY place

-- name: find_oldest
-- The oldest messages of a queue that are not leased, with the faults of their events; locked. A
-- message that another transaction is just claiming is left out.
SELECT message.seq, message.id, event.fault_key
FROM longwatch_messages AS message
LEFT JOIN longwatch_runner_events AS event ON event.id = message.id
WHERE message.queue = :queue AND message.lease_state <> 2 AND message.seq = ANY (ARRAY(
    (
        SELECT seq FROM longwatch_messages WHERE queue = :queue AND lease_state = 0
        ORDER BY seq LIMIT :limit
    )
    UNION ALL (
        SELECT seq FROM longwatch_messages WHERE queue = :queue AND lease_state = 1
        ORDER BY seq LIMIT :limit
    )
))
ORDER BY message.seq LIMIT :limit FOR UPDATE OF message SKIP LOCKED

-- name: dead_letter_messages
-- Copy messages that are not leased to the dead letters, with the data of their events as bodies.
INSERT INTO longwatch_dead_letters (queue, id, reason, error, died_at, enqueued_at, deliveries,
    failures, crashes, lost, releases, traceback, reply_to, body)
SELECT message.queue, message.id, given_up.reason, given_up.error, :wall_now, message.enqueued_at,
    deliveries, failures, crashes, lost, releases, traceback, reply_to,
    coalesce(convert_to(event.data, 'UTF8'), message.body)
FROM unnest(:seq::int8[], :reason::text[], :error::text[])
    WITH ORDINALITY AS given_up (seq, reason, error, place)
JOIN longwatch_messages AS message ON message.seq = given_up.seq
LEFT JOIN longwatch_runner_events AS event ON event.id = message.id
ORDER BY place

-- name: delete_messages
-- Delete messages by their seq.
DELETE FROM longwatch_messages WHERE seq = ANY (:seq::int8[])

-- name: end_events
-- Give open events their outcomes.
UPDATE longwatch_runner_events AS event
SET outcome = ended.outcome, reason = ended.reason, ended_at = :wall_now
FROM unnest(:id::text[], :outcome::text[], :reason::text[]) AS ended (id, outcome, reason)
WHERE event.id = ended.id AND event.outcome IS NULL

-- name: lock_overdue
-- Messages of a queue that waited too long and were never started, with the age of each; locked.
SELECT seq, id, :wall_now - enqueued_at FROM longwatch_messages
WHERE queue = :queue AND lease_state = 0 AND deliveries = 0
    AND enqueued_at <= :wall_now - :max_age::float8
ORDER BY seq LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: lock_event
-- One event by its id; locked.
SELECT source, outcome, reason FROM longwatch_runner_events WHERE id = :id FOR UPDATE

-- name: list_events
-- The newest events, newest first. A null filter matches all.
SELECT seq, id, source, stream_id, received_at, severity, fault_key, data, outcome, reason, ended_at
FROM longwatch_runner_events
WHERE seq > :after AND (:source::text IS NULL OR source = :source::text)
    AND (:outcome::text IS NULL OR coalesce(outcome, 'open') = :outcome::text)
ORDER BY seq DESC LIMIT :limit

-- name: delete_old_events
-- Delete some events that have an outcome and are older than the retention.
DELETE FROM longwatch_runner_events WHERE seq = ANY (ARRAY(
    SELECT seq FROM longwatch_runner_events
    WHERE received_at < :wall_now - :retention::float8 AND outcome IS NOT NULL
    ORDER BY received_at LIMIT :limit FOR UPDATE SKIP LOCKED
))
