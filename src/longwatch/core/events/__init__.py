"""What happens in Longwatch, as typed values that parts emit and observers turn into logs, metrics
and pages.

Every event of the product is in this file. Its class name in snake_case is its name in the logs
(`ProgramStarted` → `program_started`) unless it says otherwise; names and fields are API. An event
carries facts, never text for people.
"""
