-- Parts of searches for executions that differ on SQLite.

-- name: has_metadata
-- Whether the metadata have a key with this value. `type` tells true from 1 and null from no value.
EXISTS (SELECT 1 FROM json_each(e.metadata) AS m WHERE m.key = :key_{n} AND instr(:types_{n}, m.type) > 0
    AND (:scalar_{n} IS NULL OR m.atom = :scalar_{n}))
