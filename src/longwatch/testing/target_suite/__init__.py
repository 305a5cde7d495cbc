"""The checks behind `longwatch.testing.check_target`, one file a subject; each check is a coroutine
function whose name is its claim.

harness         what a kind has to offer to be checked, and the commands its targets have to know
kit             what a check works with: targets of its own, their lines, ways to say what is
                expected
life_checks     start, wait, ends, output, facts, starts that fail, are refused or cancelled
stop_checks     signals, grace, kill, stops that are hastened or extended
exec_checks     commands and probe scripts
adopt_checks    adopt and detach, of kinds that live on without their supervisor and of others
runtime_checks  a runtime that does not answer, of kinds that have one
"""
