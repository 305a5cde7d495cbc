"""The settings of a worker as the plans of its processes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from longwatch.app.plans import WorkerEnvironment, make_plan, process_spec
from longwatch.config.programs import WorkerSettings
from longwatch.supervisor.dependencies import Readiness
from longwatch.supervisor.plan import OutputPolicy, ProgramKind, ProgramPlan
from longwatch.workers.preflight import WORKER_MODULE, GroupInfo, inspect_group

EXTRA_GRACE = 5.0
"""Seconds that a worker process has after its group's own shutdown_timeout before it is killed."""


def make_worker_plans(
    name: str,
    worker: WorkerSettings,
    *,
    base: Path,
    environ: Mapping[str, str],
    worker_environment: WorkerEnvironment,
) -> tuple[GroupInfo, list[ProgramPlan]]:
    """What is known of its group, and the plans of its processes; UsageError for a group that
    cannot be run.
    """
    cwd = base / (worker.cwd or "")
    spec = process_spec(
        worker,
        (sys.executable, "-m", WORKER_MODULE, "run", worker.target),
        cwd=cwd,
        environ=environ,
    )
    info = inspect_group(worker.target, cwd=cwd, env=spec.env, identity=spec.identity)
    env = {**spec.env, **worker_environment(spec.identity.uid if spec.identity else None)}
    common = make_plan(name, worker, replace(spec, env=env), None)
    shared = replace(
        common,
        kind=ProgramKind.WORKER,
        stop=replace(common.stop, grace=worker.stop_grace or info.shutdown_timeout + EXTRA_GRACE),
        readiness=Readiness.NOTIFY,
        depends_on=worker.dependencies,
        critical=worker.critical,
        autostart=worker.autostart,
        output=OutputPolicy(
            console=worker.log.console, max_bytes=worker.log.max_bytes, keep=worker.log.keep
        ),
        group=name,
    )
    return info, [replace(shared, name=each) for each in worker.names(name)]
