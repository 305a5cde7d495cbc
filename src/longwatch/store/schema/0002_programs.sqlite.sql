-- What a supervisor remembers of its programs.
CREATE TABLE longwatch_programs (
    name TEXT PRIMARY KEY,
    memory TEXT NOT NULL,
    changed_at REAL NOT NULL
) WITHOUT ROWID;
