-- Parts of searches for executions that differ on SQLite.

-- name: has_metadata
-- Whether the metadata have a key with this value. `type` distinguishes true from 1 and null from no value.
-- A zero byte, at which SQLite cuts text, is read as a character for private use. No JSON has
-- char(1): it stands for an escaped backslash meanwhile.
EXISTS (SELECT 1 FROM json_each(
    CASE WHEN instr(e.metadata, '\u0000') = 0 THEN e.metadata
        ELSE replace(replace(replace(e.metadata, '\\', char(1)), '\u0000', '\uf8ff'), char(1), '\\') END) AS m
WHERE m.key = :key_{n} AND instr(:types_{n}, m.type) > 0
    AND (:scalar_{n} IS NULL OR m.atom = :scalar_{n}))
