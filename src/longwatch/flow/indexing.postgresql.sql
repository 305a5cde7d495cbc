-- Statements that complete the index of a node and differ on PostgreSQL.

-- name: index_value
-- Add values to the index, given as arrays.
UPDATE longwatch_values AS v SET search_key = given.key, indexed_key = given.key
FROM unnest(:execution::int8[], :node::text[], :key::text[]) AS given (execution, node, key)
WHERE v.execution = given.execution AND v.node = given.node
