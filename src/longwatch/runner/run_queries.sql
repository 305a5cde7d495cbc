-- Queries of `run_store.py`, the same on every database. A run is open until `ended_at` is set.

-- name: find_event
-- The stream event of a message, how long it has been queued, its number of runs, and how many of
-- them since it was queued.
SELECT source, data, severity, received_at, :wall_now - coalesce(enqueued_at, received_at),
    (SELECT count(*) FROM longwatch_runner_runs AS run WHERE run.event = event.id),
    (SELECT count(*) FROM longwatch_runner_runs AS run
        WHERE run.event = event.id AND run.started_at >= enqueued_at)
FROM longwatch_runner_events AS event LEFT JOIN longwatch_messages USING (id)
WHERE id = :id

-- name: begin
-- Insert a run, if the claim on its message still holds.
INSERT INTO longwatch_runner_runs (id, event, source, attempt, owner, boot, workspace, started_at)
SELECT CAST(:id AS TEXT), message.id, CAST(:source AS TEXT), CAST(:attempt AS INTEGER),
    message.owner, CAST(:boot AS TEXT), CAST(:workspace AS TEXT), :wall_now
FROM longwatch_messages AS message
WHERE seq = :seq AND lease_state = 2 AND owner = :owner AND term = :term

-- name: record_pid
-- Store the process of a run.
UPDATE longwatch_runner_runs SET pid = :pid, pid_start = :pid_start
WHERE id = :id AND ended_at IS NULL

-- name: end
-- End an open run.
UPDATE longwatch_runner_runs SET ended_at = started_at + :duration, status = :status,
    cause = :cause, error = :error, output = :output, artifacts = :artifacts,
    cpu_seconds = :cpu_seconds, max_rss = :max_rss
WHERE id = :id AND ended_at IS NULL

-- name: end_lost
-- End an open run whose runner is gone, unless it is to be cancelled.
UPDATE longwatch_runner_runs SET ended_at = :wall_now, status = 'cancelled', cause = 'lease_lost',
    error = :error
WHERE id = :id AND ended_at IS NULL AND cancel_requested = 0

-- name: end_lost_of_event
-- End the open runs of an event that are not to be cancelled: another runner has claimed the event.
UPDATE longwatch_runner_runs SET ended_at = :wall_now, status = 'cancelled', cause = 'lease_lost',
    error = :error
WHERE event = :event AND ended_at IS NULL AND cancel_requested = 0

-- name: end_cancelled_of_event
-- End the open runs of an event that are to be cancelled.
UPDATE longwatch_runner_runs SET ended_at = :wall_now, status = 'cancelled', cause = 'cancelled',
    error = :error
WHERE event = :event AND ended_at IS NULL AND cancel_requested <> 0

-- name: find_cancelled_of_event
-- The open runs of an event that are to be cancelled.
SELECT id FROM longwatch_runner_runs
WHERE event = :event AND ended_at IS NULL AND cancel_requested <> 0

-- name: find_cancelled_run
-- The event and the runner of an open run that is to be cancelled.
SELECT event, owner FROM longwatch_runner_runs
WHERE id = :id AND ended_at IS NULL AND cancel_requested <> 0

-- name: is_cancel_requested
-- Whether a run is, or was, to be cancelled.
SELECT 1 FROM longwatch_runner_runs WHERE id = :id AND cancel_requested <> 0

-- name: lock_message
-- The message of an event that waits, or is leased to this owner; locked.
UPDATE longwatch_messages SET enqueued_at = enqueued_at
WHERE id = :event AND (lease_state <> 2 OR owner = CAST(:owner AS BIGINT))
RETURNING seq

-- name: has_message
-- Whether an event has a message.
SELECT 1 FROM longwatch_messages WHERE id = :event

-- name: end_all_lost
-- End the open runs whose message is not leased to their runner any more, unless they are to be
-- cancelled.
UPDATE longwatch_runner_runs SET ended_at = :wall_now, status = 'cancelled', cause = 'lease_lost',
    error = :error
WHERE ended_at IS NULL AND cancel_requested = 0 AND NOT EXISTS (
    SELECT 1 FROM longwatch_messages AS message
    WHERE message.id = longwatch_runner_runs.event AND message.lease_state = 2
        AND message.owner = longwatch_runner_runs.owner
)

-- name: find_all_cancelled
-- The events of the open runs that are to be cancelled, and whose message is not leased to their
-- runner any more.
SELECT DISTINCT event FROM longwatch_runner_runs
WHERE ended_at IS NULL AND cancel_requested <> 0 AND NOT EXISTS (
    SELECT 1 FROM longwatch_messages AS message
    WHERE message.id = longwatch_runner_runs.event AND message.lease_state = 2
        AND message.owner = longwatch_runner_runs.owner
)

-- name: has_lost
-- Whether there is an open run whose message is no longer leased to its runner.
SELECT 1 FROM longwatch_runner_runs
WHERE ended_at IS NULL AND NOT EXISTS (
    SELECT 1 FROM longwatch_messages AS message
    WHERE message.id = longwatch_runner_runs.event AND message.lease_state = 2
        AND message.owner = longwatch_runner_runs.owner
) LIMIT 1

-- name: set_outcome
-- Give an event its outcome, if it has none.
UPDATE longwatch_runner_events SET outcome = :outcome, reason = :reason, ended_at = :wall_now
WHERE id = :event AND outcome IS NULL

-- name: request_cancel
-- Ask the runner of an open run to end it.
UPDATE longwatch_runner_runs SET cancel_requested = 1 WHERE id = :id AND ended_at IS NULL

-- name: find_cancelled
-- The open runs that are to be cancelled.
SELECT id FROM longwatch_runner_runs WHERE ended_at IS NULL AND cancel_requested <> 0

-- name: find_open
-- The open runs that began on a boot of a machine, with the incarnation of their runner, null if it
-- is deleted.
SELECT id, source, pid, pid_start, incarnation
FROM longwatch_runner_runs AS run LEFT JOIN longwatch_owners USING (owner)
WHERE ended_at IS NULL AND run.boot = :boot ORDER BY run.seq

-- name: find_runs
-- Runs that match, the newest first. A null parameter matches all.
SELECT {columns} FROM longwatch_runner_runs
WHERE (CAST(:source AS TEXT) IS NULL OR source = :source)
    AND (CAST(:event AS TEXT) IS NULL OR event = :event)
    AND (CAST(:status AS TEXT) IS NULL OR coalesce(status, 'running') = :status)
    AND (CAST(:before AS TEXT) IS NULL OR seq < (SELECT seq FROM longwatch_runner_runs WHERE id = :before))
ORDER BY seq DESC LIMIT :limit

-- name: find_run
-- A run by its id.
SELECT {columns} FROM longwatch_runner_runs WHERE id = :id

-- name: find_old
-- Runs that ended and began longer ago than the retention, the oldest first.
SELECT seq, id, workspace FROM longwatch_runner_runs
WHERE started_at < :wall_now - CAST(:retention AS DOUBLE PRECISION) AND ended_at IS NOT NULL
    AND seq > :after
ORDER BY seq LIMIT :limit

-- name: delete_run
-- Delete a run.
DELETE FROM longwatch_runner_runs WHERE id = :id
