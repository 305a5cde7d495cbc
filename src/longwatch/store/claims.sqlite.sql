-- What `claims.py` asks of SQLite. One writer at a time, so a select and the update after it see the same rows.

-- name: claim
-- Lease the oldest free rows: those before the first that has crashed, or that one alone; none while a delayed one is due. They
-- come back in no order, each with whether the owner is entered.
WITH line AS MATERIALIZED (
    SELECT seq, crashes FROM {table} WHERE lane = :lane AND held = 0 AND {gate}
        AND NOT EXISTS (SELECT 1 FROM {table} WHERE lane = :lane AND held = 1 AND ready_at <= :wall_now)
    ORDER BY seq LIMIT :limit
)
UPDATE {table} SET held = 2, owner = :owner, term = {next_term},
    {leased}, deliveries = deliveries + 1
WHERE seq IN (
    SELECT seq FROM line
    WHERE seq = (SELECT min(seq) FROM line) OR seq < coalesce((SELECT min(seq) FROM line WHERE crashes > 0), 9223372036854775807)
)
RETURNING {columns}, EXISTS (SELECT 1 FROM longwatch_owners WHERE owner = :owner)

-- name: renew
-- Prolong every lease of an owner but those to skip; never shortens one.
UPDATE {table} SET {renewed}
WHERE held = 2 AND owner = :owner AND seq NOT IN (SELECT value FROM json_each(:skip))

-- name: renew_one
-- Prolong one lease; changes nothing unless row, owner and term match.
UPDATE {table} SET {renewed}
WHERE seq = :seq AND held = 2 AND owner = :owner AND term = :term

-- name: settle
-- The work is done: the rows go, those that are still their claimants'. A claim is [seq, owner, term].
DELETE FROM {table} WHERE seq IN (
    SELECT seq FROM json_each(:claims) AS claim JOIN {table} ON seq = json_extract(claim.value, '$[0]')
    WHERE held = 2 AND owner = json_extract(claim.value, '$[1]') AND term = json_extract(claim.value, '$[2]')
)
RETURNING seq, owner, term

-- name: release
-- Give a row back, at once or after a delay, and count why.
UPDATE {table} SET held = CASE WHEN :delay > 0 THEN 1 ELSE 0 END,
    ready_at = CASE WHEN :delay > 0 THEN :wall_now + :delay ELSE 0 END, owner = NULL, {freed},
    failures = failures + :failures, crashes = crashes + :crashes, releases = releases + :releases, error = coalesce(:error, error)
WHERE seq = :seq AND held = 2 AND owner = :owner AND term = :term

-- name: due
-- Delayed rows whose time has come.
UPDATE {table} SET held = 0 WHERE held = 1 AND lane = :lane AND ready_at <= :wall_now

-- name: lapsed
-- Leases that have ended, by the clock or because they are of another boot.
SELECT seq, term, lane, leased.owner, incarnation, page
FROM {table} AS leased JOIN longwatch_owners ON longwatch_owners.owner = leased.owner
WHERE held = 2 AND ({lapsed} OR boot <> :boot) LIMIT :limit

-- name: register
-- Enter an owner.
INSERT INTO longwatch_owners (owner, incarnation, boot, page, claims, entered_at)
VALUES (:owner, :incarnation, :boot, :page, '{table}', :wall_now)

-- name: forget
-- Strike an owner off.
DELETE FROM longwatch_owners WHERE owner = :owner
