-- The queries of the ledger.

-- name: all_records
-- Load all records.
SELECT name, record FROM longwatch_programs

-- name: upsert_record
-- Save the record of a program.
INSERT INTO longwatch_programs (name, record, updated_at) VALUES (:name, :record, :wall_now)
ON CONFLICT (name) DO UPDATE SET record = excluded.record, updated_at = excluded.updated_at

-- name: delete_stale_record
-- Delete the record of a program if it was not written for this many seconds.
DELETE FROM longwatch_programs WHERE name = :name AND updated_at < :wall_now - :older_than
