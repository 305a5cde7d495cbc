-- min_reader: unchanged
-- Storage parameters of the hot tables. Rows that exist stay where they are.

-- Autovacuum waits for a fifth of a table by default. Queues and their histories churn at one end,
-- so the dead rows of two percent are removed, without pauses, as for messages and attempts.
ALTER TABLE longwatch_executions SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1,
    autovacuum_analyze_threshold = 5000
);
ALTER TABLE longwatch_values SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1,
    autovacuum_analyze_threshold = 5000
);
ALTER TABLE longwatch_map_elements SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1,
    autovacuum_analyze_threshold = 5000
);
ALTER TABLE longwatch_runner_events SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1,
    autovacuum_analyze_threshold = 5000
);
ALTER TABLE longwatch_runner_runs SET (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1,
    autovacuum_analyze_threshold = 5000
);
-- Large bodies are stored apart. They go with their messages.
ALTER TABLE longwatch_messages SET (
    toast.autovacuum_vacuum_scale_factor = 0.02, toast.autovacuum_vacuum_threshold = 2000,
    toast.autovacuum_vacuum_cost_delay = 0
);
-- Few rows that change all the time: the lease and the position of a source, the count of expired
-- messages of a mailbox. The room keeps their new versions in the same page (HOT).
ALTER TABLE longwatch_runner_sources SET (fillfactor = 30);
ALTER TABLE longwatch_mailboxes SET (fillfactor = 50);
