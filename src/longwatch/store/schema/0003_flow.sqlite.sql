-- Graphs, their executions, the values of their nodes, and every attempt to compute one. Every step of an execution writes here, and
-- every page it writes to costs: so there are few indexes, and no numbers that are kept apart.

CREATE TABLE longwatch_lanes (
    lane INTEGER PRIMARY KEY,
    graph TEXT NOT NULL,
    version TEXT NOT NULL,
    node TEXT NOT NULL,  -- one that has a line of its own, because it has a cap of its own; '' for all others
    most INTEGER,  -- how many may be computed at the same time: of this node, or of the whole graph; null: as many as there are
    UNIQUE (graph, version, node)
);

CREATE TABLE longwatch_executions (
    execution INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    graph TEXT NOT NULL,
    version TEXT NOT NULL,
    idempotency_key TEXT,
    revision INTEGER NOT NULL DEFAULT 0,
    changes INTEGER NOT NULL DEFAULT 0,  -- how often anything about it or its attempts was decided
    cancelled INTEGER NOT NULL DEFAULT 0,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL
);
CREATE UNIQUE INDEX longwatch_executions_key ON longwatch_executions (graph, idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE TABLE longwatch_values (
    execution INTEGER NOT NULL,
    node TEXT NOT NULL,
    is_set INTEGER NOT NULL DEFAULT 0,
    value TEXT,  -- JSON; null is no value, 'null' is one
    revision INTEGER NOT NULL DEFAULT 0,  -- of the execution, when it changed
    computed_with TEXT,  -- the revisions of what it was computed from
    tried_with TEXT,  -- the same of the attempts that failed last …
    spent INTEGER NOT NULL DEFAULT 0,  -- … how many they were …
    crashes INTEGER NOT NULL DEFAULT 0,  -- … how many of them ended with their process …
    failed INTEGER NOT NULL DEFAULT 0,  -- … whether there will be another …
    error TEXT,  -- … and what the last of them said
    term INTEGER NOT NULL DEFAULT 0,  -- the highest of its attempts that are over: the next ones begin above it
    changed_at REAL NOT NULL,
    PRIMARY KEY (execution, node)
) WITHOUT ROWID;
CREATE INDEX longwatch_values_failed ON longwatch_values (execution) WHERE failed = 1;

CREATE TABLE longwatch_computations (
    seq INTEGER PRIMARY KEY,
    lane INTEGER NOT NULL,
    held INTEGER NOT NULL DEFAULT 0,  -- as of every claimable row; 3: it has ended
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
    heartbeat_deadline REAL,  -- on the store's lease clock, as the next; null for a row that does not beat
    deadline REAL,
    created_at REAL NOT NULL,
    started_at REAL,
    ended_at REAL,
    end_cause TEXT,
    error TEXT
);
CREATE INDEX longwatch_computations_free ON longwatch_computations (lane, seq) WHERE held = 0;
CREATE INDEX longwatch_computations_delayed ON longwatch_computations (lane, ready_at) WHERE held = 1;
CREATE INDEX longwatch_computations_leased ON longwatch_computations (owner) WHERE held = 2;
CREATE INDEX longwatch_computations_of ON longwatch_computations (execution, held);

CREATE TABLE longwatch_sweeps (
    sweep TEXT PRIMARY KEY,
    began_at REAL NOT NULL,
    position INTEGER NOT NULL DEFAULT 0  -- how far it has come, for one that goes on where it left off
) WITHOUT ROWID;

CREATE TABLE longwatch_sweep_runs (
    run INTEGER PRIMARY KEY AUTOINCREMENT,
    sweep TEXT NOT NULL,
    began_at REAL NOT NULL,
    lasted REAL NOT NULL,
    found INTEGER NOT NULL,
    error TEXT
);
