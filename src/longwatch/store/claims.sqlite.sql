-- What `claims.py` asks of SQLite. One writer at a time, so a select and the update after it see the same rows.

-- name: candidates
-- The rows that may be taken next, oldest first, with what decides whether they are.
SELECT seq, crashes FROM {table} WHERE lane = :lane AND held = 0 ORDER BY seq LIMIT :limit

-- name: take
-- Lease free rows by their numbers; they come back in no order.
UPDATE {table} SET held = 2, owner = :owner, term = term + 1, lease_until = :until, deliveries = deliveries + 1
WHERE seq IN (SELECT value FROM json_each(:rows)) AND held = 0
RETURNING {columns}

-- name: renew
-- Prolong every lease of an owner but those to skip; never shortens one.
UPDATE {table} SET lease_until = max(lease_until, :until)
WHERE held = 2 AND owner = :owner AND seq NOT IN (SELECT value FROM json_each(:skip))

-- name: renew_one
-- Prolong one lease; changes nothing unless row, owner and term match.
UPDATE {table} SET lease_until = max(lease_until, :until) WHERE seq = :seq AND held = 2 AND owner = :owner AND term = :term

-- name: settle
-- The work is done: the rows go, those that are still their claimants'. A claim is [seq, owner, term].
DELETE FROM {table} WHERE seq IN (
    SELECT seq FROM json_each(:claims) AS claim JOIN {table} ON seq = json_extract(claim.value, '$[0]')
    WHERE held = 2 AND owner = json_extract(claim.value, '$[1]') AND term = json_extract(claim.value, '$[2]')
)
RETURNING seq, owner, term

-- name: release
-- Give a row back, at once or after a delay, and count why.
UPDATE {table} SET held = CASE WHEN :ready_at > 0 THEN 1 ELSE 0 END, ready_at = :ready_at, owner = NULL, lease_until = NULL,
    failures = failures + :failures, crashes = crashes + :crashes, releases = releases + :releases, error = coalesce(:error, error)
WHERE seq = :seq AND held = 2 AND owner = :owner AND term = :term

-- name: due
-- Delayed rows whose time has come.
UPDATE {table} SET held = 0 WHERE held = 1 AND lane = :lane AND ready_at <= :wall

-- name: next_due
-- When the next delayed row of a lane is due; null if none is delayed.
SELECT min(ready_at) FROM {table} WHERE held = 1 AND lane = :lane

-- name: lapsed
-- Leases that have ended, by the clock or because they are of another boot.
SELECT seq, term, leased.owner, incarnation, page FROM {table} AS leased JOIN owners ON owners.owner = leased.owner
WHERE held = 2 AND (lease_until < :now OR boot <> :boot) LIMIT :limit

-- name: owners
-- Every owner of leases in this table, with whether it holds any.
SELECT owner, incarnation, page, entered_at, EXISTS (SELECT 1 FROM {table} WHERE held = 2 AND {table}.owner = owners.owner)
FROM owners WHERE claims = '{table}'

-- name: held_by
-- The leases of one owner, as many as asked for; -1 is all.
SELECT seq, term FROM {table} WHERE held = 2 AND owner = :owner LIMIT :limit

-- name: register
-- Enter an owner.
INSERT INTO owners (owner, incarnation, boot, page, claims, entered_at)
VALUES (:owner, :incarnation, :boot, :page, '{table}', :entered_at)

-- name: is_registered
-- Whether an owner is entered.
SELECT 1 FROM owners WHERE owner = :owner

-- name: forget
-- Strike an owner off.
DELETE FROM owners WHERE owner = :owner
