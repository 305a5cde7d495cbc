-- Queries of `claims.py` for PostgreSQL, under READ COMMITTED. Most skip rows that another
-- transaction has locked: that transaction is about to claim, free or settle them. A query that
-- must lock its rows locks them in the order of seq, so that two transactions do not deadlock.

-- name: claim
-- Lease the oldest free rows of the selection: the rows before the first suspect, or that suspect
-- alone. Finds nothing while a delayed row is due, unless another transaction is freeing that row.
-- Reads no row below :low and :due_low (`scan_bound`). Returns rows in no order. The last column
-- says whether the owner is registered.
WITH due AS MATERIALIZED (
    SELECT 1 FROM {table} WHERE queue = :queue AND lease_state = 1
        AND ready_at >= least(:due_low::float8, :wall_now - :margin::float8) AND ready_at <= :wall_now
    LIMIT 1 FOR UPDATE SKIP LOCKED
), candidates AS MATERIALIZED (
    SELECT seq, {is_suspect} AS is_suspect FROM {table}
    WHERE queue = :queue AND lease_state = 0 AND seq >= :low AND {selected} AND {claim_condition}
        AND NOT EXISTS (SELECT 1 FROM due)
    ORDER BY seq LIMIT :limit FOR UPDATE SKIP LOCKED
)
UPDATE {table} SET lease_state = 2, owner = :owner, term = {next_term},
    {on_claim}, deliveries = deliveries + 1
WHERE seq = ANY (ARRAY(
    SELECT seq FROM candidates
    WHERE seq = (SELECT min(seq) FROM candidates)
        OR seq < coalesce((SELECT min(seq) FROM candidates WHERE is_suspect), 9223372036854775807)
))
RETURNING {columns}, EXISTS (SELECT 1 FROM longwatch_owners WHERE longwatch_owners.owner = :owner)

-- name: lowest_live
-- A number below which no row of a queue is free, delayed or leased, of at most :highest, with the
-- transaction numbers of the snapshot, and a time before which no row is due (`scan_bound`). Reads
-- at most 10,000 rows: behind them the next measurement continues. The scans end at the first row
-- that they look for.
WITH walked AS MATERIALIZED (
    SELECT seq, queue = :queue AND lease_state BETWEEN 0 AND 2 AS is_live FROM {table}
    WHERE seq >= :low AND seq < :highest ORDER BY seq LIMIT 10000
)
SELECT coalesce(
    (SELECT seq FROM walked WHERE is_live LIMIT 1), (SELECT seq FROM walked OFFSET 9999), :highest
), pg_snapshot_xmin(pg_current_snapshot())::text::int8,
    pg_snapshot_xmax(pg_current_snapshot())::text::int8, least(:wall_now, (
        SELECT min(ready_at) FROM {table}
        WHERE queue = :queue AND lease_state = 1 AND ready_at >= :due_low::float8
    )) - :margin::float8

-- name: renew
-- Extend every lease of an owner except those in :skip; never shortens a lease. A locked row is
-- skipped: its owner is settling it in a transaction that may take long. No other process can
-- reclaim that row meanwhile, and the other leases must not wait for it.
UPDATE {table} SET {on_renew} WHERE seq = ANY (ARRAY(
    SELECT seq FROM {table} WHERE lease_state = 2 AND owner = :owner AND seq <> ALL (:skip::int8[])
    FOR UPDATE SKIP LOCKED
))

-- name: renew_one
-- Extend one lease; changes nothing unless row, owner and term match.
UPDATE {table} SET {on_renew}
WHERE seq = :seq AND lease_state = 2 AND owner = :owner AND term = :term

-- name: settle
-- Delete the rows whose claims still match. The conditions are written so that every plan finds
-- the rows by seq, and none searches all leases of the owner.
DELETE FROM {table} WHERE seq = ANY (:seqs::int8[]) AND lease_state > 1 AND lease_state < 3
    AND ((seq, owner, term) IN (
        SELECT * FROM unnest(:seqs::int8[], :owners::int8[], :terms::int8[])
    )) IS TRUE
RETURNING seq, owner, term

-- name: release
-- Release rows, at once or after a delay, and raise the counter of the reason. Returns the claims
-- as they were: an UPDATE would return the owner that it wrote, which is null.
WITH matching AS MATERIALIZED (
    SELECT seq, owner, term FROM {table}
    WHERE seq = ANY (:seqs::int8[]) AND lease_state > 1 AND lease_state < 3
        AND ((seq, owner, term) IN (
            SELECT * FROM unnest(:seqs::int8[], :owners::int8[], :terms::int8[])
        )) IS TRUE
    ORDER BY seq FOR UPDATE
), released AS (
    UPDATE {table} SET lease_state = CASE WHEN :delay::float8 > 0 THEN 1 ELSE 0 END,
        ready_at = CASE WHEN :delay::float8 > 0 THEN :wall_now + :delay::float8 ELSE 0 END,
        owner = NULL, {on_release}, failures = failures + :failures,
        crashes = crashes + :crashes, lost = lost + :lost, releases = releases + :releases,
        error = coalesce(:error, error), traceback = coalesce(:traceback, traceback)
    WHERE seq = ANY (ARRAY(SELECT seq FROM matching))
)
SELECT seq, owner, term FROM matching

-- name: promote_due
-- Free the delayed rows that are due, from :due_low on (`scan_bound`). The limit keeps the statement
-- within the time of one call.
UPDATE {table} SET lease_state = 0 WHERE seq = ANY (ARRAY(
    SELECT seq FROM {table} WHERE lease_state = 1 AND queue = :queue
        AND ready_at >= least(:due_low::float8, :wall_now - :margin::float8) AND ready_at <= :wall_now
    LIMIT 100000 FOR UPDATE SKIP LOCKED
))

-- name: lapsed_owners
-- The owners of leases that have ended. Locks nothing. The server's clock decides, so the boot of
-- the owner's machine does not matter. An owner whose row was deleted during the claim counts as
-- draining, which blames no row.
SELECT leased.owner, coalesce(incarnation, ''),
    CASE WHEN longwatch_owners.owner IS NULL THEN '' ELSE page END, parent,
    coalesce(draining, 1), renew_seconds
FROM (SELECT DISTINCT owner FROM {table} WHERE lease_state = 2 AND {lapsed}) AS leased
LEFT JOIN longwatch_owners ON longwatch_owners.owner = leased.owner

-- name: lapsed_of
-- The ended leases of some owners, up to :limit. The rows are locked, so that no owner renews a
-- lease before it is released.
SELECT seq, term, queue, owner FROM {table}
WHERE lease_state = 2 AND owner = ANY (:owners::int8[]) AND {lapsed}
LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: owners
-- The owners of leases in this table that were registered in this boot, whose end this process can
-- see, or long ago. With the seconds since registration and whether each holds a lease.
SELECT owner, incarnation, page, parent, draining, renew_seconds, :wall_now - registered_at,
    EXISTS (SELECT 1 FROM {table} WHERE lease_state = 2 AND {table}.owner = longwatch_owners.owner)
FROM longwatch_owners
WHERE table_name = '{table}'
    AND (boot = :boot OR registered_at < :wall_now - :retention::float8)

-- name: of_owner_for_update
-- `of_owner` with the rows locked. Skips rows that another sweeper is about to release.
SELECT seq, term, queue FROM {table}
WHERE lease_state = 2 AND owner = :owner LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: insert_owner
-- Register an owner. Does nothing if it is registered already.
INSERT INTO longwatch_owners (owner, incarnation, boot, page, parent, draining, renew_seconds,
    table_name, registered_at)
VALUES (:owner, :incarnation, :boot, :page, :parent, :draining, :renew_seconds, '{table}',
    :wall_now) ON CONFLICT DO NOTHING

-- name: delete_owner
-- Delete an owner unless it holds a lease: another sweeper may still have to release its rows.
DELETE FROM longwatch_owners WHERE owner = :owner
    AND NOT EXISTS (SELECT 1 FROM {table} WHERE lease_state = 2 AND {table}.owner = :owner)
