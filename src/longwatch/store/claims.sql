-- What `claims.py` asks of every engine in the same words.

-- name: next_due
-- Seconds until the next delayed row of a lane is due; null if none is delayed.
SELECT min(ready_at) - :wall_now FROM {table} WHERE held = 1 AND lane = :lane

-- name: owners
-- Every owner of leases in this table, with the seconds since it entered and whether it holds any.
SELECT owner, incarnation, page, :wall_now - entered_at,
    EXISTS (SELECT 1 FROM {table} WHERE held = 2 AND {table}.owner = longwatch_owners.owner)
FROM longwatch_owners WHERE claims = '{table}'

-- name: held_by
-- The leases of one owner, as many as asked for.
SELECT seq, term, lane FROM {table} WHERE held = 2 AND owner = :owner LIMIT :limit
