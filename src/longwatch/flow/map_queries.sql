-- Statements for the elements of maps. The transaction has locked the execution before.

-- name: elements_of_map
-- The elements of a map, each with whether an attempt of it is open.
SELECT element, key, position, computed_with, is_open, is_set, EXISTS (
    SELECT 1 FROM longwatch_computations AS c WHERE c.execution = m.execution AND c.element = m.element AND lease_state < 3)
FROM longwatch_map_elements AS m WHERE execution = :execution AND node = :node

-- name: results_of_map
-- How the elements of a map ended, in the order of the list.
SELECT element, position, is_set, value, error FROM longwatch_map_elements
WHERE execution = :execution AND node = :node ORDER BY position

-- name: size_of_map
-- How many elements of a map have no result, and how many characters all results have.
SELECT coalesce(sum(1 - is_set), 0), coalesce(sum(length(value)), 0) FROM longwatch_map_elements WHERE execution = :execution AND node = :node

-- name: insert_element
-- Insert an element that has to be computed.
INSERT INTO longwatch_map_elements (execution, node, key, position, computed_with, input, is_open)
VALUES (:execution, :node, :key, :position, :computed_with, :input, 1)

-- name: move_element
-- Move an element to another place in the list.
UPDATE longwatch_map_elements SET position = :position WHERE element = :element

-- name: reset_element
-- Make an element be computed again, with all its budgets.
UPDATE longwatch_map_elements SET position = :position, computed_with = :computed_with, is_open = 1, is_set = 0, value = NULL,
    failed_attempts = 0, crashes = 0, lost = 0, failed = 0, error = NULL, traceback = NULL
WHERE element = :element

-- name: delete_elements
-- Delete elements.
DELETE FROM longwatch_map_elements WHERE element {in_elements}

-- name: delete_map
-- Delete all elements of a map.
DELETE FROM longwatch_map_elements WHERE execution = :execution AND node = :node

-- name: cancel_elements
-- Cancel the open attempts of elements.
UPDATE longwatch_computations SET lease_state = 3, state = 'cancelled', end_cause = :cause, ended_at = :wall_now
WHERE execution = :execution AND element {in_elements} AND lease_state < 3

-- name: cancel_map
-- Cancel the open attempts of all elements of a map.
UPDATE longwatch_computations SET lease_state = 3, state = 'cancelled', end_cause = :cause, ended_at = :wall_now
WHERE execution = :execution AND element IS NOT NULL AND node = :node AND lease_state < 3

-- name: hasten_elements
-- Free the delayed attempts of the elements of a map.
UPDATE longwatch_computations SET lease_state = 0, ready_at = 0
WHERE execution = :execution AND element IS NOT NULL AND node = :node AND lease_state = 1

-- name: insert_map
-- Insert the attempt of a map. Its lease_state lets no claim take it.
INSERT INTO longwatch_computations
    (queue, lease_state, execution, node, attempt, term, computed_with, heartbeat_timeout, abandon_after, max_attempts, pending, opened, created_at)
VALUES (:queue, -1, :execution, :node, :attempt, :term, :computed_with, :heartbeat_timeout, :abandon_after, :max_attempts, :pending, -1, :wall_now)

-- name: open_maps
-- The open attempts of maps.
SELECT execution, node, seq, pending, opened FROM longwatch_computations
WHERE execution {in_executions} AND element IS NULL AND lease_state = -1

-- name: count_ended
-- Count ended elements of a map.
UPDATE longwatch_computations SET pending = pending - :ended
WHERE execution = :execution AND element IS NULL AND lease_state = -1 AND node = :node

-- name: advance_map
-- Move the place up to which elements are opened over the next :room elements that are to be computed. A server without statistics
-- would turn NOT EXISTS into a join of every element with every open attempt; a count is looked up by the index.
UPDATE longwatch_computations SET opened = (SELECT max(position) FROM (
    SELECT position FROM longwatch_map_elements AS m
    WHERE m.execution = :execution AND m.node = :node AND position > :after AND is_open = 1 AND 0 = (
        SELECT count(*) FROM longwatch_computations AS c WHERE c.execution = :execution AND c.element = m.element AND lease_state < 3)
    ORDER BY position LIMIT :room) AS next_elements)
WHERE execution = :execution AND element IS NULL AND lease_state = -1 AND node = :node

-- name: open_elements
-- Insert attempts for the elements up to that place, with the limits of their map.
INSERT INTO longwatch_computations
    (queue, lease_state, execution, node, attempt, term, crashes, lost, failures, computed_with, heartbeat_timeout, abandon_after, max_attempts,
    element, created_at)
SELECT p.queue, 0, p.execution, p.node, m.failed_attempts + m.crashes + m.lost + 1, m.term, m.crashes, m.lost, m.failed_attempts, m.computed_with,
    heartbeat_timeout, abandon_after, max_attempts, m.element, :wall_now
FROM longwatch_computations AS p JOIN longwatch_map_elements AS m ON m.execution = p.execution AND m.node = p.node
WHERE p.execution = :execution AND p.element IS NULL AND p.lease_state = -1 AND p.node = :node
    AND position > :after AND position <= opened AND is_open = 1 AND 0 = (
        SELECT count(*) FROM longwatch_computations AS c WHERE c.execution = :execution AND c.element = m.element AND lease_state < 3)
ORDER BY position

-- name: end_element
-- Write how an attempt of an element ended.
UPDATE longwatch_map_elements SET is_open = :is_open, is_set = :is_set, value = :value, failed_attempts = :failed_attempts, crashes = :crashes,
    lost = :lost, failed = :failed, error = :error, traceback = :traceback, term = :term
WHERE element = :element

-- name: leased_elements
-- The claims of the running elements of a map.
SELECT seq, owner, term FROM longwatch_computations
WHERE execution = :execution AND element IS NOT NULL AND node = :node AND lease_state = 2

-- name: progress_of_maps
-- The maps of an execution, each with its elements, and how many are open and failed.
SELECT node, count(*), sum(is_open), sum(failed) FROM longwatch_map_elements WHERE execution = :execution GROUP BY node

-- name: failed_elements
-- The first failed elements of a map.
SELECT position, error, traceback FROM longwatch_map_elements
WHERE execution = :execution AND node = :node AND failed = 1 ORDER BY position LIMIT :limit
