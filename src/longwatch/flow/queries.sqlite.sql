-- Statements of `flow` for SQLite. It has one writer at a time, so rows that a write transaction has read do not change until it ends.

-- name: executions
-- Executions by their numbers.
SELECT execution, id, revision, changes, cancelled, graph, version, known_nodes, settled_nodes, state FROM longwatch_executions
WHERE execution IN (SELECT value FROM json_each(:executions))

-- name: values
-- The state of all nodes of executions.
SELECT execution, node, is_set, value, revision, computed_with, attempted_with, failed_attempts, crashes, failed, error, term, lost, traceback, paused
FROM longwatch_values
WHERE execution IN (SELECT value FROM json_each(:executions))

-- name: open_attempts
-- The open attempts of executions.
SELECT execution, seq, node, lease_state, computed_with, attempt, term, queue, heartbeat_timeout, abandon_after, max_attempts, owner, due_at
FROM longwatch_computations WHERE lease_state < 3 AND element IS NULL AND execution IN (SELECT value FROM json_each(:executions))

-- name: valid_claims
-- Those of these claims that still hold, with whether they are past their deadline and whether a heartbeat is missed.
SELECT seq, owner, term, execution, node, coalesce(deadline < :lease_now, 0), coalesce(heartbeat_deadline < :lease_now, 0), element
FROM json_each(:claims) AS claim JOIN longwatch_computations ON seq = json_extract(claim.value, '$[0]')
WHERE lease_state = 2 AND owner = json_extract(claim.value, '$[1]') AND term = json_extract(claim.value, '$[2]')

-- name: places_of_attempts
-- The executions of attempts, and their elements if they compute one.
SELECT seq, execution, element FROM longwatch_computations WHERE seq IN (SELECT value FROM json_each(:seqs))

-- name: row_ids
-- The executions and nodes of attempts.
SELECT seq, id, node FROM longwatch_computations AS c JOIN longwatch_executions AS e ON e.execution = c.execution
WHERE seq IN (SELECT value FROM json_each(:seqs))

-- name: lapsed_leases
-- Leased attempts whose lease has ended, by the clock or because of another boot, or that are past their deadline,
-- except those to skip, and those of owners to skip.
SELECT seq, leased.owner, term, execution, heartbeat_timeout
FROM longwatch_computations AS leased LEFT JOIN longwatch_owners ON longwatch_owners.owner = leased.owner
WHERE lease_state = 2 AND ({lapsed} OR coalesce(boot, '') <> :boot)
    AND seq NOT IN (SELECT value FROM json_each(:skip))
    AND leased.owner NOT IN (SELECT value FROM json_each(:skip_owners)) LIMIT :limit

-- name: lapsed_owners
-- The owners of such attempts, each with whether a heartbeat is missed. A deleted owner has an unreadable page.
SELECT leased.owner, coalesce(incarnation, ''), CASE WHEN longwatch_owners.owner IS NULL THEN '' ELSE page END, parent,
    coalesce(draining, 0), renew_seconds, max(coalesce(heartbeat_deadline < :lease_now, 0))
FROM longwatch_computations AS leased LEFT JOIN longwatch_owners ON longwatch_owners.owner = leased.owner
WHERE lease_state = 2 AND ({lapsed} OR coalesce(boot, '') <> :boot) GROUP BY leased.owner

-- name: leases_of_owner
-- The leases of one owner, up to :limit.
SELECT seq, owner, term, execution, heartbeat_timeout FROM longwatch_computations WHERE lease_state = 2 AND owner = :owner LIMIT :limit

-- name: ready_queues
-- The queues among these that have a free attempt that is no suspect, or a delayed attempt that is due.
SELECT value FROM json_each(:queues) AS queue
WHERE EXISTS (SELECT 1 FROM longwatch_computations WHERE queue = queue.value AND lease_state = 0 AND NOT {is_suspect})
    OR EXISTS (SELECT 1 FROM longwatch_computations WHERE queue = queue.value AND lease_state = 1 AND ready_at <= :wall_now)

-- name: suspects_by_queue
-- The number of free suspects in each of these queues, counted up to :limit. The first condition selects a small index.
SELECT value, (SELECT count(*) FROM (SELECT 1 FROM longwatch_computations WHERE queue = wanted.value AND lease_state = 0
    AND crashes + lost > 0 AND {is_suspect} LIMIT :limit))
FROM json_each(:queues) AS wanted

-- name: next_due
-- Seconds until the next delayed attempt of these queues is due; null if none is delayed.
SELECT min(ready_at) - :wall_now FROM longwatch_computations WHERE lease_state = 1 AND queue IN (SELECT value FROM json_each(:queues))

-- name: claim_sweep
-- Claim a sweep, if its last run began long enough ago.
INSERT INTO longwatch_sweeps (sweep, started_at) VALUES (:sweep, :wall_now)
ON CONFLICT (sweep) DO UPDATE SET started_at = excluded.started_at
WHERE longwatch_sweeps.started_at <= :wall_now - :interval OR longwatch_sweeps.started_at > :wall_now RETURNING position

-- name: inputs_column
-- A column of attempts: the values of the inputs as JSON; null if they are more than a statement can return.
(SELECT CASE WHEN count(*) = 0 OR sum(length(value)) <= 67108864 THEN json_group_object(v.node, value) END
    FROM longwatch_values AS v WHERE v.execution = longwatch_computations.execution
    AND is_set = 1 AND v.node IN (SELECT key FROM json_each(longwatch_computations.computed_with)))

-- name: is_stale_column
-- A column of attempts: whether the inputs have changed since, by a process of an older release that does not know the node.
EXISTS (SELECT 1 FROM json_each(longwatch_computations.computed_with) AS needed WHERE needed.value <> coalesce((
    SELECT v.revision FROM longwatch_values AS v
    WHERE v.execution = longwatch_computations.execution AND v.node = needed.key AND v.is_set = 1), 0))
