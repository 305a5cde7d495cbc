-- Queries of `sweep_turns.py` for PostgreSQL. A turn is a row of longwatch_sweeps.

-- name: find_turns
-- The holders of turns, and the seconds until each turn ends.
SELECT sweep, holder, held_until - :lease_now FROM longwatch_sweeps
WHERE sweep = ANY (:sweeps::text[])

-- name: insert_turns
-- Insert turns that no engine has ever had.
INSERT INTO longwatch_sweeps (sweep, started_at) SELECT unnest(:sweeps::text[]), 0
ON CONFLICT DO NOTHING

-- name: take_turns
-- Take turns, or extend them: those without a holder, of this holder, of holders that have ended,
-- and those that have ended themselves or end later than a turn can. Skips locked rows.
UPDATE longwatch_sweeps SET holder = :holder, held_until = :lease_now + :seconds::float8
WHERE sweep = ANY (ARRAY(
    SELECT sweep FROM longwatch_sweeps
    WHERE sweep = ANY (:sweeps::text[]) AND (
        holder IS NULL OR holder = :holder OR holder = ANY (:ended::text[])
        OR held_until <= :lease_now OR held_until > :lease_now + 2 * :seconds::float8
    )
    ORDER BY sweep FOR UPDATE SKIP LOCKED
)) RETURNING sweep

-- name: release_turns
-- Give turns up.
UPDATE longwatch_sweeps SET holder = NULL, held_until = NULL
WHERE sweep = ANY (:sweeps::text[]) AND holder = :holder
