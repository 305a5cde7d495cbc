-- What the ledger asks of its store.

-- name: all
-- Everything that is remembered.
SELECT name, memory FROM longwatch_programs

-- name: keep
-- Remember a program.
INSERT INTO longwatch_programs (name, memory, changed_at) VALUES (:name, :memory, :wall_now)
ON CONFLICT (name) DO UPDATE SET memory = excluded.memory, changed_at = excluded.changed_at

-- name: forget
-- Forget a program of which nothing new was heard for so many seconds.
DELETE FROM longwatch_programs WHERE name = :name AND changed_at < :wall_now - :age
