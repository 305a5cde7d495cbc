-- Lease owners, mailboxes, messages and dead letters.

CREATE TABLE longwatch_owners (
    -- Random: a number never means another owner, not even after an older file was restored.
    owner INTEGER PRIMARY KEY,
    incarnation TEXT NOT NULL UNIQUE,
    boot TEXT NOT NULL,
    page TEXT,  -- path of the beat page; null for an owner without one
    table_name TEXT NOT NULL,  -- the table whose rows the owner leases
    registered_at REAL NOT NULL
);

CREATE TABLE longwatch_mailboxes (
    queue INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    paused INTEGER NOT NULL DEFAULT 0,
    expired INTEGER NOT NULL DEFAULT 0  -- how many messages expired before a claim
);

CREATE TABLE longwatch_messages (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    queue INTEGER NOT NULL REFERENCES longwatch_mailboxes,
    lease_state INTEGER NOT NULL DEFAULT 0,  -- 0 free, 1 delayed, 2 leased
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
CREATE INDEX longwatch_messages_free ON longwatch_messages (queue, seq) WHERE lease_state = 0;
CREATE INDEX longwatch_messages_delayed ON longwatch_messages (queue, ready_at)
    WHERE lease_state = 1;
CREATE INDEX longwatch_messages_leased ON longwatch_messages (owner) WHERE lease_state = 2;
CREATE INDEX longwatch_messages_expiring ON longwatch_messages (queue, expires_at)
    WHERE expires_at IS NOT NULL;
CREATE UNIQUE INDEX longwatch_messages_dedupe ON longwatch_messages (queue, dedupe_key)
    WHERE dedupe_key IS NOT NULL;

CREATE TABLE longwatch_dead_letters (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    queue INTEGER NOT NULL REFERENCES longwatch_mailboxes,
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
CREATE INDEX longwatch_dead_letters_by_queue ON longwatch_dead_letters (queue, seq);
CREATE INDEX longwatch_dead_letters_by_age ON longwatch_dead_letters (died_at);

-- The records that a supervisor keeps of its programs.
CREATE TABLE longwatch_programs (
    name TEXT PRIMARY KEY,
    record TEXT NOT NULL,
    updated_at REAL NOT NULL
) WITHOUT ROWID;

-- Graphs: executions, node values, and one row for each attempt to compute a value.
-- Every step of an execution writes here, and every page it writes costs time. So these tables have
-- few indexes, and their row numbers are not AUTOINCREMENT, which would write one more page.

CREATE TABLE longwatch_graph_queues (
    queue INTEGER PRIMARY KEY,
    graph TEXT NOT NULL,
    version TEXT NOT NULL,
    -- A node with a max_running of its own has a queue of its own; '' is the queue of all others.
    node TEXT NOT NULL,
    -- How many rows of this node, or of the graph for '', may run at the same time; null: no limit.
    max_running INTEGER,
    UNIQUE (graph, version, node)
);

CREATE TABLE longwatch_executions (
    execution INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    graph TEXT NOT NULL,
    version TEXT NOT NULL,
    idempotency_key TEXT,
    revision INTEGER NOT NULL DEFAULT 0,
    changes INTEGER NOT NULL DEFAULT 0,  -- raised by every change of the execution or its attempts
    cancelled INTEGER NOT NULL DEFAULT 0,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL
);
CREATE UNIQUE INDEX longwatch_executions_key ON longwatch_executions (graph, idempotency_key)
    WHERE idempotency_key IS NOT NULL;

CREATE TABLE longwatch_values (
    execution INTEGER NOT NULL,
    node TEXT NOT NULL,
    is_set INTEGER NOT NULL DEFAULT 0,
    value TEXT,  -- JSON; SQL null means no value, the text 'null' is a value
    revision INTEGER NOT NULL DEFAULT 0,  -- the execution's revision when the value changed
    computed_with TEXT,  -- the revisions of the inputs of this value
    attempted_with TEXT,  -- the revisions of the inputs of the last failed attempts
    failed_attempts INTEGER NOT NULL DEFAULT 0,  -- how many attempts failed with those inputs
    crashes INTEGER NOT NULL DEFAULT 0,  -- how many of them ended because their process died
    failed INTEGER NOT NULL DEFAULT 0,  -- 1: no further attempt with those inputs
    error TEXT,  -- the error of the last failed attempt
    term INTEGER NOT NULL DEFAULT 0,  -- the highest term of ended attempts; new ones start above
    changed_at REAL NOT NULL,
    PRIMARY KEY (execution, node)
) WITHOUT ROWID;
CREATE INDEX longwatch_values_failed ON longwatch_values (execution) WHERE failed = 1;

CREATE TABLE longwatch_computations (
    seq INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    lease_state INTEGER NOT NULL DEFAULT 0,  -- 0 free, 1 delayed, 2 leased, 3 ended
    ready_at REAL NOT NULL DEFAULT 0,
    owner INTEGER,
    term INTEGER NOT NULL DEFAULT 0,
    deliveries INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    releases INTEGER NOT NULL DEFAULT 0,
    execution INTEGER NOT NULL,
    node TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'not_set',
    attempt INTEGER NOT NULL,
    computed_with TEXT NOT NULL,
    heartbeat_timeout REAL,
    abandon_after REAL NOT NULL,
    max_attempts INTEGER NOT NULL,
    last_heartbeat_at REAL,  -- wall time
    heartbeat_deadline REAL,  -- lease clock; null: no heartbeat expected
    deadline REAL,  -- lease clock
    created_at REAL NOT NULL,
    started_at REAL,
    ended_at REAL,
    end_cause TEXT,
    error TEXT
);
CREATE INDEX longwatch_computations_free ON longwatch_computations (queue, seq)
    WHERE lease_state = 0;
CREATE INDEX longwatch_computations_delayed ON longwatch_computations (queue, ready_at)
    WHERE lease_state = 1;
CREATE INDEX longwatch_computations_leased ON longwatch_computations (owner) WHERE lease_state = 2;
CREATE INDEX longwatch_computations_by_execution ON longwatch_computations (execution, lease_state);

CREATE TABLE longwatch_sweeps (
    sweep TEXT PRIMARY KEY,
    started_at REAL NOT NULL,
    position INTEGER NOT NULL DEFAULT 0  -- where the next run of the sweep continues
) WITHOUT ROWID;

CREATE TABLE longwatch_sweep_runs (
    run INTEGER PRIMARY KEY AUTOINCREMENT,
    sweep TEXT NOT NULL,
    started_at REAL NOT NULL,
    seconds REAL NOT NULL,
    row_count INTEGER NOT NULL,
    error TEXT
);
