"""What the file needs around it: faults of the file, free ports, a container runtime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from longwatch.app.doctor.findings import Finding, ok, or_ok, problem, problem_from
from longwatch.app.doctor.subject import Subject
from longwatch.app.startup_checks import busy_port_faults, port_problem
from longwatch.errors import Fault

if TYPE_CHECKING:
    from longwatch.config.settings import Settings


def check_settings(subject: Subject) -> Iterable[Finding]:
    if subject.faults:
        return [_fault_finding(fault) for fault in subject.faults]
    if subject.loaded is None:
        return [ok("no longwatch.toml here")]
    return [
        ok(f"{subject.loaded.display_path} has no faults; `longwatch check` checks its commands")
    ]


def _fault_finding(fault: Fault) -> Finding:
    where = f"{fault.where}: " if fault.where else ""
    return problem(f"{where}{fault.problem}", fault.cure or "correct the file")


def check_ports(subject: Subject) -> Iterable[Finding]:
    """Ports that programs and the supervisor are to get. None is checked while they run: they have
    them.
    """
    if subject.loaded is None or subject.running.supervisors or subject.running.problem:
        return ()
    settings = subject.loaded.settings
    wanted = wanted_ports(settings)
    found = [
        problem(
            f"port {port}, for {what}, is not free ({reason})",
            "stop its owner, or choose another port",
        )
        for port, what in wanted.items()
        if (reason := port_problem(port))
    ]
    found += [
        _fault_finding(fault)
        for fault in busy_port_faults(settings, source=subject.loaded.display_path)
    ]
    are_free = "1 port of the settings is free"
    if len(wanted) != 1:
        are_free = f"{len(wanted)} ports of the settings are free"
    return or_ok(found, are_free) if wanted else found


def wanted_ports(settings: Settings) -> dict[int, str]:
    """The ports that Longwatch itself is to open, with what each is for."""
    page_port = getattr(getattr(settings, "page", None), "port", None)
    named: list[tuple[object, str]] = [
        (settings.supervisor.metrics_port, "metrics_port of [supervisor]"),
        (page_port, "port of [page]"),
    ]
    if settings.runner is not None:
        named += [
            (settings.runner.health_port, "health_port of [runner]"),
            (settings.runner.metrics_port, "metrics_port of [runner]"),
        ]
    return {port: what for port, what in named if isinstance(port, int) and port}


def check_containers(subject: Subject) -> Iterable[Finding]:
    """Whether the container runtime of the settings answers."""
    if subject.loaded is None or not subject.loaded.settings.has_containers:
        return
    setting = subject.loaded.settings.containers.runtime
    found = _connect_runtime(setting, dict(subject.environ))
    if found.startswith("!"):
        yield problem_from(found[1:])
    else:
        yield ok(f"{found} answers")


def _connect_runtime(setting: str, environ: Mapping[str, str]) -> str:
    """The name of the runtime, or why there is none, after an exclamation mark."""
    import asyncio  # noqa: PLC0415 - only for a file with containers

    from longwatch.supervisor.containers.runtime_finder import RuntimeFinder  # noqa: PLC0415

    async def connect() -> str:
        finder = RuntimeFinder(setting, environ=environ)
        try:
            runtime = await finder.connect()
            return f"!{runtime}" if isinstance(runtime, str) else runtime.name
        finally:
            await finder.close()

    return asyncio.run(connect())
