-- Queries of `sql_turn_sweeper.py` for PostgreSQL: the only SQL database that many machines share.

-- name: look_at_queues
-- The mailboxes among :queues that are not paused, each with whether a message of the selection is
-- free, and the seconds until its next delayed message is due; null if none is delayed.
SELECT mailbox.name, EXISTS (
    SELECT 1 FROM longwatch_messages AS message
    WHERE message.queue = mailbox.queue AND lease_state = 0 AND {selected}
), (
    SELECT min(ready_at) FROM longwatch_messages AS message
    WHERE message.queue = mailbox.queue AND lease_state = 1 AND ready_at > :wall_now
) - :wall_now
FROM longwatch_mailboxes AS mailbox
WHERE mailbox.queue = ANY (:queues::int8[]) AND paused = 0
