-- Queries of `claims.py` that are the same on every database.

-- name: next_due
-- Seconds until the next delayed row of a queue is due; null if none is delayed.
SELECT min(ready_at) - :wall_now FROM {table} WHERE lease_state = 1 AND queue = :queue

-- name: owners
-- Every owner of leases in this table, with the seconds since its registration and whether it holds
-- a lease.
SELECT owner, incarnation, page, :wall_now - registered_at,
    EXISTS (SELECT 1 FROM {table} WHERE lease_state = 2 AND {table}.owner = longwatch_owners.owner)
FROM longwatch_owners WHERE table_name = '{table}'

-- name: of_owner
-- The leases of one owner, up to :limit.
SELECT seq, term, queue FROM {table} WHERE lease_state = 2 AND owner = :owner LIMIT :limit
