-- What the last propagation of an execution left: sweeps and lists need not look into it.

ALTER TABLE longwatch_executions
    -- How many computed nodes the graph had when the execution was last propagated.
    ADD COLUMN known_nodes integer NOT NULL DEFAULT 0,
    -- The same while no attempt is open; 0: an attempt may be open.
    ADD COLUMN settled_nodes integer NOT NULL DEFAULT 0,
    -- 1: nothing is left to compute, and no input is missing.
    ADD COLUMN done smallint NOT NULL DEFAULT 0;
-- An execution may be stalled if it has fewer settled nodes than its graph has computed ones.
CREATE INDEX longwatch_executions_settled ON longwatch_executions
    (graph, version, settled_nodes, execution) WHERE cancelled = 0;
