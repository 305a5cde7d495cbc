"""The steps of the schema, one file a version and engine."""
