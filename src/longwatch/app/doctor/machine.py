"""The machine itself: its clocks, kernel, limits of this user, and installed versions."""

from __future__ import annotations

import os
import platform
import resource
import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from longwatch import __version__
from longwatch.app.doctor.findings import Finding, ok, or_ok, problem, warning
from longwatch.app.doctor.subject import Subject
from longwatch.core.clock import BOOTTIME_CLOCK
from longwatch.core.extras import install_command

OLDEST_WALL_TIME = 1_735_689_600.0
"""The start of 2025. A wall clock before that was never set."""
_CLOCK_ROUNDS = 1000
FILES_PER_PROGRAM = 10
"""Descriptors that the supervisor needs for a program: pipes, logs, sockets, a pidfd."""
OWN_FILES = 100
_EXTRA_MODULES: Mapping[str, tuple[str, ...]] = {
    "postgres": ("psycopg",),
    "redis": ("redis",),
    "runner": ("aiohttp",),
    "mcp": ("mcp",),
    "containers": ("aiodocker",),
    "otel": ("opentelemetry",),
    "page": ("aiohttp", "jinja2"),
}
_MIN_KERNEL = (5, 3)
"""The first Linux with pidfd_open."""


# --- clocks ---


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReadings:
    """Readings of the machine's clocks; `steps_back` counts readings of the monotonic clock that
    were earlier than the one before.
    """

    wall: float
    monotonic: float
    boottime: float
    steps_back: int = 0


def check_clocks(_: Subject) -> Iterable[Finding]:
    return or_ok(clock_findings(_read_clocks()), "wall, monotonic and boot clocks agree")


def clock_findings(clocks: ClockReadings) -> Iterator[Finding]:
    if clocks.wall < OLDEST_WALL_TIME:
        day = time.strftime("%Y-%m-%d", time.gmtime(clocks.wall))
        yield problem(
            f"the wall clock shows {day}, so it was never set",
            "set the time, and run a time service such as chrony or systemd-timesyncd",
        )
    if clocks.steps_back or clocks.boottime < clocks.monotonic - 1.0:
        yield problem(
            "the monotonic clock steps back, or the boot clock is behind it",
            "update the kernel or the hypervisor, and check the clock source in "
            "/sys/devices/system/clocksource",
        )


def _read_clocks() -> ClockReadings:
    readings = [time.monotonic() for _ in range(_CLOCK_ROUNDS)]
    back = sum(later < earlier for earlier, later in pairwise(readings))
    return ClockReadings(
        wall=time.time(),
        monotonic=time.monotonic(),
        boottime=time.clock_gettime(BOOTTIME_CLOCK),
        steps_back=back,
    )


# --- kernel ---


def check_kernel(_: Subject) -> Iterable[Finding]:
    found = [*_pidfd_findings(), *_subreaper_findings(), *_proc_findings()]
    cgroups = _has_cgroups()
    if not cgroups:
        found.append(
            warning(
                "no cgroup v2 can be made here, so process trees are found by marks in their "
                "environment, and memory limits hold for each process",
                "mount cgroup2 and delegate a cgroup, with Delegate=yes in a systemd unit",
            )
        )
    return or_ok(found, "pidfd, subreaper, cgroup v2 and /proc are usable")


def _pidfd_findings() -> Iterator[Finding]:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:
        yield problem(
            f"pidfd_open does not work ({error}), and the supervisor needs it",
            f"use Linux {'.'.join(map(str, _MIN_KERNEL))} or later, and allow the call in the "
            f"seccomp profile",
        )


def _subreaper_findings() -> Iterator[Finding]:
    from longwatch.host.guardian.kernel import become_subreaper  # noqa: PLC0415 - it loads the C library

    try:
        become_subreaper(on=False)
    except OSError as error:
        yield problem(
            f"the subreaper setting is refused ({error.strerror}), so orphans would escape",
            "allow prctl in the seccomp profile",
        )


def _proc_findings() -> Iterator[Finding]:
    if not Path("/proc/self/stat").exists():
        yield problem(
            "/proc is not mounted, so processes cannot be followed", "mount -t proc proc /proc"
        )
    elif not os.access("/proc/1/stat", os.R_OK):
        yield warning(
            "processes of other users are hidden in /proc (hidepid), so programs of other users "
            "show no CPU and memory",
            "mount /proc without hidepid, or run as root",
        )


def _has_cgroups() -> bool:
    from longwatch.host.guardian.cgroups import Cgroups  # noqa: PLC0415 - only this check needs it

    cgroups = Cgroups.open(f"doctor-{os.getpid()}")
    if cgroups is None:
        return False
    cgroups.remove()
    return True


# --- limits ---


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    """Limits of this user and container; None: there is none."""

    open_files: int | None
    processes: int | None
    running: int = 0
    """How many processes count against the limit now."""


def check_limits(subject: Subject) -> Iterable[Finding]:
    limits = _read_limits()
    files = "unlimited" if limits.open_files is None else f"{limits.open_files}"
    found = limit_findings(limits, subject.number_of_processes)
    return or_ok(found, f"{files} open files are allowed, which is enough")


def limit_findings(limits: UserLimits, programs: int) -> Iterator[Finding]:
    """Compare the limits with what this number of programs needs."""
    needed = OWN_FILES + FILES_PER_PROGRAM * programs
    if limits.open_files is not None and limits.open_files < needed:
        yield problem(
            f"open files are limited to {limits.open_files}, and {programs} programs need about "
            f"{needed}",
            f"ulimit -n {2 * needed}, or LimitNOFILE={2 * needed} in a systemd unit",
        )
    free = None if limits.processes is None else limits.processes - limits.running
    if free is not None and free < 2 * programs + 10:
        yield problem(
            f"only {max(free, 0)} more processes are allowed (limit {limits.processes}), and "
            f"{programs} programs need at least {2 * programs + 10}",
            "raise ulimit -u, TasksMax of the systemd unit, or the pids limit of the container",
        )


def _read_limits() -> UserLimits:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = [(processes, _own_processes())] if processes >= 0 and os.geteuid() else []
    with suppress(OSError, ValueError):
        limits.append(_cgroup_pids())
    limit, running = min(limits, key=lambda each: each[0] - each[1], default=(None, 0))
    return UserLimits(open_files=None if files < 0 else files, processes=limit, running=running)


def _own_processes() -> int:
    uid, found = os.geteuid(), 0
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            found += entry.name.isdecimal() and entry.stat().st_uid == uid
    return found


def _cgroup_pids() -> tuple[int, int]:
    """The limit of processes of our cgroup, and how many it has. Raises ValueError for `max`."""
    folder = Path("/sys/fs/cgroup")
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        if line.startswith("0::"):
            folder /= line.removeprefix("0::").strip().lstrip("/")
    current = int((folder / "pids.current").read_text(encoding="utf-8"))
    return int((folder / "pids.max").read_text(encoding="utf-8")), current


# --- versions ---


def check_versions(subject: Subject) -> Iterable[Finding]:
    installed = {extra for extra in _EXTRA_MODULES if _is_installed(extra)}
    extras = ", ".join(sorted(installed)) or "none"
    kernel = f"{platform.system()} {platform.release()}"
    python = platform.python_version()
    yield ok(
        f"longwatch {__version__}, Python {python}, {kernel}, SQLite {sqlite3.sqlite_version}; "
        f"extras: {extras}"
    )
    yield from extra_findings(needed_extras(subject), installed)
    if sys.implementation.name != "cpython":
        yield warning(f"this is {sys.implementation.name}, not CPython", "run CPython")


def needed_extras(subject: Subject) -> dict[str, str]:
    """The extras that the settings and the stores need, each with what needs it."""
    kinds = {"postgresql": "postgres", "redis": "redis"}
    needed = {extra: f"a {kind} store" for kind, extra in kinds.items() if subject.stores_of(kind)}
    if subject.loaded is not None:
        settings = subject.loaded.settings
        if settings.has_containers:
            needed["containers"] = "[containers]"
        if settings.runner is not None:
            kinds_ = {source.kind for source in settings.runner.source.values()}
            needed["mcp" if "mcp" in kinds_ else "runner"] = "[runner]"
    return needed


def extra_findings(needed: Mapping[str, str], installed: set[str]) -> Iterator[Finding]:
    for extra, reason in needed.items():
        if extra not in installed:
            yield problem(
                f"{reason} needs the extra {extra}, which is not installed", install_command(extra)
            )


def _is_installed(extra: str) -> bool:
    return all(find_spec(module) is not None for module in _EXTRA_MODULES[extra])
