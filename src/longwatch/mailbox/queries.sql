-- Queries of `sql.py` that are the same on every database.

-- name: queue
-- Insert a mailbox, or store the budgets that are not null with it. Returns its queue number and
-- budgets.
INSERT INTO longwatch_mailboxes (name, max_failures, max_crashes, max_lost)
VALUES (:name, :max_failures, :max_crashes, :max_lost)
ON CONFLICT (name) DO UPDATE SET
    max_failures = coalesce(excluded.max_failures, longwatch_mailboxes.max_failures),
    max_crashes = coalesce(excluded.max_crashes, longwatch_mailboxes.max_crashes),
    max_lost = coalesce(excluded.max_lost, longwatch_mailboxes.max_lost)
RETURNING queue, max_failures, max_crashes, max_lost

-- name: insert_queue
-- Insert a mailbox, unless another transaction has inserted it meanwhile. Returns its queue number
-- and budgets.
INSERT INTO longwatch_mailboxes (name, max_failures, max_crashes, max_lost)
VALUES (:name, :max_failures, :max_crashes, :max_lost)
ON CONFLICT (name) DO NOTHING
RETURNING queue, max_failures, max_crashes, max_lost

-- name: find_queue
-- The queue number and the budgets of a mailbox, if it exists.
SELECT queue, max_failures, max_crashes, max_lost FROM longwatch_mailboxes WHERE name = :name

-- name: mailbox_name
-- The name of a mailbox by its queue number.
SELECT name FROM longwatch_mailboxes WHERE queue = :queue

-- name: pause
-- Pause or resume claims from a mailbox.
UPDATE longwatch_mailboxes SET paused = :paused WHERE queue = :queue

-- name: find_by_dedupe_key
-- The message that has a dedupe key.
SELECT id FROM longwatch_messages WHERE queue = :queue AND dedupe_key = :dedupe_key

-- name: find_expired
-- Messages of a queue that have expired and are not leased.
SELECT seq, keep_expired, id FROM longwatch_messages
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
    body, lost, traceback, seq, headers
FROM longwatch_dead_letters WHERE queue = :queue AND seq > :after ORDER BY seq LIMIT :limit

-- name: find_dead_letter
-- One dead letter by its message id.
SELECT id, reason, error, died_at, enqueued_at, deliveries, failures, crashes, releases, reply_to,
    body, lost, traceback, seq, headers
FROM longwatch_dead_letters WHERE queue = :queue AND id = :id

-- name: drop_dead_letter
-- Delete a dead letter.
DELETE FROM longwatch_dead_letters WHERE queue = :queue AND id = :id

-- name: mailbox_names
-- The names of all mailboxes.
SELECT name FROM longwatch_mailboxes ORDER BY name

-- name: stats_of_mailboxes
-- The statistics of mailboxes by name, as `stats` has them for one.
SELECT name, (
        SELECT count(*) FROM longwatch_messages AS message
        WHERE message.queue = mailbox.queue AND lease_state = 0
    ), (
        SELECT count(*) FROM longwatch_messages AS message
        WHERE message.queue = mailbox.queue AND lease_state = 1
    ), (
        SELECT count(*) FROM longwatch_messages AS message
        WHERE message.queue = mailbox.queue AND lease_state = 2
    ), (SELECT count(*) FROM longwatch_dead_letters AS dead WHERE dead.queue = mailbox.queue), (
        SELECT :wall_now - enqueued_at FROM longwatch_messages AS message
        WHERE message.queue = mailbox.queue AND lease_state = 0 ORDER BY seq LIMIT 1
    ), paused, expired
FROM longwatch_mailboxes AS mailbox ORDER BY name LIMIT :limit
