-- The runner: event sources, stream events, agent runs.

-- One row for each event source. The runner that connects to it leases the row. `queue` is `seq`.
CREATE TABLE longwatch_runner_sources (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    queue INTEGER NOT NULL,
    lease_state INTEGER NOT NULL DEFAULT 0,
    ready_at REAL NOT NULL DEFAULT 0,
    owner INTEGER,
    term INTEGER NOT NULL DEFAULT 0,
    lease_until REAL,
    deliveries INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    lost INTEGER NOT NULL DEFAULT 0,
    releases INTEGER NOT NULL DEFAULT 0,
    error TEXT,
    traceback TEXT,
    name TEXT NOT NULL UNIQUE,
    last_event_id TEXT NOT NULL DEFAULT '',
    last_event_at REAL,
    -- Shown by `longwatch runner sources`: connecting, connected, waiting, ended, standing by.
    state TEXT NOT NULL DEFAULT '',
    state_since REAL,
    reconnects INTEGER NOT NULL DEFAULT 0,
    connection_error TEXT NOT NULL DEFAULT ''
);
CREATE INDEX longwatch_runner_sources_leased ON longwatch_runner_sources (owner)
    WHERE lease_state = 2;

CREATE TABLE longwatch_runner_events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,  -- also the id of its message
    source TEXT NOT NULL,
    stream_id TEXT,  -- the id that the server sent; null: none
    data_hash BLOB NOT NULL,
    received_at REAL NOT NULL,
    severity TEXT NOT NULL,
    fault_key TEXT,  -- for duplicates inside the window; null: the event is malformed
    data TEXT NOT NULL,
    outcome TEXT,  -- run, expired, filtered, dead-lettered, dropped; null: queued or running
    reason TEXT NOT NULL DEFAULT '',
    ended_at REAL
);
-- A restarted server may use an id again, for other data.
CREATE UNIQUE INDEX longwatch_runner_events_sent ON longwatch_runner_events
    (source, stream_id, data_hash) WHERE stream_id IS NOT NULL;
CREATE INDEX longwatch_runner_events_open ON longwatch_runner_events (source, seq)
    WHERE outcome IS NULL;
CREATE INDEX longwatch_runner_events_by_age ON longwatch_runner_events (received_at);

CREATE TABLE longwatch_runner_runs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    event TEXT NOT NULL,
    source TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    owner INTEGER NOT NULL,  -- the owner of the lease under which the run works
    boot TEXT NOT NULL,
    pid INTEGER,
    pid_start INTEGER,  -- clock ticks since boot; unique together with pid and boot
    workspace TEXT NOT NULL,
    started_at REAL NOT NULL,
    ended_at REAL,
    status TEXT,  -- success, failure, timeout, cancelled; null: running
    cause TEXT,
    error TEXT,
    output TEXT,  -- the tail of its output
    artifacts TEXT,  -- JSON: a list of path and bytes
    cpu_seconds REAL,
    max_rss INTEGER,
    cancel_requested INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX longwatch_runner_runs_by_event ON longwatch_runner_runs (event);
CREATE INDEX longwatch_runner_runs_open ON longwatch_runner_runs (seq) WHERE ended_at IS NULL;
CREATE INDEX longwatch_runner_runs_by_age ON longwatch_runner_runs (started_at);
