-- Queries of the runner about event sources and stream events for SQLite. It has one writer at a
-- time, so a select and the update after it see the same rows.

-- name: fence
-- Store the last event id of a source, and renew its lease. Changes nothing unless the lease
-- matches. Returns the time of the store.
UPDATE longwatch_runner_sources SET last_event_id = :cursor,
    last_event_at = CASE WHEN :items > 0 THEN :wall_now ELSE last_event_at END,
    lease_until = max(lease_until, :lease_now + :lease_seconds)
WHERE seq = :seq AND lease_state = 2 AND owner = :owner AND term = :term
RETURNING :wall_now

-- name: find_stored
-- Which of these ids of a stream are stored, with the hash of their data.
SELECT stream_id, data_hash FROM longwatch_runner_events
WHERE source = :source AND stream_id IN (SELECT value FROM json_each(:stream_ids))

-- name: load_window
-- When each fault of a source was last queued, oldest first.
SELECT fault_key, max(received_at) FROM longwatch_runner_events
WHERE source = :source AND received_at > :wall_now - :window AND fault_key IS NOT NULL
    AND (outcome IS NULL OR outcome NOT IN ('filtered', 'dropped'))
GROUP BY fault_key ORDER BY 2

-- name: insert_events
-- Insert a stream event.
INSERT INTO longwatch_runner_events (id, source, stream_id, data_hash, received_at, severity,
    fault_key, data, outcome, reason, ended_at)
VALUES (:id, :source, :stream_id, :data_hash, :wall_now, :severity, :fault_key, :data, :outcome,
    :reason, CASE WHEN :outcome IS NULL THEN NULL ELSE :wall_now END)

-- name: insert_dead_letters
-- Insert a stream event that is not queued as a dead letter.
INSERT INTO longwatch_dead_letters (queue, id, reason, error, died_at, enqueued_at, deliveries,
    failures, crashes, lost, releases, body)
VALUES (:queue, :id, :reason, :error, :wall_now, :wall_now, 0, 0, 0, 0, 0, :body)

-- name: find_oldest
-- The oldest messages of a queue that are not leased, with the faults of their events.
SELECT message.seq, message.id, event.fault_key
FROM longwatch_messages AS message
LEFT JOIN longwatch_runner_events AS event ON event.id = message.id
WHERE message.seq IN (
    SELECT seq FROM (
        SELECT seq FROM longwatch_messages WHERE queue = :queue AND lease_state = 0
        ORDER BY seq LIMIT :limit
    )
    UNION ALL SELECT seq FROM (
        SELECT seq FROM longwatch_messages WHERE queue = :queue AND lease_state = 1
        ORDER BY seq LIMIT :limit
    )
) ORDER BY message.seq LIMIT :limit

-- name: dead_letter_messages
-- Copy a message that is not leased to the dead letters, with the data of its event as its body.
INSERT INTO longwatch_dead_letters (queue, id, reason, error, died_at, enqueued_at, deliveries,
    failures, crashes, lost, releases, traceback, reply_to, body)
SELECT message.queue, message.id, :reason, :error, :wall_now, message.enqueued_at, deliveries,
    failures, crashes, lost, releases, traceback, reply_to,
    coalesce(CAST(event.data AS BLOB), message.body)
FROM longwatch_messages AS message
LEFT JOIN longwatch_runner_events AS event ON event.id = message.id
WHERE message.seq = :seq

-- name: delete_messages
-- Delete a message by its seq.
DELETE FROM longwatch_messages WHERE seq = :seq

-- name: end_events
-- Give an open event its outcome.
UPDATE longwatch_runner_events SET outcome = :outcome, reason = :reason, ended_at = :wall_now
WHERE id = :id AND outcome IS NULL

-- name: lock_overdue
-- Messages of a queue that waited too long and were never started, with the age of each.
SELECT seq, id, :wall_now - enqueued_at FROM longwatch_messages
WHERE queue = :queue AND lease_state = 0 AND deliveries = 0 AND enqueued_at <= :wall_now - :max_age
ORDER BY seq LIMIT :limit

-- name: lock_event
-- One event by its id.
SELECT source, outcome, reason FROM longwatch_runner_events WHERE id = :id

-- name: list_events
-- The newest events, newest first. A null filter matches all.
SELECT seq, id, source, stream_id, received_at, severity, fault_key, data, outcome, reason, ended_at
FROM longwatch_runner_events
WHERE seq > :after AND (:source IS NULL OR source = :source)
    AND (:outcome IS NULL OR coalesce(outcome, 'open') = :outcome)
ORDER BY seq DESC LIMIT :limit

-- name: delete_old_events
-- Delete some events that have an outcome and are older than the retention.
DELETE FROM longwatch_runner_events WHERE seq IN (
    SELECT seq FROM longwatch_runner_events
    WHERE received_at < :wall_now - :retention AND outcome IS NOT NULL
    ORDER BY received_at LIMIT :limit
)
