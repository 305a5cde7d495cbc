"""Timeouts of the file that do not fit together, and thresholds compared with what was seen."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longwatch.app.doctor.findings import Finding, ok, or_ok, problem, problem_from, warning
from longwatch.app.doctor.subject import Subject
from longwatch.app.log_reader import EventLogReader, EventRecord
from longwatch.errors import UsageError
from longwatch.observe.event_log import timestamp

if TYPE_CHECKING:
    from longwatch.config.settings import Settings
    from longwatch.workers.preflight import GroupInfo

IMPORT_SECONDS = 15.0
STALL_EVENTS = frozenset({"worker_stalled", "loop_stalled"})
STALL_SECONDS = 86_400.0
"""How long ago a stall may be that is still reported."""
_MAX_RECORDS = 20_000
"""How many of the last records are searched for stalls, however long the log is."""
EXPECTED_FACTOR = 3
"""A good threshold is so many times the longest gap between heartbeats."""
_NICE_SECONDS = (5, 10, 15, 30, 60, 120, 180, 300, 600, 720, 900, 1800, 3600, 7200)


# --- groups of workers ---


def check_groups(subject: Subject) -> Iterable[Finding]:
    """Import the group of each worker of the file in a process of its own."""
    from longwatch.app.plans import process_spec  # noqa: PLC0415 - only this check needs it
    from longwatch.workers.preflight import inspect_group  # noqa: PLC0415

    if subject.loaded is None:
        return
    for name, worker in subject.loaded.settings.worker.items():
        cwd = subject.loaded.base_dir / (worker.cwd or "")
        try:
            spec = process_spec(worker, ("true",), cwd=cwd, environ=dict(subject.environ))
            info = inspect_group(
                worker.target, cwd=cwd, env=spec.env, identity=spec.identity, timeout=IMPORT_SECONDS
            )
        except UsageError as error:
            yield problem_from(f"worker {name}: {error}")
            continue
        found = group_findings(name, info, worker.stop_grace)
        yield from or_ok(found, f"worker {name}: its timeouts fit together")


def group_findings(name: str, info: GroupInfo, stop_grace: float) -> Iterator[Finding]:
    """The timeouts of a group, and the grace that its processes get; 0: enough."""
    for setting, text in info.timeout_problems:
        reason, _, cure = text.partition(": ")
        yield warning(f"worker {name}: {setting} {reason}", f"{cure} in LoopGroup(…)")
    if 0 < stop_grace <= info.shutdown_timeout:
        yield problem(
            f"worker {name}: stop_grace ({stop_grace:g} s) is not more than the group's "
            f"shutdown_timeout ({info.shutdown_timeout:g} s), so work in flight is killed",
            f"set stop_grace above {info.shutdown_timeout:g}, or take it out",
        )


# --- programs of the file ---


def check_stops(subject: Subject) -> Iterable[Finding]:
    if subject.loaded is None:
        return ()
    return or_ok(stop_findings(subject.loaded.settings), "the stops of programs fit together")


def stop_findings(settings: Settings) -> Iterator[Finding]:
    limit = settings.supervisor.shutdown_timeout
    graces = {
        name: each.stop_grace for name, each in {**settings.program, **settings.container}.items()
    }
    graces |= {name: each.stop_grace for name, each in settings.worker.items()}
    if settings.runner is not None:
        graces["runner"] = settings.runner.shutdown_timeout
    for name, grace in graces.items():
        if limit != "off" and grace > limit:
            yield warning(
                f"{name} may take {grace:g} s to stop, and [supervisor] shutdown_timeout kills "
                f"everything after {limit:g} s",
                f"set shutdown_timeout above {grace:g}, or lower the grace of {name}",
            )
    for name, program in settings.program.items():
        health = settings.effective_health(name)
        if health is not None and health.timeout >= health.interval:
            yield warning(
                f"{name}: health.timeout ({health.timeout:g} s) is not less than health.interval "
                f"({health.interval:g} s), so checks follow each other without a pause",
                f"set health.timeout below {health.interval:g}",
            )
        yield from _backoff_findings(name, program)


def _backoff_findings(name: str, program: Any) -> Iterator[Finding]:
    """A breaker that can never trip, because the waits alone take longer than its window."""
    backoff, breaker = program.backoff, program.breaker
    waits = [
        min(backoff.initial * backoff.factor**number, backoff.cap)
        for number in range(breaker.restarts)
    ]
    if sum(waits) > breaker.window:
        yield warning(
            f"{name}: {breaker.restarts} restarts wait {sum(waits):g} s, which is more than "
            f"breaker.window ({breaker.window:g} s), so the breaker never trips",
            f"set breaker.window above {sum(waits):g}",
        )


# --- watchdogs ---


def check_watchdogs(subject: Subject) -> Iterable[Finding]:
    """The longest gaps of the processes that run, and the stalls that ended others."""
    workers = subject.running.workers
    found = [finding for worker in workers for finding in watchdog_findings(worker)]
    if subject.state is not None:
        found += stall_findings(read_stalls(subject.state, now=time.time()))
    if not workers:
        return found
    loops = sum(len(worker.get("loops", ())) for worker in workers)
    return or_ok(found, f"the heartbeats of {loops} loops are well within their thresholds")


def read_stalls(state: Path, *, now: float) -> list[EventRecord]:
    """The stalls of the last day in the log of events, oldest first."""
    earliest = timestamp(now - STALL_SECONDS)
    try:
        reader = EventLogReader(state, ())
    except UsageError:  # nothing has run here
        return []
    with closing(reader):
        records = reader.read_last(_MAX_RECORDS)
    return [
        record
        for record in records
        if record.get("event") in STALL_EVENTS and str(record.get("ts")) >= earliest
    ]


def stall_findings(stalls: Iterable[EventRecord]) -> Iterator[Finding]:
    """A warning for each program whose processes were ended by a watchdog."""
    by_program: dict[str, list[EventRecord]] = {}
    for record in stalls:
        by_program.setdefault(str(record.get("program") or "a process"), []).append(record)
    for program, found in by_program.items():
        last = found[-1]
        times = "once" if len(found) == 1 else f"{len(found)} times"
        yield warning(
            f"{program}: its watchdog ended it {times} in the last day, after "
            f"{last.get('threshold')} s without a heartbeat; last at {last['ts']}",
            f"see its stacks in {last.get('stacks') or 'the crashes directory'}; if it was only "
            f"slow, raise watchdog_threshold, or call context.beat() more often",
        )


def watchdog_findings(worker: Mapping[str, Any]) -> Iterator[Finding]:
    """Compare the threshold of a worker process with the longest gaps between heartbeats."""
    name, threshold = worker["program"], worker.get("threshold")
    if worker.get("stalled"):
        yield problem(
            f"{name} is stalled",
            f"see its stacks in {worker.get('crash_file') or 'the crashes directory'}",
        )
    for loop in worker.get("loops", ()):
        longest = loop.get("max_age") or 0.0
        if threshold and longest > threshold / 2:
            yield warning(
                f"{name}: loop {loop['name']} was silent for {longest:.1f} s, and the watchdog "
                f"ends the process after {threshold:g} s",
                f"set watchdog_threshold={suggest_threshold(longest)}, or call context.beat() "
                f"more often",
            )


def suggest_threshold(longest: float) -> int:
    """A round number of seconds, at least three times the longest gap."""
    wanted = EXPECTED_FACTOR * longest
    return next((nice for nice in _NICE_SECONDS if nice >= wanted), 3600 * ceil(wanted / 3600))


# --- what runs ---


def check_supervisors(subject: Subject) -> Iterable[Finding]:
    """Whether what runs answers, is of this version, and is in its desired state."""
    running = subject.running
    if running.problem:
        yield problem_from(running.problem)
        return
    found = [*version_findings(running.supervisors), *_program_findings(running.programs)]
    number = len(running.programs)
    programs = "1 program runs" if number == 1 else f"{number} programs run"
    yield from found or [
        ok(f"{programs} as wanted" if running.supervisors else "no supervisor runs")
    ]


def version_findings(supervisors: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    from longwatch import __version__  # noqa: PLC0415 - as tests may change it

    for each in supervisors:
        version = each.get("version")
        if version and version != __version__:
            command = each.get("command") or "supervisor"
            yield warning(
                f"longwatch {command} (pid {each['pid']}) runs version {version}, and "
                f"{__version__} is installed",
                f"restart it: `longwatch down`, then `longwatch {command}`"
                if command == "up"
                else "restart it",
            )


def _program_findings(programs: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    from longwatch.app.control import is_as_desired  # noqa: PLC0415

    for program in programs:
        if not is_as_desired(dict(program)):
            state, name = program["state"], program["name"]
            make = problem if state in {"broken", "ended"} else warning
            yield make(
                f"{name} is {state}",
                f"longwatch logs {name}, then `longwatch reset {name}`"
                if state == "broken"
                else f"longwatch logs {name}",
            )
