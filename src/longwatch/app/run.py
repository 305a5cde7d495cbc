"""`longwatch run`: keeps one command up, with this process in the foreground or as PID 1.

In order: check the settings → open the logs → supervise one program → write out the logs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from longwatch import __version__
from longwatch.app.console import Console, fill_standard_streams, usable_state_directory
from longwatch.app.foreground import Foreground
from longwatch.app.plans import health_probes, make_plan, process_spec
from longwatch.app.startup_checks import (
    check_command,
    port_problem,
    program_name,
    working_directory,
)
from longwatch.app.worker_report import WORKERS_COMMAND, worker_report
from longwatch.config.settings import (
    DEFAULT_STATE_DIR,
    RunSettings,
    Settings,
    masked_settings,
)
from longwatch.core.clock import SystemClock
from longwatch.core.events.base import Events
from longwatch.core.events.supervisor import HealthChecksOff
from longwatch.errors import UsageError
from longwatch.host.process import StopPolicy
from longwatch.observe.logfile import SUPERVISOR_LOG
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.probes import NO_PROBES
from longwatch.supervisor.supervisor import Supervisor

HEALTH_HINT = "check its health with --health-port PORT; --no-health ends this notice"


def run(settings: Settings, command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Keep the command up until it ends for good. Returns the exit code."""
    fill_standard_streams()
    run_settings = settings.run
    name = require_program_name(run_settings.name or program_name(command))
    cwd = working_directory(run_settings.cwd)
    spec = process_spec(run_settings, command, cwd=cwd, environ=environ)
    check_command(command, cwd=cwd, env=spec.env)
    check_port(run_settings)
    probes = (
        health_probes(run_settings.health, port=run_settings.health.effective_port)
        if run_settings.health.effective_enabled
        else NO_PROBES
    )
    return _supervise(
        settings, replace(make_plan(name, run_settings, spec, probes), critical=True), environ
    )


def _supervise(settings: Settings, plan: ProgramPlan, environ: Mapping[str, str]) -> int:
    clock = SystemClock()
    state, problem = usable_state_directory(
        settings.state_path, is_default=settings.state_dir == DEFAULT_STATE_DIR
    )
    with closing(Console(settings.run.log, state=state, clock=clock, environ=environ)) as console:
        streams = console.passthrough_streams(plan.name, settings.run.log)
        events = Events(console.log)
        supervisor = Supervisor(
            [plan],
            state_dir=state,
            command="run",
            shares_state_dir=True,
            extra_status={"version": __version__},
            extra_requests={WORKERS_COMMAND: worker_report},
            streams=lambda _: streams,
            events=events,
            clock=clock,
            main_program=plan.name,
            subreaper=True,
        )

        def stop_by(received: int | None) -> StopPolicy | None:
            """The stop policy with the received signal, unless a signal is configured."""
            if received is None or settings.run.stop_signal is not None:
                return plan.stop
            return replace(plan.stop, signal=received)

        return Foreground(
            supervisor,
            console,
            stop_policy_for=stop_by,
            forwards_signals=True,
            notices=[*([problem] if problem else ()), *_health_notice(settings.run, plan.name)],
        ).run([plan.name], masked_settings(settings))


def _health_notice(run: RunSettings, name: str) -> Iterator[HealthChecksOff]:
    """The notice that no health is checked, unless the settings turn health checks off."""
    if not run.health.effective_enabled and run.health.enabled is None:
        yield HealthChecksOff(program=name, hint=HEALTH_HINT)


def require_program_name(name: str) -> str:
    """Refuse the name of the supervisor's log, so that the output of the program does not get into
    it.
    """
    if name == SUPERVISOR_LOG:
        raise UsageError(f"the name {name!r} belongs to our own log; choose another with --name")
    return name


def check_port(run: RunSettings) -> None:
    """Refuse a port that another process listens on: it would answer the health checks."""
    if not run.health.effective_enabled or run.health.effective_kind not in {"http", "tcp"}:
        return
    port = run.health.effective_port
    if problem := port_problem(port):
        raise UsageError(
            f"port {port} is not free ({problem}), so health checks would ask another server;"
            " stop that one, choose another PORT, or turn the checks off with --no-health"
        )
