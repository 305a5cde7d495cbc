-- Parts of searches for executions that differ on PostgreSQL.

-- name: has_metadata
-- Whether the metadata have a key with this value. Numbers are compared as such, all others as JSON.
EXISTS (SELECT 1 FROM json_each(e.metadata::json) AS m WHERE m.key = :key_{n} AND
    CASE WHEN json_typeof(m.value) = 'number' THEN m.value::text::numeric = :number_{n}::numeric ELSE m.value::text = :json_{n} END)
