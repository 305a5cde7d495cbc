"""`longwatch worker module:group`: worker processes, kept up, with this process as the parent that
keeps their leases.

The way of it: look at the group → open the logs → start parent and processes → answer for health →
supervise until a signal. SIGHUP restarts the processes one after another, each once its successor
is wanted: the others go on with the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from longwatch.app.command import working_directory
from longwatch.app.console import Console, fill_standard_streams, make_state_directory
from longwatch.app.foreground import Foreground
from longwatch.app.preflight import GroupFacts, look_at
from longwatch.app.run import checked_name
from longwatch.app.up import allow_many_files
from longwatch.app.worker_plans import worker_plans
from longwatch.app.workers import Workers
from longwatch.app.workers_health import WorkersHealth
from longwatch.config.programs import WorkerSettings
from longwatch.config.settings import LogSettings
from longwatch.core.clock import Clock, SystemClock
from longwatch.core.endcause import EndCause, EndKind
from longwatch.core.events import (
    CircuitBreakerTripped,
    Event,
    Events,
    ProgramEnded,
    ProgramStarted,
    ReloadRefused,
)
from longwatch.errors import LongwatchError
from longwatch.host.errand import Errand
from longwatch.host.health_server import HealthServer
from longwatch.supervisor.decision import Verdict
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.program import NEEDS_PERSON
from longwatch.supervisor.supervisor import Supervisor


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerWishes:
    """What `longwatch worker` was asked for. A health port of None: the group's own. `env`: what
    its processes find in theirs.
    """

    target: str
    processes: int
    name: str
    health_port: int | None
    health_host: str | None
    state: Path | None
    log: LogSettings
    env: Mapping[str, str] = field(default_factory=dict)


def worker(wishes: WorkerWishes, environ: Mapping[str, str]) -> int:
    """Run the group in its processes until we are told to stop; the exit code to pass on."""
    fill_standard_streams()
    checked_name(wishes.name)
    clock = SystemClock()
    if wishes.state is not None:
        make_state_directory(wishes.state)
    with (
        closing(Console(wishes.log, state=wishes.state, clock=clock, environ=environ)) as console,
        ExitStack() as undo,
    ):
        return _Parent(wishes, console, clock).run(environ, undo)


class _Parent:
    """The supervisor of worker processes, and what looks after them beside it."""

    def __init__(self, wishes: WorkerWishes, console: Console, clock: Clock) -> None:
        self._wishes = wishes
        self._console = console
        self._clock = clock
        self._events = Events(console.log)
        self._workers = Workers(
            state=wishes.state, log=wishes.log, clock=clock, events=self._events
        )

    def run(self, environ: Mapping[str, str], undo: ExitStack) -> int:
        wishes, clock = self._wishes, self._clock
        undo.callback(self._workers.stop)
        settings = WorkerSettings(
            target=wishes.target, processes=wishes.processes, env=dict(wishes.env)
        )
        here = working_directory(None)
        facts, plans = worker_plans(
            wishes.name, settings, base=here, environ=environ, told=self._workers.told
        )
        names = [plan.name for plan in plans]
        undo.enter_context(
            _answering(
                wishes, facts, WorkersHealth(self._workers.overseer, names, clock=clock), clock
            )
        )
        supervisor = self._workers.supervisor = self._made(plans)
        ends = _Ends(names, supervisor.shut_down)
        self._events.subscribe(ends)
        self._workers.start()
        rolling = Rolling(
            supervisor,
            names,
            look=lambda: look_at(wishes.target, cwd=here, env=plans[0].process.env),
        )
        foreground = Foreground(supervisor, self._console, on_hangup=rolling.begin)
        return foreground.run(names, {"target": wishes.target}) or ends.exit_code

    def _made(self, plans: Sequence[ProgramPlan]) -> Supervisor:
        tagged = len(plans) > 1
        return Supervisor(
            plans,
            streams=lambda plan: self._console.among_others(
                plan.name, plan.output, tag=f"{plan.name} | " if tagged else ""
            ),
            events=self._events,
            clock=self._clock,
            guarded=allow_many_files,
            adopt=True,
        )


@contextmanager
def _answering(
    wishes: WorkerWishes, facts: GroupFacts, health: WorkersHealth, clock: Clock
) -> Iterator[None]:
    """Health and metrics for all of them, on one port: the one that was asked for, else the
    group's own; and for systemd.
    """
    port = wishes.health_port if wishes.health_port is not None else facts.health_port
    with ExitStack() as undo:
        if port is not None:
            host = wishes.health_host or facts.health_host
            server = HealthServer(
                host=host, port=port, checks=health.checks(), metrics=health.exposition, clock=clock
            )
            server.start()
            undo.callback(server.stop)
        health.start()
        undo.callback(health.stop)
        yield


class _Ends:
    """Hears how processes end. When all have come to a good end by themselves, or are given up,
    there is nothing left to do.

    One that fails too often is not the end of the others: they go on with the work.
    """

    def __init__(self, names: Sequence[str], done: Callable[[], None]) -> None:
        self.exit_code = 0
        """What is to be passed on, if nothing else is: 1 if work was left behind at the end, 100
        if all were given up.
        """
        self._left = set(names)
        self._broken: set[str] = set()
        self._done = done

    def __call__(self, event: Event) -> None:
        match event:
            case ProgramStarted():
                self._left.add(event.program)
                self._broken.discard(event.program)
            case CircuitBreakerTripped():
                self._broken.add(event.program)
                self._over(event.program)
            case ProgramEnded(verdict=Verdict.CLEAN_EXIT, restart=False):
                self._over(event.program)
            case ProgramEnded(verdict=Verdict.CONFIGURATION_ERROR | Verdict.FATAL_ERROR_NO_RESTART):
                self._broken.add(event.program)
                self._over(event.program)
            case ProgramEnded(
                verdict=Verdict.SHUTDOWN_COMPLETE, cause=EndCause(kind=EndKind.EXIT, number=code)
            ) if code:
                self.exit_code = max(self.exit_code, 1)

    def _over(self, program: str) -> None:
        self._left.discard(program)
        if not self._left:
            self.exit_code = NEEDS_PERSON if self._broken else self.exit_code
            self._done()


class Rolling:
    """Restarts programs one after another, each when the one before it is ready. One round at a
    time.

    `look` raises if what they would run now cannot be run: then nobody is touched.
    """

    def __init__(
        self, supervisor: Supervisor, names: Sequence[str], *, look: Callable[[], object]
    ) -> None:
        self._supervisor = supervisor
        self._names = names
        self._look = look
        self._again = False
        self._round: Errand | None = None

    def begin(self) -> None:
        """Begin a round; if one is under way, there is another after it."""
        self._again = True
        if self._round is None or self._round.over.is_set():
            self._round = Errand(self._turn, name="rolling-restart", loud=True)
            self._round.start()

    def _turn(self) -> None:
        while self._again:
            self._again = False
            self._restart()

    def _restart(self) -> None:
        try:
            self._look()
            for name in self._names:
                self._supervisor.restart_programs(name, ready=True)
        except (
            LongwatchError
        ) as error:  # one that does not come up again: the others are left as they are
            self._supervisor.events.emit(ReloadRefused(reason=str(error)))
