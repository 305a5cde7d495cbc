-- Fair blame: the counter `lost`, the limits of a mailbox, facts of an owner, tracebacks.

ALTER TABLE longwatch_owners
    ADD COLUMN parent text,  -- incarnation of the process that supervises the owner; null: none
    ADD COLUMN draining smallint NOT NULL DEFAULT 0,  -- 1: the owner has reported that it drains
    ADD COLUMN renew_seconds double precision;  -- time between renewals; null: it does not renew

-- Null: no process has set this limit, and the default holds.
ALTER TABLE longwatch_mailboxes
    ADD COLUMN max_failures integer,
    ADD COLUMN max_crashes integer,
    ADD COLUMN max_lost integer;

ALTER TABLE longwatch_messages
    ADD COLUMN lost integer NOT NULL DEFAULT 0,
    ADD COLUMN traceback text;  -- of the last failure
-- The free messages that may be suspects.
CREATE INDEX longwatch_messages_blamed ON longwatch_messages (queue, seq)
    WHERE lease_state = 0 AND crashes + lost > 0;

ALTER TABLE longwatch_dead_letters
    ADD COLUMN lost integer NOT NULL DEFAULT 0,
    ADD COLUMN traceback text;

ALTER TABLE longwatch_values
    ADD COLUMN lost integer NOT NULL DEFAULT 0,  -- how many attempts ended with their host
    ADD COLUMN traceback text;  -- of the last failed attempt

ALTER TABLE longwatch_computations
    ADD COLUMN lost integer NOT NULL DEFAULT 0,
    ADD COLUMN traceback text;
CREATE INDEX longwatch_computations_blamed ON longwatch_computations (queue, seq)
    WHERE lease_state = 0 AND crashes + lost > 0;
