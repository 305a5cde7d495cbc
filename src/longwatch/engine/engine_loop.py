"""An engine as something that a group runs: `run` blocks, `shutdown` ends it, and its heartbeat
is as fresh as its stalest slot.
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


class EngineLoop(ABC):
    """Runs an engine over one source from `run` to `shutdown`, as often as it is asked to. It obeys
    `host.service.Runnable`.

    A subclass says what the source is, who runs its rows and by which policy.
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
        """That of a run which left work behind."""
        self._is_drained = False
        self._run_guard = RunGuard(self._display_name, self.clock)
        if shutdown_timeout is not None and not shutdown_timeout >= 0:
            kind = type(self).__name__
            raise UsageError(
                f"shutdown_timeout of {kind} must be a number of seconds, or None, not "
                f"{shutdown_timeout}"
            )

    # --- what a subclass says ---

    @property
    @abstractmethod
    def _source(self) -> ClaimSource: ...

    @property
    @abstractmethod
    def store_identity(self) -> object:
        """What stands for its store: equal for two loops over the same."""

    @abstractmethod
    def _make_runner(self, environment: EngineEnvironment) -> RowRunner:
        """Who runs the rows of one run."""

    @abstractmethod
    def _policy_for(self, max_polls: int | None, visibility: float, wait: float) -> EnginePolicy:
        """How the engine works, by the arguments of `run`, which it checks."""

    def _stop_listeners(self, _run: RunHandle) -> Iterable[Callable[[], None]]:
        """Begin to listen for reasons of one's own to end this turn; what ends each."""
        return ()

    def _while_running(
        self, _engine: Engine, _environment: EngineEnvironment
    ) -> AbstractContextManager[object]:
        """What goes on while the engine works, until it has stopped."""
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
        """Work until `max_iterations` polls are made, or `shutdown` is called; blocks."""
        policy = self._policy_for(max_iterations, visibility_timeout, wait_time_seconds)
        with self._run_guard.run() as run:
            if not run.is_stopping and policy.max_polls != 0:
                self._run_engine(run, policy)

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """Finish what is in flight, hand back the rest, and have `run` return. True only if all of
        that happened within the timeout.

        Before the first run: that one returns at once. After a run that left work behind: waits for
        that work. From one of its own threads it cannot wait, and returns False.
        """
        deadline = Deadline.after(timeout, self.clock)
        run = self._run_guard.request_stop(deadline)
        if run is None:
            return self._stop_left_engine(deadline)
        return not self.in_own_thread and run.wait_ended(timeout)

    def drain(self) -> None:
        """Take nothing more, hand back what was not begun, until `resume` or the end of the run;
        what runs goes on.
        """
        self._is_drained = True
        engine = self._engine
        if engine is not None:
            engine.drain()

    def resume(self) -> None:
        """Take work again."""
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
        """Run there from the next run on."""
        self._environment = environment

    def blame_only_stalled(self, threshold: float) -> None:
        """Before the process is ended because of silence: rows whose work has beaten within so
        long are not to blame.
        """
        engine = self._engine
        if engine is not None:
            engine.blame_only_stalled(threshold)

    def check_store(self) -> None:
        """Ask its store something small; its error comes out if that cannot be."""
        self._source.next_due()

    @property
    def has_reached_store(self) -> bool:
        """Whether it has reached its store since it runs."""
        engine = self._engine
        return engine is not None and (engine.started or engine.held_count > 0)

    @property
    def in_own_thread(self) -> bool:
        """Whether this is asked from one of its own threads, which cannot wait for its end."""
        engine = self._engine
        return engine is not None and engine.in_own_thread

    @property
    def held_count(self) -> int:
        """How many rows it has at present."""
        engine = self._engine
        return 0 if engine is None else engine.held_count

    @property
    def heartbeat_age(self) -> float | None:
        """Seconds since the stalest sign of life; None if it has no engine yet."""
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
                self.heartbeat.beat()  # from here on its own counts again
                self._engine = None
                self._is_drained = False
                if not stopped:
                    run.has_left_work, self._left_engine = True, engine
        if not stopped:
            raise ShutdownTimeoutError(
                f"{environment.name} was still busy when its time to stop was over; its work is "
                f"left behind"
            )

    def _stop_left_engine(self, deadline: Deadline) -> bool:
        """Whether nothing is left behind, or what was has ended before the deadline."""
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
        """A source that another process can open has its leases renewed by the parent, and its
        suspects run in processes of their own.
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
        """Have the engine up as soon as its store is there; False if it was told to stop before
        that.
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
                if engine.draining != self._is_drained:  # somebody has changed their mind meanwhile
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
    """As fresh as the stalest slot that is busy, so that one that is stuck cannot hide behind
    those that work.
    """

    __slots__ = ("_owner",)

    def __init__(self, owner: EngineLoop) -> None:
        super().__init__(owner.clock)
        self._owner = owner

    def elapsed(self) -> float:
        freshness = self._owner.heartbeat_age
        return super().elapsed() if freshness is None else freshness


def _start_or_refusal(engine: Engine) -> bool | Exception:
    """True; or what nobody can do anything about by trying again."""
    try:
        engine.start()
    except StoreError as error:
        if error.exit_code == StoreError.exit_code:
            raise
        return error
    except UsageError as error:
        return error
    return True
