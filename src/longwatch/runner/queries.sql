-- Queries of the runner about event sources and stream events that are the same on every database.

-- name: insert_source
-- Insert a source that does not exist. `number_sources` sets its queue.
INSERT INTO longwatch_runner_sources (queue, name) VALUES (0, :name) ON CONFLICT (name) DO NOTHING

-- name: number_sources
-- Set the queue of new sources.
UPDATE longwatch_runner_sources SET queue = seq WHERE queue = 0

-- name: find_sources
-- Every source, with its lease.
SELECT name, seq, lease_state, owner, term FROM longwatch_runner_sources ORDER BY seq

-- name: cursor
-- The last event id of a source.
SELECT last_event_id FROM longwatch_runner_sources WHERE name = :name

-- name: report_connection
-- Store the state of the connection to a source.
UPDATE longwatch_runner_sources SET state = :state, state_since = :wall_now,
    reconnects = :reconnects, connection_error = :error
WHERE name = :name

-- name: list_sources
-- Every source: its connection, its last event, and how many of its events wait and run. A lease
-- that has lapsed is held by no runner, also before a sweep reclaims it.
SELECT longwatch_runner_sources.name, state, state_since, last_event_id, last_event_at, reconnects,
    connection_error, CASE WHEN lease_state = 2 AND lease_until >= :lease_now THEN 1 ELSE 0 END,
    (
        SELECT count(*) FROM longwatch_messages
        WHERE longwatch_messages.queue = longwatch_mailboxes.queue AND lease_state = 0
    ) + (
        SELECT count(*) FROM longwatch_messages
        WHERE longwatch_messages.queue = longwatch_mailboxes.queue AND lease_state = 1
    ),
    (
        SELECT count(*) FROM longwatch_messages
        WHERE longwatch_messages.queue = longwatch_mailboxes.queue AND lease_state = 2
    )
FROM longwatch_runner_sources LEFT JOIN longwatch_mailboxes
    ON longwatch_mailboxes.name = 'runner/' || longwatch_runner_sources.name
ORDER BY longwatch_runner_sources.name

-- name: store_time
-- The wall clock of the store.
SELECT :wall_now

-- name: count_waiting
-- How many messages of a queue wait, counted up to :limit in each state.
SELECT
    (SELECT count(*) FROM (
        SELECT 1 FROM longwatch_messages WHERE queue = :queue AND lease_state = 0 LIMIT :limit
    ) AS free)
    + (SELECT count(*) FROM (
        SELECT 1 FROM longwatch_messages WHERE queue = :queue AND lease_state = 1 LIMIT :limit
    ) AS waiting)

-- name: find_event
-- One event by its id.
SELECT seq, id, source, stream_id, received_at, severity, fault_key, data, outcome, reason, ended_at
FROM longwatch_runner_events WHERE id = :id

-- name: count_outcomes
-- How many events have each outcome.
SELECT source, coalesce(outcome, 'open'), reason, count(*) FROM longwatch_runner_events
GROUP BY source, coalesce(outcome, 'open'), reason ORDER BY 1, 2, 3

-- name: find_message
-- Whether the message of an event is in its mailbox.
SELECT lease_state FROM longwatch_messages WHERE id = :id

-- name: delete_dead_letter
-- Delete the dead letter of an event.
DELETE FROM longwatch_dead_letters WHERE id = :id

-- name: reopen
-- Clear the outcome of an event.
UPDATE longwatch_runner_events SET outcome = NULL, reason = '', ended_at = NULL WHERE id = :id

-- name: restart_age
-- Count the age of a message from now.
UPDATE longwatch_messages SET enqueued_at = :wall_now WHERE id = :id AND lease_state <> 2

-- name: find_overdue
-- Whether any event of a queue has waited too long and never started. Delayed messages did start.
SELECT 1 FROM longwatch_messages
WHERE queue = :queue AND lease_state = 0 AND deliveries = 0 AND enqueued_at <= :wall_now - :max_age
LIMIT 1

-- name: find_lost_messages
-- Open events whose message is gone, with the reason of their dead letter if there is one.
SELECT event.id, letter.reason
FROM longwatch_runner_events AS event
LEFT JOIN longwatch_dead_letters AS letter ON letter.id = event.id
WHERE event.source = :source AND event.outcome IS NULL
    AND NOT EXISTS (SELECT 1 FROM longwatch_messages AS message WHERE message.id = event.id)
ORDER BY event.seq LIMIT :limit

-- name: find_returned_messages
-- Events that have an outcome, and whose message waits in the mailbox again.
SELECT event.id
FROM longwatch_messages AS message JOIN longwatch_runner_events AS event ON event.id = message.id
WHERE message.queue = :queue AND message.lease_state = 0 AND event.outcome IS NOT NULL LIMIT :limit

-- name: has_old_events
-- Whether any event with an outcome is older than the retention.
SELECT 1 FROM longwatch_runner_events
WHERE received_at < :wall_now - :retention AND outcome IS NOT NULL LIMIT 1
