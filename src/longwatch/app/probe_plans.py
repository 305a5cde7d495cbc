"""Turns the tables `liveness`, `readiness` and `startup` into the probes of a plan."""

from __future__ import annotations

from longwatch.config.containers import ContainerSettings
from longwatch.config.programs import ProgramSettings
from longwatch.config.tables import HealthSettings, ProbeSettings
from longwatch.supervisor.probes import (
    ExecProbe,
    HeartbeatProbe,
    HttpProbe,
    Probe,
    ProbePolicy,
    ProbeSet,
    ScriptProbe,
    StartupPolicy,
    TcpProbe,
)


def declared_probes(settings: ProgramSettings | ContainerSettings, *, port: int = 0) -> ProbeSet:
    """The probes that `liveness`, `readiness` and `startup` declare. `port` is for probes that need
    a port and name none.
    """
    liveness, readiness, startup = settings.liveness, settings.readiness, settings.startup
    return ProbeSet(
        liveness=None if liveness is None else _probe_policy(liveness, port),
        readiness=None if readiness is None else _probe_policy(readiness, port),
        startup=None
        if startup is None
        else StartupPolicy(
            probe=make_probe(startup, startup.port or port),
            within=startup.startup_seconds,
            interval=startup.effective_interval,
            timeout=startup.timeout,
        ),
    )


def _probe_policy(probe: ProbeSettings, port: int) -> ProbePolicy:
    return ProbePolicy(
        probe=make_probe(probe, probe.port or port),
        interval=probe.effective_interval,
        timeout=probe.timeout,
        failures=probe.effective_failures,
        successes=probe.success_threshold,
        start_grace=probe.start_grace,
        settled_interval=probe.settled_interval,
    )


def make_probe(table: HealthSettings | ProbeSettings, port: int) -> Probe:
    """The probe of a table of any kind. `port` is for kinds that need one."""
    match table.effective_kind:
        case "http":
            return HttpProbe(port=port, path=table.path)
        case "tcp":
            return TcpProbe(port=port)
        case "exec":
            return ExecProbe(command=tuple(table.argv))
        case "script":
            assert isinstance(table, ProbeSettings)
            return ScriptProbe(script=table.script or "")
        case "heartbeat":
            return HeartbeatProbe()
