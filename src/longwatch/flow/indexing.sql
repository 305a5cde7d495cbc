-- Statements that complete the index of a node, for all databases. `{of_numbers}` selects the executions of a parameter.

-- name: executions_after
-- A page of the executions of a graph, by number.
SELECT execution FROM longwatch_executions WHERE graph = :graph AND execution > :after ORDER BY execution LIMIT :limit

-- name: lock_executions
-- Lock executions in the order of their numbers, as every writer does.
SELECT execution FROM longwatch_executions WHERE execution {of_numbers} ORDER BY execution {for_update}

-- name: values_without_key
-- The values of a node that are not in the index.
SELECT execution, value FROM longwatch_values WHERE execution {of_numbers} AND node = :node AND is_set = 1 AND indexed_key IS NULL

-- name: index_value
-- Add a value to the index.
UPDATE longwatch_values SET search_key = :key, indexed_key = :key WHERE execution = :execution AND node = :node

-- name: indexed_nodes
-- The sweeps that complete indexes of a graph, and where each continues.
SELECT sweep, position FROM longwatch_sweeps WHERE substr(sweep, 1, length(:prefix)) = :prefix
