"""An engine as a Runnable of a group: `run` blocks, `shutdown` ends it, and its heartbeat is as old
as that of its stalest slot.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from types import TracebackType
from typing import Self

from longwatch.core.clock import Clock, SystemClock
from longwatch.core.deadline import Deadline
from longwatch.core.events.base import Events
from longwatch.core.heartbeat import Heartbeat
from longwatch.core.lease import LeasePolicy
from longwatch.engine.claim_source import ClaimSource
from longwatch.engine.engine import Engine, EnginePolicy
from longwatch.engine.event_logging import logged_events
from longwatch.engine.policy import PARENT_LEASE_SECONDS, EngineContext, EngineEnvironment
from longwatch.engine.row_life import RowRunner
from longwatch.engine.run_guard import RunGuard, RunHandle, max_wait
from longwatch.engine.source_call import SourceCall
from longwatch.errors import ShutdownTimeoutError, StoreError, UsageError
from longwatch.store.claims import RowSelection

Gauge = tuple[str, tuple[str, ...], float]
"""The name of a metric, its label values, and its number."""


class EngineLoop(ABC):
    """Runs an engine over one source from `run` to `shutdown`, repeatedly. Implements
    `host.service.Runnable`.

    A subclass provides the source, the runner of its rows and the policy.
    """

    def __init__(
        self,
        *,
        name: str | None = None,
        shutdown_timeout: float | None = None,
        clock: Clock | None = None,
        events: Events | None = None,
    ) -> None:
        self.name = name
        self.shutdown_timeout = shutdown_timeout
        self.clock = clock or SystemClock()
        self.heartbeat: Heartbeat = _LoopHeartbeat(self)
        self._events = events
        self._environment: EngineEnvironment | None = None
        self._engine: Engine | None = None
        self._left_engine: Engine | None = None
        """The engine of a run that left work behind."""
        self._is_drained = False
        self._run_guard = RunGuard(self._display_name, self.clock)
        if shutdown_timeout is not None and not shutdown_timeout >= 0:
            kind = type(self).__name__
            raise UsageError(
                f"shutdown_timeout of {kind} must be a number of seconds, or None, not "
                f"{shutdown_timeout}"
            )

    # --- for subclasses ---

    @property
    @abstractmethod
    def _source(self) -> ClaimSource: ...

    @property
    @abstractmethod
    def store_identity(self) -> object:
        """Equal for two loops over the same store."""

    def store_place(self) -> dict[str, str] | None:
        """The `url`, `name` and `kind` of where it claims from, for reports; None if
        another process cannot open it. Opens nothing.
        """
        return self._source.locator()

    @abstractmethod
    def _make_runner(self, environment: EngineEnvironment) -> RowRunner:
        """Return the runner for the rows of one run."""

    @abstractmethod
    def _policy_for(self, max_polls: int | None, visibility: float, wait: float) -> EnginePolicy:
        """Check the arguments of `run` and return the policy of the engine."""

    def _stop_listeners(self, _run: RunHandle) -> Iterable[Callable[[], None]]:
        """Start listeners that may stop this run for reasons of the subclass. Returns functions
        that end them.
        """
        return ()

    def _while_running(
        self, _engine: Engine, _environment: EngineEnvironment
    ) -> AbstractContextManager[object]:
        """Return a context manager that is open while the engine works, until it has stopped."""
        return nullcontext()

    # --- the contract of a Runnable ---

    @property
    def running(self) -> bool:
        return self._run_guard.current is not None

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 20,
    ) -> None:
        """Work until `max_iterations` polls are made or `shutdown` is called. Blocks."""
        policy = self._policy_for(max_iterations, visibility_timeout, wait_time_seconds)
        with self._run_guard.run() as run:
            if not run.is_stopping and policy.max_polls != 0:
                self._run_engine(run, policy)

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """Finish the running rows, release the others, and make `run` return. Returns True only if
        all of that happened within the timeout.

        Before the first run: that run returns at once. After a run that left work behind: waits for
        that work. In one of its own threads it cannot wait, and returns False.
        """
        deadline = Deadline.after(timeout, self.clock)
        run = self._run_guard.request_stop(deadline)
        if run is None:
            return self._stop_left_engine(deadline)
        return not self.in_own_thread and run.wait_ended(timeout)

    def drain(self) -> None:
        """Claim nothing more and release the waiting rows, until `resume` or the end of the run.
        Running rows go on.
        """
        self._is_drained = True
        engine = self._engine
        if engine is not None:
            engine.drain()

    def resume(self) -> None:
        """Claim rows again."""
        self._is_drained = False
        engine = self._engine
        if engine is not None:
            engine.resume()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    # --- for a group ---

    def attach(self, environment: EngineEnvironment) -> None:
        """Use this environment from the next run on."""
        self._environment = environment

    def blame_only_stalled(self, threshold: float) -> None:
        """Exempt rows with a heartbeat in the last `threshold` seconds from blame, before the
        process is ended because it stalled.
        """
        engine = self._engine
        if engine is not None:
            engine.blame_only_stalled(threshold)

    def describe_tasks(self) -> str:
        """Return the stacks of the coroutines that run, for people; empty without any."""
        engine = self._engine or self._left_engine
        return "" if engine is None else engine.describe_tasks()

    def check_store(self) -> None:
        """Make a small query to the store. Raises its error."""
        self._source.next_due()

    def store_gauges(self) -> list[Gauge]:
        """Read the gauges of everything of its kind in its store, so that one loop of several is
        enough. Blocks on the store, and raises its error.
        """
        return []

    @property
    def has_reached_store(self) -> bool:
        """Whether this run has reached its store."""
        engine = self._engine
        return engine is not None and (engine.started or engine.held_count > 0)

    @property
    def in_own_thread(self) -> bool:
        """Whether the caller is one of its own threads, which cannot wait for its end."""
        engine = self._engine
        return engine is not None and engine.in_own_thread

    @property
    def held_count(self) -> int:
        """How many rows it holds."""
        engine = self._engine
        return 0 if engine is None else engine.held_count

    @property
    def heartbeat_age(self) -> float | None:
        """Seconds since the oldest heartbeat of the engine and its busy slots. None if no engine
        runs.
        """
        engine = self._engine
        return None if engine is None else engine.heartbeat_age()

    # --- one run ---

    def _run_engine(self, run: RunHandle, policy: EnginePolicy) -> None:
        environment = self._environment or EngineEnvironment(
            name=self._display_name, events=self._events or logged_events()
        )
        if environment.parent is not None:
            policy = self._policy_under_parent(policy, environment)
        engine = self._engine = self._make_engine(environment, policy)
        stopped = True
        with ExitStack() as companions:
            try:
                if self._start_engine(engine, run, environment):
                    companions.enter_context(self._while_running(engine, environment))
                    self._wait(engine, run)
            finally:
                stopped = engine.stop(deadline=run.deadline)
                self.heartbeat.beat()  # the loop's own heartbeat counts again
                self._engine = None
                self._is_drained = False
                if not stopped:
                    run.has_left_work, self._left_engine = True, engine
        if not stopped:
            raise ShutdownTimeoutError(
                f"{environment.name} did not stop before its deadline; its running work is "
                f"left behind"
            )

    def _stop_left_engine(self, deadline: Deadline) -> bool:
        """Stop the engine that left work behind, if any. Returns whether it has ended before the
        deadline.
        """
        engine = self._left_engine
        if engine is None:
            return True
        stopped = engine.stop(deadline=deadline)
        if stopped and engine is self._left_engine:
            self._left_engine = None
        return stopped

    def _policy_under_parent(
        self, policy: EnginePolicy, environment: EngineEnvironment
    ) -> EnginePolicy:
        """Adapt the policy if another process can open the source: the parent then renews its
        leases and runs its suspects in separate processes.
        """
        if self._source.locator() is not None:
            policy = replace(
                policy,
                lease=LeasePolicy(PARENT_LEASE_SECONDS),
                stale_after=None,
                selection=RowSelection.ORDINARY,
            )
        if not environment.runs_suspects:
            return policy
        return replace(policy, slots=1, max_prefetch=0, selection=RowSelection.SUSPECTS)

    def _make_engine(self, environment: EngineEnvironment, policy: EnginePolicy) -> Engine:
        return Engine(
            self._source,
            self._make_runner(environment),
            policy=policy,
            name=environment.name,
            clock=self.clock,
            events=environment.events,
            exclusive_lock=environment.exclusive_lock,
            parent=environment.parent,
            starts_drained=lambda: self._is_drained,
        )

    def _start_engine(self, engine: Engine, run: RunHandle, environment: EngineEnvironment) -> bool:
        """Start the engine as soon as its store is reachable. Returns False if it was stopped
        before that.
        """
        register_call = SourceCall(
            "register_owner",
            EngineContext(
                environment.name, engine.policy, self.clock, environment.events, engine.heartbeat
            ),
        )
        while not run.is_stopping:
            refusal = register_call.run(lambda: _start_or_refusal(engine))
            if isinstance(refusal, Exception):
                raise refusal
            if refusal:
                if engine.draining != self._is_drained:  # drain() or resume() was called meanwhile
                    (engine.drain if self._is_drained else engine.resume)()
                return True
            engine.heartbeat.beat()
            self.clock.wait(run.stop_requested, register_call.retry_in)
        return False

    def _wait(self, engine: Engine, run: RunHandle) -> None:
        with ExitStack() as undo:
            undo.callback(engine.on_polls_exhausted(run.stop_requested))
            for unsubscribe in self._stop_listeners(run):
                undo.callback(unsubscribe)
            while not self.clock.wait(run.stop_requested, max_wait()):
                pass

    @property
    def _display_name(self) -> str:
        return self.name or type(self).__name__


class _LoopHeartbeat(Heartbeat):
    """As old as the heartbeat of the stalest busy slot, so that other slots cannot hide a stuck
    slot.
    """

    __slots__ = ("_owner",)

    def __init__(self, owner: EngineLoop) -> None:
        super().__init__(owner.clock)
        self._owner = owner

    def elapsed(self) -> float:
        freshness = self._owner.heartbeat_age
        return super().elapsed() if freshness is None else freshness


def _start_or_refusal(engine: Engine) -> bool | Exception:
    """Start the engine. Returns True, or an error that no retry can fix; raises one that a retry
    may fix.
    """
    try:
        engine.start()
    except StoreError as error:
        if error.exit_code == StoreError.exit_code:
            raise
        return error
    except UsageError as error:
        return error
    return True
