"""The settings of a worker as the plans of its processes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from longwatch.app.plans import Told, plan, process
from longwatch.app.preflight import MODULE, GroupFacts, look_at
from longwatch.config.programs import WorkerSettings
from longwatch.supervisor.conditions import Readiness
from longwatch.supervisor.plan import Output, ProgramPlan

MORE_GRACE = 5.0
"""Seconds that a worker process has after its group's own shutdown_timeout before it is killed."""


def worker_plans(
    name: str, worker: WorkerSettings, *, base: Path, environ: Mapping[str, str], told: Told
) -> tuple[GroupFacts, list[ProgramPlan]]:
    """What is known of its group, and the plans of its processes; UsageError for a group that
    cannot be run.
    """
    cwd = base / (worker.cwd or "")
    made = process(
        worker, (sys.executable, "-m", MODULE, "run", worker.target), cwd=cwd, environ=environ
    )
    facts = look_at(worker.target, cwd=cwd, env=made.env, identity=made.identity)
    env = {**made.env, **told(made.identity.uid if made.identity else None)}
    common = plan(name, worker, replace(made, env=env), None)
    shared = replace(
        common,
        stop=replace(common.stop, grace=worker.stop_grace or facts.shutdown_timeout + MORE_GRACE),
        readiness=Readiness.NOTIFY,
        depends_on=worker.dependencies,
        critical=worker.critical,
        autostart=worker.autostart,
        output=Output(
            console=worker.log.console, max_bytes=worker.log.max_bytes, keep=worker.log.keep
        ),
        group=name,
    )
    return facts, [replace(shared, name=each) for each in worker.names(name)]
