-- min_reader: 10
-- The lowest version of a process that may use the store (store/migrations.py).

-- Null: the version of the row.
ALTER TABLE longwatch_schema ADD COLUMN min_reader integer;
