-- Fair blame: the counter `lost`, the limits of a mailbox, facts of an owner, tracebacks.

-- The incarnation of the process that supervises the owner; null: none.
ALTER TABLE longwatch_owners ADD COLUMN parent TEXT;
-- 1: the owner has reported that it drains.
ALTER TABLE longwatch_owners ADD COLUMN draining INTEGER NOT NULL DEFAULT 0;
-- The time between its renewals; null: it does not renew.
ALTER TABLE longwatch_owners ADD COLUMN renew_seconds REAL;

-- Null: no process has set this limit, and the default holds.
ALTER TABLE longwatch_mailboxes ADD COLUMN max_failures INTEGER;
ALTER TABLE longwatch_mailboxes ADD COLUMN max_crashes INTEGER;
ALTER TABLE longwatch_mailboxes ADD COLUMN max_lost INTEGER;

ALTER TABLE longwatch_messages ADD COLUMN lost INTEGER NOT NULL DEFAULT 0;
-- The traceback of the last failure.
ALTER TABLE longwatch_messages ADD COLUMN traceback TEXT;
-- The messages that may be suspects. A claim changes no column of it, so it costs claims nothing.
CREATE INDEX longwatch_messages_blamed ON longwatch_messages (queue, seq)
    WHERE crashes + lost > 0;

ALTER TABLE longwatch_dead_letters ADD COLUMN lost INTEGER NOT NULL DEFAULT 0;
ALTER TABLE longwatch_dead_letters ADD COLUMN traceback TEXT;

-- How many attempts ended with their host, and the traceback of the last failed attempt.
ALTER TABLE longwatch_values ADD COLUMN lost INTEGER NOT NULL DEFAULT 0;
ALTER TABLE longwatch_values ADD COLUMN traceback TEXT;

ALTER TABLE longwatch_computations ADD COLUMN lost INTEGER NOT NULL DEFAULT 0;
ALTER TABLE longwatch_computations ADD COLUMN traceback TEXT;
CREATE INDEX longwatch_computations_blamed ON longwatch_computations (queue, seq)
    WHERE crashes + lost > 0;
