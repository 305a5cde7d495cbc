"""Processes of their own for suspects: rows that the next crash or loss would give up.

A suspect (`store.blame`) that runs beside other rows could be given up for a crash that another row
caused. So the ordinary workers of a parent never claim suspects (`RowSelection.ORDINARY`). They
report how many suspects are free, and the parent runs these in processes that have one slot.

    reported   about once a second, by every engine of an ordinary worker, while suspects are free
    started    as many processes as suspects are free or run, at most as many as the ordinary
               processes have slots, and at most `MAX_SUSPECT_PROCESSES`
    a process  claims one suspect at a time (`RowSelection.SUSPECTS`), in one engine at a time, and
               exits with 0 when it had none for about two seconds
    crashed    the parent sweeps its row like that of any worker; the next report starts the next
               process
    stopped    by the shutdown, by a command for the worker, by a reload that changes it, and on
               SIGHUP: the next report starts a process with the new code

Such a process is a program of the supervisor that runs on demand (`ProgramPlan.on_demand`). Its
plan is that of the worker which reported, at that moment, so a reload needs nothing here. Nothing
starts it again, it has no breaker, and neither readiness nor exit code depend on it.

Invariants
    1. Whether a process of some name runs is decided on the supervisor's loop, where it is also
       started: two reports never start two processes of one name.
    2. A report is an observation. It may be lost or late, and is repeated as long as it holds. At
       worst a process starts that finds no suspect, or starts a second later.
    3. Processes that end before they have joined delay the next start by a backoff, for the whole
       worker: suspects of a worker that cannot start wait, at the cost of one try a while.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf

from longwatch.core.backoff import Backoff, BackoffPolicy
from longwatch.core.clock import Clock
from longwatch.core.error_text import describe_error
from longwatch.core.events.base import Events
from longwatch.core.events.workers import SuspectProcessNotStarted
from longwatch.engine.policy import MAX_SUSPECT_PROCESSES, suspect_names
from longwatch.errors import LongwatchError, ServiceStateError
from longwatch.host.parent_channel import SUSPECTS_VARIABLE
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.restart_policy import Restart, RestartPolicy

Plans = Mapping[str, ProgramPlan]
RunOnDemand = Callable[[Callable[[Plans], Iterable[ProgramPlan]]], None]
"""The type of `Supervisor.run_on_demand`."""
REPORT_LIFETIME = 3.0
"""Seconds for which a report counts. Workers repeat it three times as often."""
_START_BACKOFF = BackoffPolicy(initial=1.0, factor=2.0, cap=30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectReport:
    """A report that so many suspects are free in one place, from a worker with `slots` slots."""

    program: str
    place: tuple[str, str]
    """The URL of the store and the name of the mailbox there."""
    count: int
    slots: int
    at: float


class SuspectProcesses:
    """Starts processes for suspects when they are reported. Thread-safe.

    `busy_programs` returns the names of the programs that run a row now.
    """

    def __init__(
        self,
        run_on_demand: RunOnDemand,
        busy_programs: Callable[[], set[str]],
        *,
        clock: Clock,
        events: Events,
    ) -> None:
        self._run_on_demand = run_on_demand
        self._busy_programs = busy_programs
        self._clock = clock
        self._events = events
        self._lock = threading.Lock()
        self._reports: dict[tuple[str, tuple[str, str]], SuspectReport] = {}
        self._backoffs: dict[str, Backoff] = defaultdict(lambda: Backoff(_START_BACKOFF))
        self._not_before: dict[str, float] = {}
        self._group_of: dict[str, str] = {}

    def handle(self, report: SuspectReport) -> None:
        """Start the processes that this report asks for. Blocks until the supervisor
        has done so.
        """
        with self._lock:
            self._reports[report.program, report.place] = report
            oldest = report.at - REPORT_LIFETIME
            self._reports = {key: each for key, each in self._reports.items() if each.at >= oldest}
            reports = list(self._reports.values())
        busy = self._busy_programs()
        try:
            self._run_on_demand(lambda plans: self._choose(plans, report.program, reports, busy))
        except ServiceStateError:
            return  # the supervisor has not started yet, or has ended
        except (LongwatchError, OSError) as error:
            self._events.emit(
                SuspectProcessNotStarted(program=report.program, error=describe_error(error))
            )

    def ended(self, program: str, *, has_joined: bool) -> None:
        """Record the end of a process that was started here."""
        with self._lock:
            group = self._group_of.get(program, "")
            backoff = self._backoffs[group]
            if has_joined:
                backoff.succeeded()
            else:
                self._not_before[group] = self._clock.monotonic() + backoff.failed(lasted=0.0)

    def _choose(
        self, plans: Plans, program: str, reports: Iterable[SuspectReport], busy: set[str]
    ) -> Iterable[ProgramPlan]:
        """The plans to start, given the plans that run. Called on the supervisor's loop."""
        plan = plans.get(program)
        if plan is None or self._clock.monotonic() < self._not_before.get(plan.group, -inf):
            return ()
        of_group = [each for each in plans.values() if each.group == plan.group]
        started = list(missing_processes(plan, of_group, list(reports), busy))
        with self._lock:
            self._group_of |= {each.name: plan.group for each in started}
        return started


def missing_processes(
    plan: ProgramPlan,
    of_group: Iterable[ProgramPlan],
    reports: Iterable[SuspectReport],
    busy: set[str],
) -> Iterator[ProgramPlan]:
    """The plans of processes that the reports of a worker ask for and that do not run. `plan` is
    one of its ordinary programs.
    """
    running = {each.name for each in of_group if each.on_demand}
    ordinary = {each.name for each in of_group if not each.on_demand}
    latest: dict[tuple[str, str], SuspectReport] = {}
    for report in sorted(reports, key=lambda each: each.at):
        if report.program in ordinary:
            latest[report.place] = report
    slots = len(ordinary) * max((each.slots for each in latest.values()), default=0)
    free = sum(each.count for each in latest.values())
    wanted = min(len(running & busy) + free, slots, MAX_SUSPECT_PROCESSES)
    names = (name for name in suspect_names(plan.group) if name not in running)
    for name, _ in zip(names, range(wanted - len(running)), strict=False):
        yield suspect_plan(plan, name)


def suspect_plan(plan: ProgramPlan, name: str) -> ProgramPlan:
    """The plan of a process for suspects, made from the plan of an ordinary worker process."""
    env = {**plan.process.env, SUSPECTS_VARIABLE: "1"}
    return replace(
        plan,
        name=name,
        spec=replace(plan.process, env=env),
        restart=RestartPolicy(restart=Restart.NEVER),
        critical=False,
        autostart=False,
        on_demand=True,
    )
