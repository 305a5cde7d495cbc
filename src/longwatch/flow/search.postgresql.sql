-- Parts of searches for executions that differ on PostgreSQL.

-- name: has_metadata
-- Whether the metadata have a key with this value. Numbers are compared as such, all others as JSON.
-- A zero byte, which PostgreSQL refuses, is read as a character for private use. No JSON has
-- chr(1): it stands for an escaped backslash meanwhile.
EXISTS (SELECT 1 FROM json_each((
    CASE WHEN strpos(e.metadata, '\u0000') = 0 THEN e.metadata
        ELSE replace(replace(replace(e.metadata, '\\', chr(1)), '\u0000', '\uf8ff'), chr(1), '\\') END)::json) AS m
WHERE m.key = :key_{n} AND
    CASE WHEN json_typeof(m.value) = 'number' THEN m.value::text::numeric = :number_{n}::numeric ELSE m.value::text = :json_{n} END)
