-- min_reader: unchanged
-- The engine that sweeps a queue or a table for the whole fleet (store/sweep_turns.py).

-- A file is used on one machine, where a sweep is cheap: no engine takes turns.
ALTER TABLE longwatch_sweeps ADD COLUMN holder TEXT;
ALTER TABLE longwatch_sweeps ADD COLUMN held_until REAL;
