"""The SQLite database behind the store: one file, one writer thread, group commit."""
