"""Events of Longwatch as typed values, for observers: logs, metrics and pages.

Every event of the product is in this package, one file for each feature; `base` has the shared
parts. The class name of an event in snake_case is its name in the logs (`ProgramStarted` →
`program_started`) unless its docstring says otherwise. Names and fields are API. An event carries
facts, never text for people. Events are for observers alone: code that must act is called directly.
"""
