-- Statements for the elements of maps, for PostgreSQL.

-- name: valid_elements
-- The elements of those of these claims that still hold. Their attempts are locked until the end of the transaction.
SELECT seq, owner, c.term, c.execution, c.node, attempt, queue, heartbeat_timeout, abandon_after, max_attempts, c.computed_with,
    m.element, m.failed_attempts, m.crashes, m.lost, m.error, m.traceback
FROM longwatch_computations AS c JOIN longwatch_map_elements AS m ON m.element = c.element
WHERE seq = ANY (:seqs::int8[]) AND lease_state = 2
    AND ((seq, owner, c.term) IN (SELECT * FROM unnest(:seqs::int8[], :owners::int8[], :terms::int8[]))) IS TRUE
ORDER BY seq FOR UPDATE OF c

-- name: insert_element_many
-- The same for many, given as arrays.
INSERT INTO longwatch_map_elements (execution, node, key, position, computed_with, input, is_open)
SELECT given.*, 1 FROM unnest(:execution::int8[], :node::text[], :key::text[], :position::int4[], :computed_with::text[], :input::text[]) AS given

-- name: move_element_many
-- The same for many, given as arrays.
UPDATE longwatch_map_elements AS m SET position = given.position
FROM unnest(:element::int8[], :position::int4[]) AS given (element, position) WHERE m.element = given.element

-- name: reset_element_many
-- The same for many, given as arrays.
UPDATE longwatch_map_elements AS m SET position = given.position, computed_with = given.computed_with, is_open = 1, is_set = 0, value = NULL,
    failed_attempts = 0, crashes = 0, lost = 0, failed = 0, error = NULL, traceback = NULL
FROM unnest(:element::int8[], :position::int4[], :computed_with::text[]) AS given (element, position, computed_with)
WHERE m.element = given.element

-- name: end_element_many
-- The same for many, given as arrays.
UPDATE longwatch_map_elements AS m SET is_open = given.is_open, is_set = given.is_set, value = given.value,
    failed_attempts = given.failed_attempts, crashes = given.crashes, lost = given.lost, failed = given.failed, error = given.error,
    traceback = given.traceback, term = given.term
FROM unnest(:element::int8[], :is_open::int2[], :is_set::int2[], :value::text[], :failed_attempts::int4[], :crashes::int4[], :lost::int4[],
    :failed::int2[], :error::text[], :traceback::text[], :term::int8[])
    AS given (element, is_open, is_set, value, failed_attempts, crashes, lost, failed, error, traceback, term)
WHERE m.element = given.element
