-- What the ledger asks of its store.

-- name: all_records
-- Everything that is remembered.
SELECT name, record FROM longwatch_programs

-- name: upsert_record
-- Remember a program.
INSERT INTO longwatch_programs (name, record, updated_at) VALUES (:name, :record, :wall_now)
ON CONFLICT (name) DO UPDATE SET record = excluded.record, updated_at = excluded.updated_at

-- name: delete_stale_record
-- Forget a program of which nothing new was heard for so many seconds.
DELETE FROM longwatch_programs WHERE name = :name AND updated_at < :wall_now - :older_than
