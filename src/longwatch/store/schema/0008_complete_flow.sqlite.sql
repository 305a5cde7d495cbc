-- Graphs, complete: their definitions, the state of executions, metadata, ticks, maps, indexed values.

-- The definition of each graph, so that a breaking change of a version is refused.
CREATE TABLE longwatch_graphs (
    graph TEXT NOT NULL,
    version TEXT NOT NULL,
    nodes TEXT NOT NULL,  -- a JSON object: the definition of each node as text
    PRIMARY KEY (graph, version)
) WITHOUT ROWID;

-- 0 active: an attempt is open; 1 idle, 2 failed, 3 done, 4 cancelled, 5 archived.
ALTER TABLE longwatch_executions ADD COLUMN state INTEGER NOT NULL DEFAULT 0;
-- When the execution was last changed while it is not active; null: it is active. Changes of active
-- executions leave it as it is, so they write nothing to the index below.
ALTER TABLE longwatch_executions ADD COLUMN settled_at REAL;
ALTER TABLE longwatch_executions ADD COLUMN metadata TEXT;  -- a JSON object; null: none
UPDATE longwatch_executions SET settled_at = updated_at, state = CASE
    WHEN cancelled = 1 THEN 4
    WHEN done = 1 THEN 3
    WHEN EXISTS (SELECT 1 FROM longwatch_values AS v
        WHERE v.execution = longwatch_executions.execution AND failed = 1) THEN 2
    ELSE 1 END
WHERE NOT EXISTS (SELECT 1 FROM longwatch_computations AS c
    WHERE c.execution = longwatch_executions.execution AND lease_state < 3);
ALTER TABLE longwatch_executions DROP COLUMN done;
CREATE INDEX longwatch_executions_by_state ON longwatch_executions (graph, state, settled_at)
    WHERE state > 0;

-- 1: a recurring tick is paused.
ALTER TABLE longwatch_values ADD COLUMN paused INTEGER NOT NULL DEFAULT 0;
-- A scalar value as text that sorts like the value; null: no such value.
ALTER TABLE longwatch_values ADD COLUMN search_key TEXT;
-- The same for nodes that their graph has indexed; null for all others, which are not in the index.
ALTER TABLE longwatch_values ADD COLUMN indexed_key TEXT;
CREATE INDEX longwatch_values_indexed ON longwatch_values (node, indexed_key, execution)
    WHERE indexed_key IS NOT NULL;

-- The time at which a tick fires, wall time; null: an attempt that computes.
ALTER TABLE longwatch_computations ADD COLUMN due_at REAL;
-- The element of a map that an attempt computes; null: a node.
ALTER TABLE longwatch_computations ADD COLUMN element INTEGER;
-- How many elements of a map are not ended; null: the attempt is no map. The attempt of a map has the
-- lease_state -1: it is open, and no claim takes it.
ALTER TABLE longwatch_computations ADD COLUMN pending INTEGER;
-- The place in the list up to which a map has opened its elements; null: all are opened.
ALTER TABLE longwatch_computations ADD COLUMN opened INTEGER;
DROP INDEX longwatch_computations_by_execution;
-- A load of an execution reads the attempts of its nodes, and passes over those of elements.
CREATE INDEX longwatch_computations_by_execution
    ON longwatch_computations (execution, element, lease_state);

-- The elements of maps. `key` is the hash of the element's value and its occurrence in the list.
CREATE TABLE longwatch_map_elements (
    element INTEGER PRIMARY KEY AUTOINCREMENT,
    execution INTEGER NOT NULL,
    node TEXT NOT NULL,
    key TEXT NOT NULL,
    position INTEGER NOT NULL,  -- the place in the present list
    computed_with TEXT NOT NULL,  -- the revisions of the other inputs
    input TEXT NOT NULL,  -- JSON
    is_open INTEGER NOT NULL DEFAULT 0,  -- 1: neither computed nor given up
    is_set INTEGER NOT NULL DEFAULT 0,
    value TEXT,
    failed_attempts INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    lost INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    error TEXT,
    traceback TEXT,
    term INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX longwatch_map_elements_in_order ON longwatch_map_elements (execution, node, position);
