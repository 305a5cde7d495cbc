-- Statements for the elements of maps, for SQLite.

-- name: valid_elements
-- The elements of those of these claims that still hold.
SELECT seq, owner, c.term, c.execution, c.node, attempt, queue, heartbeat_timeout, abandon_after, max_attempts, c.computed_with,
    m.element, m.failed_attempts, m.crashes, m.lost, m.error, m.traceback
FROM json_each(:claims) AS claim JOIN longwatch_computations AS c ON seq = json_extract(claim.value, '$[0]')
    JOIN longwatch_map_elements AS m ON m.element = c.element
WHERE lease_state = 2 AND owner = json_extract(claim.value, '$[1]') AND c.term = json_extract(claim.value, '$[2]')
