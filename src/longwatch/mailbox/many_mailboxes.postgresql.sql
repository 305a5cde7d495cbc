-- Queries of `many_mailboxes.py` for PostgreSQL, under READ COMMITTED.

-- name: lock
-- Let no other transaction count and claim messages of these mailboxes until this one ends. They
-- are locked in the order of the array. The keys of `lock_size` are not negative, so a long
-- transaction that sends does not delay a claim.
SELECT pg_advisory_xact_lock(-1 - queue) FROM unnest(:queues::int8[]) AS wanted (queue)
