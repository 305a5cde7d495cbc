-- Queries of `claims.py` for SQLite. There is one writer at a time, so a select and the update
-- after it see the same rows.

-- name: claim
-- Lease the oldest free rows of the selection: the rows before the first suspect, or that suspect
-- alone. Finds nothing while a delayed row is due. Returns rows in no order. The last column says
-- whether the owner is registered.
WITH candidates AS MATERIALIZED (
    SELECT seq, {is_suspect} AS is_suspect FROM {table}
    WHERE queue = :queue AND lease_state = 0 AND {selected} AND {claim_condition}
        AND NOT EXISTS (
            SELECT 1 FROM {table} WHERE queue = :queue AND lease_state = 1 AND ready_at <= :wall_now
        )
    ORDER BY seq LIMIT :limit
)
UPDATE {table} SET lease_state = 2, owner = :owner, term = {next_term},
    {on_claim}, deliveries = deliveries + 1
WHERE seq IN (
    SELECT seq FROM candidates
    WHERE seq = (SELECT min(seq) FROM candidates)
        OR seq < coalesce((SELECT min(seq) FROM candidates WHERE is_suspect), 9223372036854775807)
)
RETURNING {columns}, EXISTS (SELECT 1 FROM longwatch_owners WHERE owner = :owner)

-- name: renew
-- Extend every lease of an owner except those in :skip; never shortens a lease.
UPDATE {table} SET {on_renew}
WHERE lease_state = 2 AND owner = :owner AND seq NOT IN (SELECT value FROM json_each(:skip))

-- name: renew_one
-- Extend one lease; changes nothing unless row, owner and term match.
UPDATE {table} SET {on_renew}
WHERE seq = :seq AND lease_state = 2 AND owner = :owner AND term = :term

-- name: settle
-- Delete the rows whose claims still match. A claim is [seq, owner, term].
DELETE FROM {table} WHERE seq IN (
    SELECT seq FROM json_each(:claims) AS claim
        JOIN {table} ON seq = json_extract(claim.value, '$[0]')
    WHERE lease_state = 2 AND owner = json_extract(claim.value, '$[1]')
        AND term = json_extract(claim.value, '$[2]')
)
RETURNING seq, owner, term

-- name: release
-- Release a row, at once or after a delay, and raise the counter of the reason.
UPDATE {table} SET lease_state = CASE WHEN :delay > 0 THEN 1 ELSE 0 END,
    ready_at = CASE WHEN :delay > 0 THEN :wall_now + :delay ELSE 0 END, owner = NULL, {on_release},
    failures = failures + :failures, crashes = crashes + :crashes, lost = lost + :lost,
    releases = releases + :releases, error = coalesce(:error, error),
    traceback = coalesce(:traceback, traceback)
WHERE seq = :seq AND lease_state = 2 AND owner = :owner AND term = :term

-- name: promote_due
-- Free the delayed rows that are due.
UPDATE {table} SET lease_state = 0
WHERE lease_state = 1 AND queue = :queue AND ready_at <= :wall_now

-- name: lapsed_owners
-- The owners of leases that have ended: by the clock, or because they are of another boot.
SELECT DISTINCT longwatch_owners.owner, incarnation, page, parent, draining, renew_seconds
FROM {table} AS leased JOIN longwatch_owners ON longwatch_owners.owner = leased.owner
WHERE lease_state = 2 AND ({lapsed} OR boot <> :boot)

-- name: lapsed_of
-- The ended leases of some owners, up to :limit.
SELECT seq, term, queue, leased.owner
FROM {table} AS leased JOIN longwatch_owners ON longwatch_owners.owner = leased.owner
WHERE lease_state = 2 AND leased.owner IN (SELECT value FROM json_each(:owners))
    AND ({lapsed} OR boot <> :boot) LIMIT :limit

-- name: insert_owner
-- Register an owner.
INSERT INTO longwatch_owners (owner, incarnation, boot, page, parent, draining, renew_seconds,
    table_name, registered_at)
VALUES (:owner, :incarnation, :boot, :page, :parent, :draining, :renew_seconds, '{table}',
    :wall_now)

-- name: delete_owner
-- Delete an owner.
DELETE FROM longwatch_owners WHERE owner = :owner
