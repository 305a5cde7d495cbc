-- Queries of `sql.py` that are the same on every database.

-- name: queue
-- The queue number of a mailbox; inserts a new mailbox.
INSERT INTO longwatch_mailboxes (name) VALUES (:name)
ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING queue

-- name: find_queue
-- The queue number of a mailbox, if it exists.
SELECT queue FROM longwatch_mailboxes WHERE name = :name

-- name: mailbox_name
-- The name of a mailbox by its queue number.
SELECT name FROM longwatch_mailboxes WHERE queue = :queue

-- name: pause
-- Pause or resume claims from a mailbox.
UPDATE longwatch_mailboxes SET paused = :paused WHERE queue = :queue

-- name: find_by_dedupe_key
-- The message that has a dedupe key.
SELECT id FROM longwatch_messages WHERE queue = :queue AND dedupe_key = :dedupe_key

-- name: has_ready
-- Whether any message is free.
SELECT 1 FROM longwatch_messages WHERE queue = :queue AND lease_state = 0 LIMIT 1

-- name: find_expired
-- Messages of a queue that have expired and are not leased.
SELECT seq, keep_expired FROM longwatch_messages
WHERE expires_at <= :wall_now AND queue = :queue AND lease_state <> 2 LIMIT :limit

-- name: count_expired
-- Add to the number of expired messages of a mailbox.
UPDATE longwatch_mailboxes SET expired = expired + :count WHERE name = :name

-- name: stats
-- The counts of a queue, the age of its oldest free message, and whether it is paused.
SELECT (SELECT count(*) FROM longwatch_messages WHERE queue = :queue AND lease_state = 0),
    (SELECT count(*) FROM longwatch_messages WHERE queue = :queue AND lease_state = 1),
    (SELECT count(*) FROM longwatch_messages WHERE queue = :queue AND lease_state = 2),
    (SELECT count(*) FROM longwatch_dead_letters WHERE queue = :queue),
    (
        SELECT :wall_now - enqueued_at FROM longwatch_messages
        WHERE queue = :queue AND lease_state = 0 ORDER BY seq LIMIT 1
    ), paused, expired
FROM longwatch_mailboxes WHERE queue = :queue

-- name: cancel
-- Delete a message that is not leased.
DELETE FROM longwatch_messages WHERE queue = :queue AND id = :id AND lease_state <> 2

-- name: purge
-- Delete every message that is not leased.
DELETE FROM longwatch_messages WHERE queue = :queue AND lease_state <> 2

-- name: list_dead_letters
-- A page of dead letters, oldest first.
SELECT id, reason, error, died_at, enqueued_at, deliveries, failures, crashes, releases, reply_to,
    body, lost, traceback, seq
FROM longwatch_dead_letters WHERE queue = :queue AND seq > :after ORDER BY seq LIMIT :limit

-- name: find_dead_letter
-- One dead letter by its message id.
SELECT id, reason, error, died_at, enqueued_at, deliveries, failures, crashes, releases, reply_to,
    body, lost, traceback, seq
FROM longwatch_dead_letters WHERE queue = :queue AND id = :id

-- name: drop_dead_letter
-- Delete a dead letter.
DELETE FROM longwatch_dead_letters WHERE queue = :queue AND id = :id

-- name: mailbox_names
-- The names of all mailboxes.
SELECT name FROM longwatch_mailboxes ORDER BY name
