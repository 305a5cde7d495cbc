-- What `records.py` asks of SQLite. One writer at a time, so what was read in a transaction stays as it was until its end.

-- name: executions
-- Executions by their numbers.
SELECT execution, id, revision, changes, cancelled, graph, version, known_nodes, settled_nodes, done FROM longwatch_executions
WHERE execution IN (SELECT value FROM json_each(:executions))

-- name: values
-- What is kept of the nodes of executions.
SELECT execution, node, is_set, value, revision, computed_with, attempted_with, failed_attempts, crashes, failed, error, term, lost, traceback
FROM longwatch_values
WHERE execution IN (SELECT value FROM json_each(:executions))

-- name: open_attempts
-- The open attempts of executions.
SELECT execution, seq, node, lease_state, computed_with, attempt, term, queue, heartbeat_timeout, abandon_after, max_attempts, owner
FROM longwatch_computations WHERE lease_state < 3 AND execution IN (SELECT value FROM json_each(:executions))

-- name: valid_claims
-- Those of these claims that are still their claimants', with whether they are past their deadline, or their heartbeat is missed.
SELECT seq, owner, term, execution, node, coalesce(deadline < :lease_now, 0), coalesce(heartbeat_deadline < :lease_now, 0)
FROM json_each(:claims) AS claim JOIN longwatch_computations ON seq = json_extract(claim.value, '$[0]')
WHERE lease_state = 2 AND owner = json_extract(claim.value, '$[1]') AND term = json_extract(claim.value, '$[2]')

-- name: executions_of_attempts
-- The executions of attempts.
SELECT seq, execution FROM longwatch_computations WHERE seq IN (SELECT value FROM json_each(:seqs))

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
-- The owners of such attempts, each with whether a heartbeat is missed. One that was deleted has an unreadable page.
SELECT leased.owner, coalesce(incarnation, ''), CASE WHEN longwatch_owners.owner IS NULL THEN '' ELSE page END, parent,
    coalesce(draining, 0), renew_seconds, max(coalesce(heartbeat_deadline < :lease_now, 0))
FROM longwatch_computations AS leased LEFT JOIN longwatch_owners ON longwatch_owners.owner = leased.owner
WHERE lease_state = 2 AND ({lapsed} OR coalesce(boot, '') <> :boot) GROUP BY leased.owner

-- name: leases_of_owner
-- The leases of one owner, as many as asked for.
SELECT seq, owner, term, execution, heartbeat_timeout FROM longwatch_computations WHERE lease_state = 2 AND owner = :owner LIMIT :limit

-- name: ready_queues
-- Those of these queues that hold a free attempt that is no suspect, or a delayed one that is due.
SELECT value FROM json_each(:queues) AS queue
WHERE EXISTS (SELECT 1 FROM longwatch_computations WHERE queue = queue.value AND lease_state = 0 AND NOT {is_suspect})
    OR EXISTS (SELECT 1 FROM longwatch_computations WHERE queue = queue.value AND lease_state = 1 AND ready_at <= :wall_now)

-- name: suspects_by_queue
-- Of each of these queues, how many suspects are free, counted up to :limit. The first condition is that of a small index.
SELECT value, (SELECT count(*) FROM (SELECT 1 FROM longwatch_computations WHERE queue = wanted.value AND lease_state = 0
    AND crashes + lost > 0 AND {is_suspect} LIMIT :limit))
FROM json_each(:queues) AS wanted

-- name: next_due
-- Seconds until the next delayed attempt of these queues is due; null if none is delayed.
SELECT min(ready_at) - :wall_now FROM longwatch_computations WHERE lease_state = 1 AND queue IN (SELECT value FROM json_each(:queues))

-- name: claim_sweep
-- Be the one who makes a sweep, if the last one began long enough ago.
INSERT INTO longwatch_sweeps (sweep, started_at) VALUES (:sweep, :wall_now)
ON CONFLICT (sweep) DO UPDATE SET started_at = excluded.started_at
WHERE longwatch_sweeps.started_at <= :wall_now - :interval OR longwatch_sweeps.started_at > :wall_now RETURNING position

-- name: inputs_column
-- Of an attempt, the values that it is computed from, as JSON; null if they are more than a statement can return. A column.
(SELECT CASE WHEN count(*) = 0 OR sum(length(value)) <= 67108864 THEN json_group_object(v.node, value) END
    FROM longwatch_values AS v WHERE v.execution = longwatch_computations.execution
    AND is_set = 1 AND v.node IN (SELECT key FROM json_each(longwatch_computations.computed_with)))

-- name: is_stale_column
-- Of an attempt, whether its inputs have changed since: by somebody who does not know the node, of an older release. A column.
EXISTS (SELECT 1 FROM json_each(longwatch_computations.computed_with) AS needed WHERE needed.value <> coalesce((
    SELECT v.revision FROM longwatch_values AS v
    WHERE v.execution = longwatch_computations.execution AND v.node = needed.key AND v.is_set = 1), 0))
