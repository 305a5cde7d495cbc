"""Schema migrations: one SQL file for each version and database."""
