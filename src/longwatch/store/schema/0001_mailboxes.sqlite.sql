-- Mailboxes, their messages, who holds them, and the dead.

CREATE TABLE longwatch_owners (
    owner INTEGER PRIMARY KEY,  -- a number by chance: it never stands for somebody else, not even in an older state of the file
    incarnation TEXT NOT NULL UNIQUE,
    boot TEXT NOT NULL,
    page TEXT,  -- the beat page, for owners that keep one
    claims TEXT NOT NULL,  -- the table whose rows it leases
    entered_at REAL NOT NULL
);

CREATE TABLE longwatch_mailboxes (
    lane INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    paused INTEGER NOT NULL DEFAULT 0,
    expired INTEGER NOT NULL DEFAULT 0  -- how many messages nobody took in their time
);

CREATE TABLE longwatch_messages (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    lane INTEGER NOT NULL REFERENCES longwatch_mailboxes,
    held INTEGER NOT NULL DEFAULT 0,
    ready_at REAL NOT NULL DEFAULT 0,
    owner INTEGER,
    term INTEGER NOT NULL DEFAULT 0,
    lease_until REAL,
    deliveries INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    releases INTEGER NOT NULL DEFAULT 0,
    id TEXT NOT NULL UNIQUE,
    enqueued_at REAL NOT NULL,
    expires_at REAL,
    keep_expired INTEGER NOT NULL DEFAULT 0,
    dedupe_key TEXT,
    reply_to TEXT,
    error TEXT,
    body BLOB NOT NULL
);
CREATE INDEX longwatch_messages_free ON longwatch_messages (lane, seq) WHERE held = 0;
CREATE INDEX longwatch_messages_delayed ON longwatch_messages (lane, ready_at) WHERE held = 1;
CREATE INDEX longwatch_messages_leased ON longwatch_messages (owner) WHERE held = 2;
CREATE INDEX longwatch_messages_expiring ON longwatch_messages (lane, expires_at) WHERE expires_at IS NOT NULL;
CREATE UNIQUE INDEX longwatch_messages_dedupe ON longwatch_messages (lane, dedupe_key) WHERE dedupe_key IS NOT NULL;

CREATE TABLE longwatch_dead_letters (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    lane INTEGER NOT NULL REFERENCES longwatch_mailboxes,
    id TEXT NOT NULL UNIQUE,
    reason TEXT NOT NULL,
    error TEXT,
    died_at REAL NOT NULL,
    enqueued_at REAL NOT NULL,
    deliveries INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    releases INTEGER NOT NULL,
    reply_to TEXT,
    body BLOB NOT NULL
);
CREATE INDEX longwatch_dead_letters_by_lane ON longwatch_dead_letters (lane, seq);
CREATE INDEX longwatch_dead_letters_by_age ON longwatch_dead_letters (died_at);
