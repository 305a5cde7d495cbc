-- Parts of searches for executions. `search.py` puts them together; all data are parameters, `{n}` numbers them. `e` is the execution.

-- name: summaries
-- Executions by their numbers, with the number of waiting and running attempts, and of failed and set nodes.
SELECT id, graph, version, revision, cancelled, created_at, updated_at, execution,
    (SELECT count(*) FROM longwatch_computations AS c WHERE c.execution = e.execution AND lease_state IN (0, 1)),
    (SELECT count(*) FROM longwatch_computations AS c WHERE c.execution = e.execution AND lease_state = 2),
    (SELECT count(*) FROM longwatch_values AS v WHERE v.execution = e.execution AND failed = 1),
    (SELECT count(*) FROM longwatch_values AS v WHERE v.execution = e.execution AND is_set = 1), state
FROM longwatch_executions AS e WHERE e.execution {of_numbers}

-- name: page
-- The beginning of a search: the number and the sort key of each execution.
SELECT {keys} FROM {selected}

-- name: count
-- The beginning of a count.
SELECT count(*) FROM {selected}

-- name: among_numbers
-- The execution is one of these.
e.execution {of_numbers}

-- name: key_of_node
-- The search key of a node: empty for a list or an object, null if the node is not set. A scalar subquery is not turned into a join,
-- so it is one lookup for each execution.
(SELECT coalesce(v.search_key, '') FROM longwatch_values AS v WHERE v.execution = e.execution AND v.node = :node_{n} AND v.is_set = 1)

-- name: json_of_node
-- The value of a node as JSON; null if the node is not set.
(SELECT v.value FROM longwatch_values AS v WHERE v.execution = e.execution AND v.node = :node_{n} AND v.is_set = 1)

-- name: indexed_executions
-- The executions with indexed values of a node, to which conditions on the key are added.
SELECT d.execution FROM longwatch_values AS d WHERE d.node = :node_{n} AND d.indexed_key IS NOT NULL

-- name: executions_of_state
-- The executions of a graph that are not active, to which a condition on the state is added. `state > 0` selects the partial index;
-- without a bound of its last column, SQLite would read all states in it.
SELECT e.execution FROM longwatch_executions AS e WHERE e.graph = :graph AND e.state > 0 AND e.settled_at >= 0

-- name: active_executions
-- The active executions of a graph; an index has them as those without settled nodes.
SELECT e.execution FROM longwatch_executions AS e WHERE e.graph = :graph AND e.version IN (
        SELECT version FROM longwatch_graph_queues AS q WHERE q.graph = :graph)
    AND e.settled_nodes = 0 AND e.cancelled = 0 AND e.state = 0

-- name: is_running
-- Whether a worker computes a node of the execution.
EXISTS (SELECT 1 FROM longwatch_computations AS c WHERE c.execution = e.execution AND lease_state = 2)

-- name: stored_definitions
-- The definitions of the nodes of all graphs, or of one; null for a graph from before the store had them.
SELECT DISTINCT q.graph, q.version, g.nodes FROM longwatch_graph_queues AS q
LEFT JOIN longwatch_graphs AS g ON g.graph = q.graph AND g.version = q.version WHERE q.graph = :graph OR :graph = ''
