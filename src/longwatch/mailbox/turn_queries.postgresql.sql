-- Queries of `sql_turn_sweeper.py` for PostgreSQL: the only SQL database that many machines share.

-- name: look_at_queues
-- The mailboxes among :queues that are not paused, each with whether a message of the selection is
-- free, and the seconds until its next delayed message is due; null if none is delayed. Reads no
-- free message below the bound in :lows (`scan_bound`).
SELECT mailbox.name, EXISTS (
    SELECT 1 FROM longwatch_messages AS message
    WHERE message.queue = mailbox.queue AND lease_state = 0 AND seq >= led.low AND {selected}
), (
    SELECT min(ready_at) FROM longwatch_messages AS message
    WHERE message.queue = mailbox.queue AND lease_state = 1 AND ready_at > :wall_now
) - :wall_now
FROM unnest(:queues::int8[], :lows::int8[]) AS led (queue, low)
JOIN longwatch_mailboxes AS mailbox ON mailbox.queue = led.queue
WHERE paused = 0

-- name: delete_old_dead_letters_of_queues
-- Delete a batch of dead letters of :queues that are older than the retention of their queue. Skips
-- those that another engine deletes at the same time.
DELETE FROM longwatch_dead_letters WHERE seq = ANY (ARRAY(
    SELECT dead.seq
    FROM unnest(:queues::int8[], :retentions::float8[]) AS wanted (queue, retention)
    JOIN longwatch_dead_letters AS dead
        ON dead.queue = wanted.queue AND dead.died_at < :wall_now - wanted.retention
    LIMIT :limit FOR UPDATE OF dead SKIP LOCKED
))
