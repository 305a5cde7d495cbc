-- min_reader: unchanged
-- The engine that sweeps a queue or a table for the whole fleet (store/sweep_turns.py).

ALTER TABLE longwatch_sweeps
    ADD COLUMN holder text,  -- incarnation of the engine that has the turn; null: none
    ADD COLUMN held_until double precision;  -- lease clock
-- A turn is extended every few seconds. The room keeps its new versions in the same page (HOT).
ALTER TABLE longwatch_sweeps SET (fillfactor = 30);
