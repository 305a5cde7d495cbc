"""Programs that stay up without restart storms: what an end means, when to try again, and a
supervisor that does it.

    with Supervisor([ProgramPlan.of("web", ["python", "app.py"])]) as supervisor:
        supervisor.status("web")

The layers, from values to the whole: `plan`, `probes`, `restart_policy`, `lifecycle` and
`dependencies` decide. `program_run` is one run of a program, `program` its life, `managed_program`
its place among others. `supervisor` holds them all, `program_registry` has them by name, `commands`
changes what is wanted of them. `program_listener` is the seam for code that acts on starts and
ends. `ledger` stores their records. `control` and `supervisor_lock` let other processes reach the
supervisor.
"""

from __future__ import annotations

from longwatch.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
