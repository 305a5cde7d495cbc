-- What the last propagation of an execution left: sweeps and lists need not look into it.
-- The number of a deleted execution is not used again: its values and attempts may still exist.

CREATE TABLE longwatch_new_executions (
    execution INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    graph TEXT NOT NULL,
    version TEXT NOT NULL,
    idempotency_key TEXT,
    revision INTEGER NOT NULL DEFAULT 0,
    changes INTEGER NOT NULL DEFAULT 0,  -- raised by every change of the execution or its attempts
    cancelled INTEGER NOT NULL DEFAULT 0,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    -- How many computed nodes the graph had when the execution was last propagated.
    known_nodes INTEGER NOT NULL DEFAULT 0,
    -- The same while no attempt is open; 0: an attempt may be open.
    settled_nodes INTEGER NOT NULL DEFAULT 0,
    -- 1: nothing is left to compute, and no input is missing.
    done INTEGER NOT NULL DEFAULT 0
);
INSERT INTO longwatch_new_executions
    (execution, id, graph, version, idempotency_key, revision, changes, cancelled, created_at,
    updated_at)
SELECT execution, id, graph, version, idempotency_key, revision, changes, cancelled, created_at,
    updated_at
FROM longwatch_executions;
DELETE FROM sqlite_sequence WHERE name = 'longwatch_new_executions';
INSERT INTO sqlite_sequence (name, seq)
SELECT 'longwatch_new_executions', max(number) FROM (
    SELECT coalesce(max(execution), 0) AS number FROM longwatch_executions
    UNION ALL SELECT coalesce(max(execution), 0) FROM longwatch_values
    UNION ALL SELECT coalesce(max(execution), 0) FROM longwatch_computations
);
DROP TABLE longwatch_executions;
ALTER TABLE longwatch_new_executions RENAME TO longwatch_executions;
CREATE UNIQUE INDEX longwatch_executions_key ON longwatch_executions (graph, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
-- An execution may be stalled if it has fewer settled nodes than its graph has computed ones.
CREATE INDEX longwatch_executions_settled ON longwatch_executions
    (graph, version, settled_nodes, execution) WHERE cancelled = 0;
