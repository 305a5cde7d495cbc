-- Queries of `many_mailboxes.py` for PostgreSQL, under READ COMMITTED.

-- name: lock
-- Lock these mailboxes in the order of the array: no other transaction counts or claims their
-- messages until this one ends. The keys are negative and those of `lock_size` are not, so a long
-- transaction that sends does not delay a claim.
SELECT pg_advisory_xact_lock(-1 - queue) FROM unnest(:queues::int8[]) AS wanted (queue)
