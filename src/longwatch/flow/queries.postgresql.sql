-- Statements of `flow` for PostgreSQL, under READ COMMITTED. A transaction locks executions first, in the order of their numbers,
-- and then their attempts, so that transactions do not deadlock. Claims lock only attempts, and skip
-- locked ones.

-- name: executions
-- Executions by their numbers, locked until the end of the transaction.
SELECT execution, id, revision, changes, cancelled, graph, version, known_nodes, settled_nodes, state FROM longwatch_executions
WHERE execution = ANY (:executions::int8[]) ORDER BY execution FOR UPDATE

-- name: executions_without_lock
-- Executions by their numbers, without a lock.
SELECT execution, id, revision, changes, cancelled, graph, version, known_nodes, settled_nodes, state FROM longwatch_executions WHERE execution = ANY (:executions::int8[])

-- name: values
-- The state of all nodes of executions.
SELECT execution, node, is_set, value, revision, computed_with, attempted_with, failed_attempts, crashes, failed, error, term, lost, traceback, paused
FROM longwatch_values
WHERE execution = ANY (:executions::int8[])

-- name: open_attempts
-- The open attempts of executions.
SELECT execution, seq, node, lease_state, computed_with, attempt, term, queue, heartbeat_timeout, abandon_after, max_attempts, owner, due_at
FROM longwatch_computations WHERE lease_state < 3 AND element IS NULL AND execution = ANY (:executions::int8[])

-- name: valid_claims
-- Those of these claims that still hold, with whether they are past their deadline and whether a heartbeat is missed.
-- They are locked until the end of the transaction. The first condition makes the planner find them by their numbers.
SELECT seq, owner, term, execution, node, coalesce(deadline < :lease_now, false)::int,
    coalesce(heartbeat_deadline < :lease_now, false)::int, element
FROM longwatch_computations WHERE seq = ANY (:seqs::int8[]) AND lease_state = 2
    AND ((seq, owner, term) IN (SELECT * FROM unnest(:seqs::int8[], :owners::int8[], :terms::int8[]))) IS TRUE
ORDER BY seq FOR UPDATE

-- name: places_of_attempts
-- The executions of attempts, and their elements if they compute one.
SELECT seq, execution, element FROM longwatch_computations WHERE seq = ANY (:seqs::int8[])

-- name: upsert_value_many
-- The same for many nodes, given as arrays.
INSERT INTO longwatch_values
    (execution, node, is_set, value, revision, computed_with, attempted_with, failed_attempts, crashes, failed, error, term, lost, traceback,
    paused, search_key, indexed_key, changed_at)
SELECT kept.*, :wall_now
FROM unnest(:execution::int8[], :node::text[], :is_set::int2[], :value::text[], :revision::int8[], :computed_with::text[],
    :attempted_with::text[], :failed_attempts::int4[], :crashes::int4[], :failed::int2[], :error::text[], :term::int8[],
    :lost::int4[], :traceback::text[], :paused::int2[], :search_key::text[], :indexed_key::text[]) AS kept
ON CONFLICT (execution, node) DO UPDATE SET is_set = excluded.is_set, value = excluded.value, revision = excluded.revision,
    computed_with = excluded.computed_with, attempted_with = excluded.attempted_with, failed_attempts = excluded.failed_attempts, crashes = excluded.crashes,
    failed = excluded.failed, error = excluded.error, term = excluded.term, lost = excluded.lost, traceback = excluded.traceback,
    search_key = excluded.search_key, indexed_key = CASE WHEN longwatch_values.indexed_key IS NULL THEN excluded.indexed_key
        ELSE excluded.search_key END,
    paused = excluded.paused, changed_at = excluded.changed_at

-- name: insert_attempt_many
-- The same for many, given as arrays.
INSERT INTO longwatch_computations
    (queue, lease_state, ready_at, execution, node, attempt, term, crashes, lost, failures, computed_with, heartbeat_timeout, abandon_after,
    max_attempts, due_at, element, created_at)
SELECT queue, CASE WHEN due_at IS NULL AND delay <= 0 THEN 0 ELSE 1 END,
    CASE WHEN due_at > :wall_now + delay THEN due_at WHEN delay > 0 THEN :wall_now + delay WHEN due_at IS NOT NULL THEN :wall_now
        ELSE 0 END, execution, node, attempt,
    term, crashes, lost, failures, computed_with, heartbeat_timeout, abandon_after, max_attempts, due_at, element, :wall_now
FROM unnest(:queue::int8[], :delay::float8[], :execution::int8[], :node::text[], :attempt::int4[], :term::int8[], :crashes::int4[],
    :lost::int4[], :failures::int4[], :computed_with::text[], :heartbeat_timeout::float8[], :abandon_after::float8[], :max_attempts::int4[],
    :due_at::float8[], :element::int8[])
    AS new_attempt (queue, delay, execution, node, attempt, term, crashes, lost, failures, computed_with, heartbeat_timeout, abandon_after,
        max_attempts, due_at, element)

-- name: end_attempt_many
-- The same for many, given as arrays.
UPDATE longwatch_computations AS attempt SET lease_state = 3, state = attempt_end.state, end_cause = cause, error = attempt_end.error,
    traceback = attempt_end.traceback, ended_at = :wall_now
FROM unnest(:seq::int8[], :state::text[], :cause::text[], :error::text[], :traceback::text[])
    AS attempt_end (seq, state, cause, error, traceback)
WHERE attempt.seq = attempt_end.seq AND lease_state < 3

-- name: touch_execution_many
-- The same for many, given as arrays.
UPDATE longwatch_executions AS changed SET revision = given.revision, changes = changes + 1, known_nodes = given.known_nodes,
    settled_nodes = given.settled_nodes, state = given.state, settled_at = CASE WHEN given.state > 0 THEN :wall_now END, updated_at = :wall_now
FROM unnest(:execution::int8[], :revision::int8[], :known_nodes::int4[], :settled_nodes::int4[], :state::int2[])
    AS given (execution, revision, known_nodes, settled_nodes, state)
WHERE changed.execution = given.execution

-- name: update_progress_many
-- The same for many, given as arrays.
UPDATE longwatch_executions AS changed SET known_nodes = given.known_nodes, settled_nodes = given.settled_nodes, state = given.state,
    settled_at = CASE WHEN given.state = 0 THEN NULL WHEN changed.state = given.state THEN settled_at ELSE :wall_now END
FROM unnest(:execution::int8[], :revision::int8[], :known_nodes::int4[], :settled_nodes::int4[], :state::int2[])
    AS given (execution, revision, known_nodes, settled_nodes, state)
WHERE changed.execution = given.execution AND changed.revision = given.revision

-- name: row_ids
-- The executions and nodes of attempts.
SELECT seq, id, node FROM longwatch_computations AS c JOIN longwatch_executions AS e ON e.execution = c.execution
WHERE seq = ANY (:seqs::int8[])

-- name: lapsed_leases
-- Leased attempts whose lease has ended or that are past their deadline, except those to skip, and those of owners to skip: a read
-- without a lock.
SELECT seq, owner, term, execution, heartbeat_timeout FROM longwatch_computations
WHERE lease_state = 2 AND {lapsed} AND seq <> ALL (:skip::int8[]) AND owner <> ALL (:skip_owners::int8[]) LIMIT :limit

-- name: lapsed_owners
-- The owners of such attempts, each with whether a heartbeat is missed. A deleted owner has an unreadable page.
SELECT leased.owner, coalesce(incarnation, ''), CASE WHEN longwatch_owners.owner IS NULL THEN '' ELSE page END, parent,
    coalesce(draining, 0), renew_seconds, is_missed
FROM (
    SELECT owner, max(coalesce(heartbeat_deadline < :lease_now, false)::int) AS is_missed
    FROM longwatch_computations WHERE lease_state = 2 AND {lapsed} GROUP BY owner
) AS leased LEFT JOIN longwatch_owners ON longwatch_owners.owner = leased.owner

-- name: leases_of_owner
-- The leases of one owner, up to :limit, without a lock.
SELECT seq, owner, term, execution, heartbeat_timeout FROM longwatch_computations WHERE lease_state = 2 AND owner = :owner LIMIT :limit

-- name: ready_queues
-- The queues among these that have a free attempt that is no suspect, or a delayed attempt that is due. Reads no free attempt below
-- the bound in :lows (`scan_bound`).
SELECT queue FROM unnest(:queues::int8[], :lows::int8[]) AS wanted (queue, low)
WHERE EXISTS (SELECT 1 FROM longwatch_computations AS c WHERE c.queue = wanted.queue AND lease_state = 0 AND seq >= wanted.low AND NOT {is_suspect})
    OR EXISTS (SELECT 1 FROM longwatch_computations AS c WHERE c.queue = wanted.queue AND lease_state = 1 AND ready_at <= :wall_now)

-- name: suspects_by_queue
-- The number of free suspects in each of these queues, counted up to :limit. The first condition selects a small index.
SELECT wanted.queue, (SELECT count(*) FROM (SELECT 1 FROM longwatch_computations AS c WHERE c.queue = wanted.queue AND lease_state = 0
    AND crashes + lost > 0 AND {is_suspect} LIMIT :limit) AS found)
FROM unnest(:queues::int8[]) AS wanted (queue)

-- name: next_due
-- Seconds until the next delayed attempt of these queues is due; null if none is delayed.
SELECT min(ready_at) - :wall_now FROM longwatch_computations WHERE lease_state = 1 AND queue = ANY (:queues::int8[])

-- name: next_due_later
-- Seconds until the next delayed attempt of these queues is due, without those that are due; null if there is none.
SELECT min(ready_at) - :wall_now FROM longwatch_computations
WHERE lease_state = 1 AND queue = ANY (:queues::int8[]) AND ready_at > :wall_now

-- name: lock_queue
-- Let no other transaction count and claim attempts of this queue until this one ends.
SELECT pg_advisory_xact_lock(:queue)

-- name: insert_sweep
-- Insert a sweep that never ran. It is looked up first, because an insert would wait for a transaction that has it locked.
INSERT INTO longwatch_sweeps (sweep, started_at)
SELECT :sweep, 0 WHERE NOT EXISTS (SELECT 1 FROM longwatch_sweeps WHERE sweep = :sweep) ON CONFLICT DO NOTHING

-- name: claim_sweep
-- Claim a sweep, if its last run began long enough ago and no other transaction claims it, or has been claiming it for too long.
WITH turn AS (
    UPDATE longwatch_sweeps SET started_at = :wall_now WHERE sweep = (
        SELECT sweep FROM longwatch_sweeps
        WHERE sweep = :sweep AND (started_at <= :wall_now - :interval::float8 OR started_at > :wall_now) FOR UPDATE SKIP LOCKED
    ) RETURNING position
)
SELECT position FROM turn
UNION ALL SELECT position FROM longwatch_sweeps
WHERE sweep = :sweep AND started_at <= :wall_now - 3 * :interval::float8 AND NOT EXISTS (SELECT 1 FROM turn)

-- name: inputs_column
-- A column of attempts: the values of the inputs as JSON; null if they are more than a statement can return.
(SELECT CASE WHEN count(*) = 0 THEN json_build_object()::text WHEN sum(length(value)) <= 67108864 THEN json_object_agg(v.node, value)::text END
    FROM longwatch_values AS v WHERE v.execution = longwatch_computations.execution
    AND is_set = 1 AND jsonb_exists(longwatch_computations.computed_with::jsonb, v.node))

-- name: is_stale_column
-- A column of attempts: whether the inputs have changed since, by a process of an older release that does not know the node.
EXISTS (SELECT 1 FROM jsonb_each_text(longwatch_computations.computed_with::jsonb) AS needed (key, value)
    WHERE needed.value::int8 <> coalesce((
        SELECT v.revision FROM longwatch_values AS v
        WHERE v.execution = longwatch_computations.execution AND v.node = needed.key AND v.is_set = 1), 0))
