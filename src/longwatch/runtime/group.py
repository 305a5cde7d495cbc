"""A group of loops in one process, which start, are watched and stop together.

`LoopGroup` has the settings and the calls that any thread may make. `runtime/group_run.py` is one
run of it.
"""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from longwatch.core.clock import Clock, SystemClock
from longwatch.core.deadline import Deadline
from longwatch.core.events.base import Events
from longwatch.core.events.runtime import (
    GroupDraining,
    GroupResumed,
    SignalHandlersSkipped,
    TimeoutsMismatched,
)
from longwatch.engine.event_logging import logged_events
from longwatch.engine.run_guard import RunGuard, RunHandle
from longwatch.errors import UsageError
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.health_server import Exposition
from longwatch.host.parent_channel import ParentChannel
from longwatch.host.service import Runnable
from longwatch.host.shutdown import ShutdownCoordinator
from longwatch.host.signals import SignalStream, catch_signals
from longwatch.runtime.group_run import GroupRun
from longwatch.runtime.health_checks import GroupHealth
from longwatch.runtime.status_reporter import EventMetrics
from longwatch.runtime.timeout_checks import TimeoutProblem, Timeouts


class LoopGroup:
    """Runs loops, each in its own thread, with one watchdog and one health port. `run` blocks until
    all loops have ended. `loops` is one loop or several.

    `health_port` None: no health port. `watchdog_threshold` None: no watchdog.
    `readiness_threshold` None: nine tenths of the watchdog threshold. `max_processing_seconds` is
    the longest time of one message; it is used only to warn of timeouts that do not fit together.
    `metrics` serves `/metrics`: a `longwatch.observe.Metrics`, or a callable that returns the page.
    The constructor starts and opens nothing.
    """

    def __init__(  # noqa: PLR0913 - the contract
        self,
        loops: Runnable | Iterable[Runnable],
        *,
        shutdown_timeout: float = 30.0,
        health_port: int | None = None,
        health_host: str = "0.0.0.0",  # noqa: S104 - health is asked from outside
        watchdog_threshold: float | None = 720.0,
        watchdog_interval: float = 60.0,
        readiness_threshold: float | None = None,
        max_processing_seconds: float = 600,
        metrics: Exposition | EventMetrics | None = None,
        clock: Clock | None = None,
        events: Events | None = None,
    ) -> None:
        self.loops = _as_loops(loops)
        self.names = _names(self.loops)
        self.shutdown_timeout = shutdown_timeout
        self.health_port = health_port
        self.health_host = health_host
        self.watchdog_threshold = watchdog_threshold
        self.watchdog_interval = watchdog_interval
        self.readiness_threshold = readiness_threshold
        self.max_processing_seconds = max_processing_seconds
        self.metrics = metrics
        self.clock = clock or SystemClock()
        self.events = events or logged_events()
        self.uses_default_events = events is None
        """Whether the caller passed no `events`."""
        self.health: GroupHealth | None = None
        """The health of the loops while the group runs."""
        self.before_exit: Callable[[], object] = lambda: None
        """Called before the process is ended here, to write out the log."""
        self._parent: ParentChannel | None = None
        self._runs_suspects = False
        self._run_guard = RunGuard("this group", self.clock)
        self._group_run: GroupRun | None = None
        """The present run, else the last one."""
        self._draining = False
        self._timeouts(visibility=1800, wait=0).validate()

    # --- from any thread ---

    @property
    def running(self) -> bool:
        return self._run_guard.current is not None

    @property
    def draining(self) -> bool:
        """Whether the group claims no more messages, until `resume` or for good."""
        return self._draining or self._is_stopping

    @property
    def health_address(self) -> tuple[str, int] | None:
        """The address of the health port; None while it is closed."""
        return None if self._group_run is None else self._group_run.health_address

    def shutdown(self, *, timeout: float | None = None) -> bool:
        """Stop all loops and let `run` return. Returns whether all stopped in time. `timeout` caps
        the limit of every loop.

        Before the first run, that run returns at once. Called from the thread of a loop it cannot
        wait, and returns False.
        """
        run_handle = self._run_guard.request_stop(Deadline.after(timeout, self.clock))
        if run_handle is None:
            return True
        if self._in_own_thread():
            return False
        return run_handle.wait_ended(None)

    def drain(self) -> None:
        """Claim no more messages, and release those that have not begun, until `resume` or the end
        of the run. Running handlers go on. Before a run, the run begins drained.
        """
        self._draining = True
        self._forward("drain")
        self.events.emit(GroupDraining())

    def resume(self) -> None:
        """Claim messages again. Has no effect while the group stops."""
        if self._is_stopping:
            return
        self._draining = False
        self._forward("resume")
        self.events.emit(GroupResumed())

    def set_parent(self, parent: ParentChannel, *, runs_suspects: bool = False) -> None:
        """Let this parent renew the leases and serve health. For worker processes, before `run`.
        With `runs_suspects` the group runs only suspects, one at a time, and ends when there are
        none.
        """
        self._parent = parent
        self._runs_suspects = runs_suspects

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    # --- a run ---

    def run(
        self,
        *,
        install_signals: bool = True,
        visibility_timeout: float = 1800,
        wait_time_seconds: float = 30,
    ) -> None:
        """Run the loops until all have ended. Blocks. With `install_signals`, SIGTERM and SIGINT
        stop it, SIGUSR1 drains it, and SIGUSR2 writes all stacks to the crash file.
        """
        timeouts = self._timeouts(visibility=visibility_timeout, wait=wait_time_seconds)
        timeouts.validate()
        for problem in timeouts.problems(parent_renews=self._parent is not None):
            self.events.emit(TimeoutsMismatched(setting=problem.setting, problem=problem.problem))
        with self._run_guard.run() as run_handle:
            if run_handle.is_stopping:
                return
            with self._handle_signals(run_handle, install_signals) as coordinator:
                group_run = GroupRun(
                    self,
                    run_handle,
                    coordinator=coordinator,
                    parent=self._parent,
                    runs_suspects=self._runs_suspects,
                )
                self._group_run, self.health = group_run, group_run.health
                try:
                    group_run.run(
                        visibility_timeout=visibility_timeout, wait_time_seconds=wait_time_seconds
                    )
                finally:
                    self.health, self._draining = None, False

    def timeout_problems(self, *, wait_time_seconds: float) -> list[TimeoutProblem]:
        """The timeouts of a worker process that work but not as intended. Its parent renews the
        leases.
        """
        timeouts = self._timeouts(visibility=1800, wait=wait_time_seconds)
        return list(timeouts.problems(parent_renews=True))

    @property
    def _is_stopping(self) -> bool:
        return self._group_run is not None and self._group_run.is_stopping

    def _timeouts(self, *, visibility: float, wait: float) -> Timeouts:
        return Timeouts(
            threshold=self.watchdog_threshold,
            interval=self.watchdog_interval,
            wait=wait,
            visibility=visibility,
            shutdown=self.shutdown_timeout,
            processing=self.max_processing_seconds,
        )

    def _in_own_thread(self) -> bool:
        health = self.health
        return health is not None and any(runner.in_own_thread for runner in health.runners)

    def _forward(self, action: str) -> None:
        health = self.health
        for runner in health.runners if health is not None else ():
            runner.forward(action)

    # --- signals ---

    @contextmanager
    def _handle_signals(
        self,
        run_handle: RunHandle,
        install: bool,  # noqa: FBT001 - as it was asked for
    ) -> Iterator[ShutdownCoordinator | None]:
        if not install:
            yield None
        elif threading.current_thread() is not threading.main_thread():
            self.events.emit(SignalHandlersSkipped())
            yield None
        else:
            with (
                _shutdown_coordinator(self.events) as coordinator,
                catch_signals((signal.SIGUSR1,)) as stream,
            ):
                BackgroundThread(
                    lambda: self._drain_on_signal(stream), name="longwatch-drain"
                ).start()
                stop = run_handle.stop_requested.set
                coordinator.register(stop)
                try:
                    yield coordinator
                finally:
                    coordinator.unregister(stop)

    def _drain_on_signal(self, stream: SignalStream) -> None:
        for _ in stream:
            self.drain()


@contextmanager
def _shutdown_coordinator(events: Events) -> Iterator[ShutdownCoordinator]:
    """The installed coordinator, else a temporary one."""
    present = ShutdownCoordinator.get()
    coordinator = present or ShutdownCoordinator.install(events=events)
    try:
        yield coordinator
    finally:
        if present is None:
            ShutdownCoordinator.reset()


def _as_loops(given: Runnable | Iterable[Runnable]) -> tuple[Runnable, ...]:
    """The loops of a group, from one loop or several; UsageError for anything else."""
    loops: tuple[Any, ...] = (given,)
    if isinstance(given, Iterable) and not isinstance(given, Runnable | str):
        loops = tuple(given)
    for loop in loops:
        if isinstance(loop, type):
            takes_requests = "requests" in inspect.signature(loop).parameters
            arguments = "requests=…" if takes_requests else "…"
            raise UsageError(
                f"expected a loop instance, got the class {loop.__name__}; pass "
                f"{loop.__name__}({arguments})"
            )
        if not isinstance(loop, Runnable):
            raise UsageError(
                f"expected a loop, got {loop!r}; a loop has run, shutdown, running, __enter__ "
                f"and __exit__"
            )
    return loops


def _names(loops: Sequence[Runnable]) -> tuple[str, ...]:
    """Each loop's own name, else one by its position. UsageError if two loops have one name."""
    if not loops:
        raise UsageError("a group needs at least one loop")
    given: list[str | None] = [getattr(loop, "name", None) for loop in loops]
    if len({id(loop) for loop in loops}) < len(loops):
        raise UsageError("this group has one loop twice; make a second instance")
    named = [name for name in given if name is not None]
    if duplicates := sorted({name for name in named if named.count(name) > 1}):
        raise UsageError(
            f"loops of a group need different names; more than one is called "
            f"{', '.join(duplicates)}"
        )
    return tuple(name or _unused_name(named, f"loop-{index}") for index, name in enumerate(given))


def _unused_name(taken: Sequence[str], name: str) -> str:
    """The name, with a suffix if another loop has it."""
    return name if name not in taken else _unused_name(taken, f"{name}-unnamed")
