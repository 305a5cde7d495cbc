-- min_reader: unchanged
-- SQLite has no storage parameters. The version keeps both databases in step.

SELECT 1;
