-- Headers of messages, and the trace context of executions.

-- A JSON object of texts; null: none.
ALTER TABLE longwatch_messages ADD COLUMN headers TEXT;
ALTER TABLE longwatch_dead_letters ADD COLUMN headers TEXT;

-- The headers of the span that started or last changed the execution, as a JSON object; null: none.
ALTER TABLE longwatch_executions ADD COLUMN trace_context TEXT;
