-- Statements that remove finished executions and old attempts, for all databases. `{of_executions}` selects the executions of a parameter.

-- name: expired_executions
-- Executions of one state that were last changed longer ago than :age, the oldest first. A server locks them, and skips those
-- that another transaction has locked. `state > 0` selects the partial index.
SELECT execution, settled_at FROM longwatch_executions AS e
WHERE graph = :graph AND state = :state AND state > 0 AND settled_at < :wall_now - :age AND settled_at >= :after
    AND NOT EXISTS (SELECT 1 FROM longwatch_computations AS c WHERE c.execution = e.execution AND lease_state < 3)
ORDER BY settled_at LIMIT :limit {skip_locked}

-- name: count_expired
-- How many executions of one state were last changed longer ago than :age.
SELECT count(*) FROM longwatch_executions AS e
WHERE graph = :graph AND state = :state AND state > 0 AND settled_at < :wall_now - :age
    AND NOT EXISTS (SELECT 1 FROM longwatch_computations AS c WHERE c.execution = e.execution AND lease_state < 3)

-- name: delete_attempts
-- Delete ended attempts of executions, up to :limit.
DELETE FROM longwatch_computations WHERE seq IN (
    SELECT seq FROM longwatch_computations WHERE execution {of_executions} AND lease_state = 3 LIMIT :limit)

-- name: delete_elements
-- Delete elements of maps of executions, up to :limit.
DELETE FROM longwatch_map_elements WHERE element IN (
    SELECT element FROM longwatch_map_elements WHERE execution {of_executions} LIMIT :limit)

-- name: delete_values
-- Delete the values of executions.
DELETE FROM longwatch_values WHERE execution {of_executions}

-- name: delete_executions
-- Delete executions.
DELETE FROM longwatch_executions WHERE execution {of_executions}

-- name: ticking_executions
-- The next executions of a graph, behind one of them, in which a firing of a tick is planned.
SELECT DISTINCT execution FROM longwatch_computations AS c JOIN longwatch_graph_queues AS q ON q.queue = c.queue
WHERE graph = :graph AND lease_state = 1 AND due_at IS NOT NULL AND execution > :after ORDER BY execution LIMIT :limit

-- name: delete_old_attempts
-- Delete attempts of an execution that ended longer ago than :age, up to :limit.
DELETE FROM longwatch_computations WHERE seq IN (
    SELECT seq FROM longwatch_computations WHERE execution = :execution AND lease_state = 3 AND ended_at < :wall_now - :age LIMIT :limit)
