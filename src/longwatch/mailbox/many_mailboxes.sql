-- Queries of `many_mailboxes.py`, the same on every database. A condition `among_…` tests that a number is in
-- an array parameter.

-- name: claimable
-- The mailboxes from which messages of the selection can be claimed: not paused, fewer than
-- :max_running leased, and a message of the selection is free or any delayed message is due.
-- With each mailbox the free and the due messages, counted up to :limit, and the leased ones.
WITH waiting AS MATERIALIZED (
    SELECT mailbox.queue, (
        SELECT count(*) FROM (
            SELECT 1 FROM longwatch_messages AS message
            WHERE message.queue = mailbox.queue AND lease_state = 0 AND {selected} LIMIT :limit
        ) AS found
    ) AS free, (
        SELECT count(*) FROM (
            SELECT 1 FROM longwatch_messages AS message
            WHERE message.queue = mailbox.queue AND lease_state = 1 AND ready_at <= :wall_now
            LIMIT :limit
        ) AS found
    ) AS due
    FROM longwatch_mailboxes AS mailbox WHERE mailbox.queue {among_queues} AND paused = 0
), running AS MATERIALIZED (
    SELECT queue, count(*) AS leased FROM longwatch_messages
    WHERE lease_state = 2 AND queue IN (SELECT queue FROM waiting WHERE free + due > 0)
    GROUP BY queue
)
SELECT waiting.queue, free, due, coalesce(leased, 0)
FROM waiting LEFT JOIN running ON running.queue = waiting.queue
WHERE free + due > 0 AND coalesce(leased, 0) < :max_running

-- name: next_due
-- Seconds until the next delayed message of these mailboxes is due; null if none is delayed.
SELECT min(due) - :wall_now FROM (
    SELECT (
        SELECT min(ready_at) FROM longwatch_messages AS message
        WHERE message.queue = mailbox.queue AND lease_state = 1
    ) AS due
    FROM longwatch_mailboxes AS mailbox WHERE mailbox.queue {among_queues} AND paused = 0
) AS delayed

-- name: names_of_messages
-- The names of the mailboxes of these messages.
SELECT DISTINCT name FROM longwatch_messages AS message
JOIN longwatch_mailboxes AS mailbox ON mailbox.queue = message.queue
WHERE seq {among_seqs}
