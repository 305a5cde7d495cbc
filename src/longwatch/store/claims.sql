-- Queries of `claims.py` that are the same on every database.

-- name: next_due
-- Seconds until the next delayed row of a queue is due; null if none is delayed.
SELECT min(ready_at) - :wall_now FROM {table} WHERE lease_state = 1 AND queue = :queue

-- name: owners
-- Every owner of leases in this table, with the seconds since its registration and whether it holds
-- a lease.
SELECT owner, incarnation, page, parent, draining, renew_seconds, :wall_now - registered_at,
    EXISTS (SELECT 1 FROM {table} WHERE lease_state = 2 AND {table}.owner = longwatch_owners.owner)
FROM longwatch_owners WHERE table_name = '{table}'

-- name: of_owner
-- The leases of one owner, up to :limit.
SELECT seq, term, queue FROM {table} WHERE lease_state = 2 AND owner = :owner LIMIT :limit

-- name: has_selected
-- Whether any row of the selection is free.
SELECT 1 FROM {table} WHERE queue = :queue AND lease_state = 0 AND {selected} LIMIT 1

-- name: count_renewing
-- How many owners that renew hold leases in this table.
SELECT count(*) FROM longwatch_owners WHERE table_name = '{table}' AND renew_seconds IS NOT NULL
    AND EXISTS (
        SELECT 1 FROM {table} WHERE lease_state = 2 AND {table}.owner = longwatch_owners.owner
    )

-- name: suspects
-- Free suspects of a queue, up to :limit. `crashes + lost > 0` selects a small partial index.
SELECT seq FROM {table}
WHERE queue = :queue AND lease_state = 0 AND crashes + lost > 0 AND {is_suspect} LIMIT :limit

-- name: set_draining
-- Record whether an owner drains.
UPDATE longwatch_owners SET draining = :draining WHERE owner = :owner
