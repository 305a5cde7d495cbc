"""Keeps programs up without restart storms: decides what an end means and when to start again.

    with Supervisor([ProgramPlan.of("web", ["python", "app.py"])]) as supervisor:
        supervisor.status("web")

`plan`, `probes`, `restart_policy`, `lifecycle` and `dependencies` are values and decisions.
`program_run` is one run of a program, `program` keeps it up, and `managed_program` adds its desired
state and its dependencies. `program_registry` has all programs by name, `commands` changes their
desired state, and `supervisor` owns them all. `program_listener` is the interface for code that
acts on starts and ends. `ledger` stores the records of programs. `control` and `supervisor_lock`
let other processes reach the supervisor.
"""

from __future__ import annotations

from longwatch.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
