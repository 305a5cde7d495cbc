-- Statements of `flow` that are the same for all databases.

-- name: upsert_queue
-- Insert a queue of a graph, or update its cap.
INSERT INTO longwatch_graph_queues (graph, version, node, max_running) VALUES (:graph, :version, :node, :max_running)
ON CONFLICT (graph, version, node) DO UPDATE SET max_running = excluded.max_running RETURNING queue

-- name: move_attempts
-- Move the waiting attempts of a node to another queue.
UPDATE longwatch_computations SET queue = :new_queue WHERE queue = :queue AND node = :node AND lease_state < 2

-- name: queues_of_graph
-- All queues of a graph.
SELECT queue, node, max_running FROM longwatch_graph_queues WHERE graph = :graph AND version = :version

-- name: graph_definitions
-- The definitions of the nodes of a graph, as JSON.
SELECT nodes FROM longwatch_graphs WHERE graph = :graph AND version = :version

-- name: upsert_graph
-- Write the definitions of the nodes of a graph.
INSERT INTO longwatch_graphs (graph, version, nodes) VALUES (:graph, :version, :nodes)
ON CONFLICT (graph, version) DO UPDATE SET nodes = excluded.nodes

-- name: release_key
-- Free the key of an execution for another one.
UPDATE longwatch_executions SET idempotency_key = NULL WHERE execution = :execution

-- name: insert_execution
-- Insert an execution, unless one with its key exists.
INSERT INTO longwatch_executions (id, graph, version, idempotency_key, revision, known_nodes, settled_nodes, state, metadata,
    trace_context, settled_at, created_at, updated_at)
VALUES (:id, :graph, :version, :key, :revision, :known_nodes, :settled_nodes, :state, :metadata,
    :trace_context, CASE WHEN :state > 0 THEN :wall_now END, :wall_now, :wall_now) ON CONFLICT DO NOTHING RETURNING execution

-- name: execution_by_key
-- Find an execution by its key.
SELECT execution FROM longwatch_executions WHERE graph = :graph AND idempotency_key = :key

-- name: execution_by_id
-- Find an execution by its id.
SELECT execution, graph, version, revision, cancelled, created_at, updated_at FROM longwatch_executions WHERE id = :id

-- name: trace_context
-- The headers of the span that started or last changed an execution.
SELECT trace_context FROM longwatch_executions WHERE execution = :execution

-- name: set_trace_context
-- Replace the headers of an execution.
UPDATE longwatch_executions SET trace_context = :trace_context WHERE execution = :execution

-- name: metadata
-- The metadata of an execution.
SELECT metadata FROM longwatch_executions WHERE execution = :execution

-- name: lock_metadata
-- The metadata of an execution, to be changed; locks the execution.
SELECT metadata FROM longwatch_executions WHERE execution = :execution {for_update}

-- name: set_metadata
-- Replace the metadata of an execution. It is no change of its state, so `changes` stays.
UPDATE longwatch_executions SET metadata = :metadata WHERE execution = :execution

-- name: may_have_value
-- Whether to load an execution for the value of a node: the node is set, a node was given up, the execution was cancelled or archived,
-- or its graph has more nodes now.
SELECT cancelled = 1 OR state = 5 OR known_nodes < :nodes OR EXISTS (SELECT 1 FROM longwatch_values AS v WHERE v.execution = e.execution 
    AND (failed = 1 OR (node = :node AND is_set = 1)))
FROM longwatch_executions AS e WHERE execution = :execution

-- name: wall_time
-- The wall time of the store.
SELECT CAST(:wall_now AS double precision)

-- name: attempts_of_execution
-- Every attempt of an execution, oldest first.
SELECT seq, node, state, attempt, computed_with, created_at, started_at, ended_at, owner, term, end_cause, error, last_heartbeat_at,
    CASE WHEN lease_state = 2 THEN heartbeat_deadline - :lease_now END, CASE WHEN lease_state = 2 THEN deadline - :lease_now END, CASE WHEN lease_state = 1 THEN ready_at - :wall_now END, crashes, releases,
    lost, failures, traceback,
    CASE WHEN element IS NOT NULL THEN coalesce((SELECT position FROM longwatch_map_elements AS m WHERE m.element = longwatch_computations.element), -1) END
FROM longwatch_computations WHERE execution = :execution ORDER BY seq

-- name: last_attempt
-- The limits of the newest attempt of an execution at a node, the time of its firing if it is one of a tick, and its elements if it is a map.
SELECT heartbeat_timeout, abandon_after, max_attempts, due_at, pending FROM longwatch_computations
WHERE execution = :execution AND node = :node AND element IS NULL ORDER BY seq DESC LIMIT 1

-- name: open_attempts_of_execution
-- The open attempts of an execution and of the elements of its maps, the running ones first, up to :limit.
SELECT seq, node, state, attempt, computed_with, created_at, started_at, ended_at, owner, term, end_cause, error, last_heartbeat_at,
    CASE WHEN lease_state = 2 THEN heartbeat_deadline - :lease_now END, CASE WHEN lease_state = 2 THEN deadline - :lease_now END, CASE WHEN lease_state = 1 THEN ready_at - :wall_now END, crashes, releases,
    lost, failures, traceback,
    CASE WHEN element IS NOT NULL THEN coalesce((SELECT position FROM longwatch_map_elements AS m WHERE m.element = longwatch_computations.element), -1) END
FROM longwatch_computations WHERE execution = :execution AND lease_state < 3 ORDER BY lease_state DESC, seq LIMIT :limit

-- name: short_values
-- The state of all nodes of an execution as `values` has it, but with an empty list for values longer than :limit, and of errors and tracebacks only
-- the beginning. Then when each was last changed, and the length and the beginning of its value.
SELECT execution, node, is_set, CASE WHEN length(value) > CAST(:limit AS integer) THEN '[]' ELSE value END, revision, computed_with, attempted_with,
    failed_attempts, crashes, failed, substr(error, 1, CAST(:limit AS integer)), term, lost, substr(traceback, 1, CAST(:limit AS integer)), paused,
    changed_at, length(value), substr(value, 1, CAST(:limit AS integer))
FROM longwatch_values WHERE execution = :execution

-- name: history_attempts
-- The newest ended attempts of an execution at its nodes, or at one of them.
SELECT seq, node, state, attempt, end_cause, error, started_at, ended_at, computed_with
FROM longwatch_computations
WHERE execution = :execution AND element IS NULL AND lease_state = 3 AND (node = :node OR :node = '')
ORDER BY ended_at DESC, seq DESC LIMIT :limit

-- name: history_values
-- The nodes of an execution that have or had a value, with the number of the attempt that computed the present value: of a tick its last
-- firing, of any other node the last success with the same inputs. It is null for a value that was set or unset.
SELECT v.node, is_set, value, revision, changed_at, CASE WHEN is_set = 1 THEN coalesce(fired, succeeded) END
FROM longwatch_values AS v
LEFT JOIN (
    SELECT node, computed_with, max(seq) AS succeeded, max(CASE WHEN due_at IS NOT NULL THEN seq END) AS fired
    FROM longwatch_computations WHERE execution = :execution AND element IS NULL AND lease_state = 3 AND state = 'success'
    GROUP BY node, computed_with
) AS attempts ON attempts.node = v.node AND attempts.computed_with = v.computed_with
WHERE v.execution = :execution AND revision > 0 AND (v.node = :node OR :node = '')

-- name: unchanged
-- Whether an execution is unchanged and a claim of one of its attempts still holds; locks both.
SELECT EXISTS (SELECT 1 FROM longwatch_executions WHERE execution = :execution AND changes = :changes {for_update})
AND EXISTS (SELECT 1 FROM longwatch_computations WHERE seq = :seq AND lease_state = 2 AND owner = :owner AND term = :term {for_update})

-- name: end_attempt
-- End an attempt.
UPDATE longwatch_computations SET lease_state = 3, state = :state, end_cause = :cause, error = :error, traceback = :traceback,
    ended_at = :wall_now
WHERE seq = :seq AND lease_state < 3

-- name: upsert_value
-- Write the state of a node. A value that is indexed stays so, also if the writer does not know that.
INSERT INTO longwatch_values
    (execution, node, is_set, value, revision, computed_with, attempted_with, failed_attempts, crashes, failed, error, term, lost, traceback,
    paused, search_key, indexed_key, changed_at)
VALUES ({execution}, :node, :is_set, :value, :revision, :computed_with, :attempted_with, :failed_attempts, :crashes, :failed, :error, :term, :lost,
    :traceback, :paused, :search_key, :indexed_key, :wall_now)
ON CONFLICT (execution, node) DO UPDATE SET is_set = excluded.is_set, value = excluded.value, revision = excluded.revision,
    computed_with = excluded.computed_with, attempted_with = excluded.attempted_with, failed_attempts = excluded.failed_attempts, crashes = excluded.crashes,
    failed = excluded.failed, error = excluded.error, term = excluded.term, lost = excluded.lost, traceback = excluded.traceback,
    search_key = excluded.search_key, indexed_key = CASE WHEN longwatch_values.indexed_key IS NULL THEN excluded.indexed_key
        ELSE excluded.search_key END,
    paused = excluded.paused, changed_at = excluded.changed_at

-- name: insert_attempt
-- Insert an attempt into its queue, ready at once or after a delay.
INSERT INTO longwatch_computations
    (queue, lease_state, ready_at, execution, node, attempt, term, crashes, lost, failures, computed_with, heartbeat_timeout, abandon_after,
    max_attempts, due_at, element, created_at)
VALUES (:queue, CASE WHEN CAST(:due_at AS double precision) IS NULL AND :delay <= 0 THEN 0 ELSE 1 END,
    CASE WHEN CAST(:due_at AS double precision) > :wall_now + :delay THEN CAST(:due_at AS double precision)
        WHEN :delay > 0 THEN :wall_now + :delay WHEN CAST(:due_at AS double precision) IS NOT NULL THEN :wall_now ELSE 0 END,
    {execution}, :node, :attempt, :term, :crashes, :lost, :failures, :computed_with, :heartbeat_timeout, :abandon_after, :max_attempts,
    CAST(:due_at AS double precision), CAST(:element AS bigint), :wall_now)

-- name: insert_leased_attempt
-- Insert an attempt that is leased at once; also return whether its owner is registered.
INSERT INTO longwatch_computations
    (queue, {leased_columns}, execution, node, attempt, crashes, lost, failures, computed_with, heartbeat_timeout, abandon_after, max_attempts,
    created_at)
SELECT :queue, {leased_values}, {execution}, :node, :attempt, :crashes, :lost, :failures, :computed_with, heartbeat_timeout, abandon_after,
    :max_attempts, :wall_now
FROM (SELECT CAST(:owner AS bigint) AS owner, CAST(:term AS bigint) AS term,
    CAST(:heartbeat_timeout AS double precision) AS heartbeat_timeout, CAST(:abandon_after AS double precision) AS abandon_after) AS new_attempt
RETURNING seq, owner, term, execution, node,
    EXISTS (SELECT 1 FROM longwatch_owners WHERE longwatch_owners.owner = longwatch_computations.owner)

-- name: touch_execution
-- Update the row of a changed execution.
UPDATE longwatch_executions SET revision = :revision, changes = changes + 1, known_nodes = :known_nodes, settled_nodes = :settled_nodes,
    state = :state, settled_at = CASE WHEN :state > 0 THEN :wall_now END, updated_at = :wall_now WHERE execution = :execution

-- name: update_progress
-- Update the progress of an execution that a propagation left unchanged.
UPDATE longwatch_executions SET known_nodes = :known_nodes, settled_nodes = :settled_nodes, state = :state,
    settled_at = CASE WHEN :state = 0 THEN NULL WHEN state = :state THEN settled_at ELSE :wall_now END
WHERE execution = :execution AND revision = :revision

-- name: cancel_execution
-- Cancel an execution.
UPDATE longwatch_executions SET cancelled = 1, changes = changes + 1 WHERE execution = :execution

-- name: count_running
-- Count the running attempts of a queue.
SELECT count(*) FROM longwatch_computations WHERE queue = :queue AND lease_state = 2

-- name: backlog
-- By graph: the attempts that could be claimed now, those that are due later, those that are leased, and the ages of the oldest free
-- attempt and of the oldest delayed one that is due. Each part reads a partial index; ended attempts are not read.
SELECT graph, sum(free + due), sum(delayed), sum(coalesce(running, 0)), max(oldest_free), max(oldest_due)
FROM (
    SELECT q.queue, graph,
        (SELECT count(*) FROM longwatch_computations AS c WHERE c.queue = q.queue AND lease_state = 0) AS free,
        (SELECT count(*) FROM longwatch_computations AS c WHERE c.queue = q.queue AND lease_state = 1 AND ready_at <= :wall_now) AS due,
        (SELECT count(*) FROM longwatch_computations AS c WHERE c.queue = q.queue AND lease_state = 1 AND ready_at > :wall_now) AS delayed,
        (SELECT :wall_now - CASE WHEN ready_at > created_at THEN ready_at ELSE created_at END FROM longwatch_computations AS c
            WHERE c.queue = q.queue AND lease_state = 0 ORDER BY seq LIMIT 1) AS oldest_free,
        (SELECT :wall_now - min(ready_at) FROM longwatch_computations AS c
            WHERE c.queue = q.queue AND lease_state = 1 AND ready_at <= :wall_now) AS oldest_due
    FROM longwatch_graph_queues AS q
) AS waiting
LEFT JOIN (SELECT queue, count(*) AS running FROM longwatch_computations WHERE lease_state = 2 GROUP BY queue) AS leased
    ON leased.queue = waiting.queue
GROUP BY graph

-- name: stored_graphs
-- The names of all graphs.
SELECT DISTINCT graph FROM longwatch_graph_queues ORDER BY graph

-- name: count_executions
-- Count the executions of a graph by state and by whether a worker computes a node of them.
SELECT state, is_running, count(*) FROM (
    SELECT state, CASE WHEN state = 0 AND EXISTS (
        SELECT 1 FROM longwatch_computations AS c WHERE c.execution = e.execution AND lease_state = 2) THEN 1 ELSE 0 END AS is_running
    FROM longwatch_executions AS e WHERE graph = :graph
) AS counted GROUP BY state, is_running

-- name: count_values
-- By node: the number of executions of a graph in which it is set, in which it was given up, and whether an attempt at it has ended.
SELECT node, sum(is_set), sum(failed), max(CASE WHEN computed_with IS NULL AND attempted_with IS NULL THEN 0 ELSE 1 END)
FROM longwatch_executions AS e JOIN longwatch_values AS v ON v.execution = e.execution WHERE graph = :graph GROUP BY node

-- name: count_open_attempts
-- By node: the number of executions of a graph in which a worker computes it, and in which it waits for a worker or for its time. Each part
-- reads a partial index; ended attempts are not read.
SELECT node, count(DISTINCT running), count(DISTINCT waiting) FROM (
    SELECT node, execution AS running, NULL AS waiting FROM longwatch_computations
    WHERE lease_state = 2 AND queue IN (SELECT queue FROM longwatch_graph_queues WHERE graph = :graph)
    UNION ALL SELECT node, NULL, execution FROM longwatch_computations
    WHERE lease_state = 0 AND queue IN (SELECT queue FROM longwatch_graph_queues WHERE graph = :graph)
    UNION ALL SELECT node, NULL, execution FROM longwatch_computations
    WHERE lease_state = 1 AND pending IS NULL AND queue IN (SELECT queue FROM longwatch_graph_queues WHERE graph = :graph)
) AS open_attempts GROUP BY node

-- name: newest_attempt
-- The number of the newest attempt; null if there is none. SQLite reads one row only for a bare max().
SELECT max(seq) FROM longwatch_computations

-- name: attempt_durations
-- The durations of the newest successful attempts of each node of a graph, the newest first, among the attempts in a range of numbers. The
-- firing of a tick runs no code and is left out.
SELECT node, seconds FROM (
    SELECT seq, node, ended_at - started_at AS seconds, row_number() OVER (PARTITION BY node ORDER BY seq DESC) AS place
    FROM longwatch_computations
    WHERE seq > :after AND seq <= :upto AND state = 'success' AND started_at IS NOT NULL AND due_at IS NULL
        AND queue IN (SELECT queue FROM longwatch_graph_queues WHERE graph = :graph)
) AS newest WHERE place <= :limit ORDER BY seq DESC

-- name: sweep_position
-- Where the next run of a sweep continues.
SELECT position FROM longwatch_sweeps WHERE sweep = :sweep

-- name: set_sweep_position
-- Set where the next run of a sweep continues.
UPDATE longwatch_sweeps SET position = :position WHERE sweep = :sweep

-- name: insert_sweep_run
-- Record a run of a sweep.
INSERT INTO longwatch_sweep_runs (sweep, started_at, seconds, row_count, error) VALUES (:sweep, :wall_now - :seconds, :seconds, :row_count, :error)

-- name: trim_sweep_runs
-- Delete all but the newest runs.
DELETE FROM longwatch_sweep_runs WHERE run <= (SELECT max(run) FROM longwatch_sweep_runs) - :keep

-- name: sweep_runs
-- The newest runs of all sweeps.
SELECT sweep, started_at, seconds, row_count, error FROM longwatch_sweep_runs ORDER BY run DESC LIMIT :limit

-- name: renewing_owners
-- The incarnations of the owners that renew and hold attempts.
SELECT incarnation FROM longwatch_owners AS o WHERE table_name = 'longwatch_computations' AND renew_seconds IS NOT NULL
    AND EXISTS (SELECT 1 FROM longwatch_computations AS c WHERE c.lease_state = 2 AND c.owner = o.owner)

-- name: unsettled_executions
-- A page of the executions of a graph that may be stalled, each with whether an attempt is open. The index skips all others.
SELECT settled_nodes, execution,
    EXISTS (SELECT 1 FROM longwatch_computations AS c WHERE c.execution = e.execution AND lease_state < 3)
FROM longwatch_executions AS e
WHERE graph = :graph AND version = :version AND settled_nodes < :nodes AND cancelled = 0
    AND (settled_nodes, execution) > (:after_nodes, :after)
ORDER BY settled_nodes, execution LIMIT :limit

-- name: element_input_column
-- A column of attempts: the element of a map as JSON; null for a node.
(SELECT input FROM longwatch_map_elements AS m WHERE m.element = longwatch_computations.element)

-- name: execution_id_column
-- A column of attempts: the id of the execution.
(SELECT id FROM longwatch_executions WHERE longwatch_executions.execution = longwatch_computations.execution)
