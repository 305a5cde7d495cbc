"""The checks of `longwatch.testing.check_target`, one file for each subject.

Each check is a coroutine function whose name is its claim.

harness         the interface of a kind under test, and the commands that its targets must run
kit             tools of a check: its own targets, their output, assertions
life_checks     start, wait, ends, output, facts, starts that fail, are refused or cancelled
stop_checks     signals, grace, kill, stops that are hastened or extended
exec_checks     commands and probe scripts
adopt_checks    adopt and detach, for kinds that survive their supervisor and for others
runtime_checks  a runtime that does not answer, for kinds that have one
"""
