-- What `claims.py` asks of PostgreSQL, under READ COMMITTED. Nobody waits for anybody: rows that another transaction has locked
-- are passed over, for whoever locked them is about to take them, free them or end them. Where rows have to be locked, they are in
-- the order of seq, so that two that meet do not block each other for good.

-- name: claim
-- Lease the oldest free rows: those before the first that has crashed, or that one alone; none while a delayed one is due,
-- unless it is just being freed. They come back in no order, each with whether the owner is entered.
WITH due AS MATERIALIZED (
    SELECT 1 FROM {table} WHERE lane = :lane AND held = 1 AND ready_at <= :wall_now LIMIT 1 FOR UPDATE SKIP LOCKED
), line AS MATERIALIZED (
    SELECT seq, crashes FROM {table} WHERE lane = :lane AND held = 0 AND {gate} AND NOT EXISTS (SELECT 1 FROM due)
    ORDER BY seq LIMIT :limit FOR UPDATE SKIP LOCKED
)
UPDATE {table} SET held = 2, owner = :owner, term = {next_term},
    {leased}, deliveries = deliveries + 1
WHERE seq = ANY (ARRAY(
    SELECT seq FROM line
    WHERE seq = (SELECT min(seq) FROM line) OR seq < coalesce((SELECT min(seq) FROM line WHERE crashes > 0), 9223372036854775807)
))
RETURNING {columns}, EXISTS (SELECT 1 FROM longwatch_owners WHERE longwatch_owners.owner = :owner)

-- name: renew
-- Prolong every lease of an owner but those to skip; never shortens one. A row that is locked is passed over: its owner is
-- settling it in a transaction that may take long, which nobody else ends meanwhile, and the others must not wait for it.
UPDATE {table} SET {renewed} WHERE seq = ANY (ARRAY(
    SELECT seq FROM {table} WHERE held = 2 AND owner = :owner AND seq <> ALL (:skip::int8[]) FOR UPDATE SKIP LOCKED
))

-- name: renew_one
-- Prolong one lease; changes nothing unless row, owner and term match.
UPDATE {table} SET {renewed}
WHERE seq = :seq AND held = 2 AND owner = :owner AND term = :term

-- name: settle
-- The work is done: the rows go, those that are still their claimants'. They are found by their numbers, and by nothing else:
-- the rest is written so that no plan looks for them among all that their owner holds.
DELETE FROM {table} WHERE seq = ANY (:seqs::int8[]) AND held > 1 AND held < 3
    AND ((seq, owner, term) IN (SELECT * FROM unnest(:seqs::int8[], :owners::int8[], :terms::int8[]))) IS TRUE
RETURNING seq, owner, term

-- name: release
-- Give rows back, at once or after a delay, and count why. They are told as they were: an update returns the owner that it
-- wrote, none.
WITH theirs AS MATERIALIZED (
    SELECT seq, owner, term FROM {table} WHERE seq = ANY (:seqs::int8[]) AND held > 1 AND held < 3
        AND ((seq, owner, term) IN (SELECT * FROM unnest(:seqs::int8[], :owners::int8[], :terms::int8[]))) IS TRUE
    ORDER BY seq FOR UPDATE
), given_back AS (
    UPDATE {table} SET held = CASE WHEN :delay::float8 > 0 THEN 1 ELSE 0 END,
        ready_at = CASE WHEN :delay::float8 > 0 THEN :wall_now + :delay::float8 ELSE 0 END, owner = NULL, {freed},
        failures = failures + :failures, crashes = crashes + :crashes, releases = releases + :releases,
        error = coalesce(:error, error)
    WHERE seq = ANY (ARRAY(SELECT seq FROM theirs))
)
SELECT seq, owner, term FROM theirs

-- name: due
-- Delayed rows whose time has come, no more at once than can be done in the time of a call.
UPDATE {table} SET held = 0 WHERE seq = ANY (ARRAY(
    SELECT seq FROM {table} WHERE held = 1 AND lane = :lane AND ready_at <= :wall_now LIMIT 100000 FOR UPDATE SKIP LOCKED
))

-- name: lapsed
-- Leases that have ended, as they are seen: a read. The server's clock judges them, so no boot of another machine counts. One whose
-- owner was forgotten while it claimed has a page that cannot be read, which blames nobody.
SELECT seq, term, lane, leased.owner, coalesce(incarnation, ''), CASE WHEN longwatch_owners.owner IS NULL THEN '' ELSE page END
FROM {table} AS leased LEFT JOIN longwatch_owners ON longwatch_owners.owner = leased.owner
WHERE held = 2 AND {lapsed} LIMIT :limit

-- name: lapsed_for_release
-- The same, and nobody renews them until they are released.
SELECT seq, term, lane, leased.owner, coalesce(incarnation, ''), CASE WHEN longwatch_owners.owner IS NULL THEN '' ELSE page END
FROM {table} AS leased LEFT JOIN longwatch_owners ON longwatch_owners.owner = leased.owner
WHERE held = 2 AND {lapsed} LIMIT :limit FOR UPDATE OF leased SKIP LOCKED

-- name: owners
-- The owners of leases in this table whose end can be seen from here, because they are of this boot, and those that entered long
-- ago; with the seconds since, and whether it holds any.
SELECT owner, incarnation, page, :wall_now - entered_at,
    EXISTS (SELECT 1 FROM {table} WHERE held = 2 AND {table}.owner = longwatch_owners.owner)
FROM longwatch_owners WHERE claims = '{table}' AND (boot = :boot OR entered_at < :wall_now - :long::float8)

-- name: held_by_for_release
-- The same, but for those that another sweeper is about to release.
SELECT seq, term, lane FROM {table} WHERE held = 2 AND owner = :owner LIMIT :limit FOR UPDATE SKIP LOCKED

-- name: register
-- Enter an owner; one that is there stays as it is.
INSERT INTO longwatch_owners (owner, incarnation, boot, page, claims, entered_at)
VALUES (:owner, :incarnation, :boot, :page, '{table}', :wall_now) ON CONFLICT DO NOTHING

-- name: forget
-- Strike an owner off, unless it holds something: another sweeper may not have given it back yet.
DELETE FROM longwatch_owners WHERE owner = :owner AND NOT EXISTS (SELECT 1 FROM {table} WHERE held = 2 AND {table}.owner = :owner)
