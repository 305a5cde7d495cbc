-- name: stored_events
-- The stored events of one source.
SELECT stream_id, data_hash, outcome FROM longwatch_runner_events WHERE source = :source;

-- name: open_runs
-- How many runs of one source have not ended.
SELECT count(*) FROM longwatch_runner_runs WHERE source = :source AND ended_at IS NULL;
