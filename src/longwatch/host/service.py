"""Services: the start and stop contract of every long-lived object, and that of loops (`Runnable`).

    stopped ──start──► starting ──came up──► started ──stop──► stopping ──went down──► stopped
       ▲                  │                                     ▲    │
       └─────failed───────┘                                stop │    │ overran
                                                                └─ stuck ◄┘

A service is *stuck* if a stop did not succeed: `_stop` raised or its time ran out. A stuck service
is neither started nor stopped, and it refuses to start. Another `stop()` tries again.
Each process has its own state: in a forked child every service is stopped.
`longwatch.testing.check_service` certifies that a service keeps the contract.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from functools import partial
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from longwatch.core.clock import Clock, SystemClock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.core.state_machine import StateMachine
from longwatch.errors import DeadlineExceededError, ServiceStateError
from longwatch.host.background_thread import BackgroundThread

STOP_TIMEOUT = 30.0


class ServiceState(Enum):
    STOPPED = "stopped"
    STARTING = "starting"
    STARTED = "started"
    STOPPING = "stopping"
    STUCK = "stuck"


class ServiceTransition(Enum):
    """Inputs of the service state machine: two requests from outside, four results from inside."""

    START = "start"
    STOP = "stop"
    STARTED = "came up"
    FAILED = "failed"
    STOPPED = "went down"
    TIMED_OUT = "timed_out"


class ServiceAction(Enum):
    """The action that the caller of `start` or `stop` takes."""

    START = auto()
    STOP = auto()
    WAIT = auto()
    REFUSE = auto()


SERVICE_MACHINE = StateMachine(
    "service",
    {
        (ServiceState.STOPPED, ServiceTransition.START): (
            ServiceState.STARTING,
            ServiceAction.START,
        ),
        (ServiceState.STOPPED, ServiceTransition.STOP): (ServiceState.STOPPED, None),
        (ServiceState.STARTING, ServiceTransition.START): (
            ServiceState.STARTING,
            ServiceAction.WAIT,
        ),
        (ServiceState.STARTING, ServiceTransition.STOP): (
            ServiceState.STARTING,
            ServiceAction.WAIT,
        ),
        (ServiceState.STARTING, ServiceTransition.STARTED): (ServiceState.STARTED, None),
        (ServiceState.STARTING, ServiceTransition.FAILED): (ServiceState.STOPPED, None),
        (ServiceState.STARTED, ServiceTransition.START): (ServiceState.STARTED, None),
        (ServiceState.STARTED, ServiceTransition.STOP): (ServiceState.STOPPING, ServiceAction.STOP),
        (ServiceState.STOPPING, ServiceTransition.START): (
            ServiceState.STOPPING,
            ServiceAction.WAIT,
        ),
        (ServiceState.STOPPING, ServiceTransition.STOP): (
            ServiceState.STOPPING,
            ServiceAction.WAIT,
        ),
        (ServiceState.STOPPING, ServiceTransition.STOPPED): (ServiceState.STOPPED, None),
        (ServiceState.STOPPING, ServiceTransition.TIMED_OUT): (ServiceState.STUCK, None),
        (ServiceState.STUCK, ServiceTransition.START): (ServiceState.STUCK, ServiceAction.REFUSE),
        (ServiceState.STUCK, ServiceTransition.STOP): (ServiceState.STOPPING, ServiceAction.STOP),
    },
)


class _Operation:
    """A start or stop in progress. Callers that did not begin it wait for `done` and share its
    outcome.
    """

    __slots__ = ("done", "error", "outcome")

    def __init__(self) -> None:
        self.done = Wakeup()
        self.outcome: ServiceTransition | None = None
        self.error: BaseException | None = None


class _LocalState:
    """The state of a service in one process."""

    __slots__ = ("lock", "operation", "state", "stopped")

    def __init__(self) -> None:
        self.state = ServiceState.STOPPED
        self.lock = threading.Lock()
        self.operation = _Operation()
        self.stopped = Wakeup()
        self.stopped.set()


class Service(ABC):
    """A long-lived object that can be started and stopped repeatedly. Thread-safe.

    Subclasses implement `_start()` and `_stop(deadline)`. Neither is called while the other runs,
    nor out of turn.
    """

    def __init__(self, *, name: str, clock: Clock | None = None) -> None:
        self.name = name
        self._clock = clock or SystemClock()
        self._states: dict[int, _LocalState] = {}

    @abstractmethod
    def _start(self) -> None:
        """Start the service. An implementation that raises must have cleaned up first."""

    @abstractmethod
    def _stop(self, deadline: Deadline) -> bool:
        """Stop the service; True if it has stopped.

        Called again after False or an error, so it must first check which parts still run.
        """

    @property
    def started(self) -> bool:
        """Whether it is fully started and not asked to stop."""
        return self._local.state is ServiceState.STARTED

    @property
    def stopped(self) -> bool:
        """Whether no part of it runs."""
        return self._local.state is ServiceState.STOPPED

    @property
    def in_own_thread(self) -> bool:
        """Whether the caller is one of the service's own threads, which cannot wait for
        its stop.
        """
        return False

    def start(self) -> None:
        """Start the service; return when it is started. Blocks, idempotent.

        A caller that comes during another caller's start waits for it. If that start fails, the
        caller that began it gets the error and the others get ServiceStateError. After a failed
        start the service is stopped, and `start` can be called again. A start during a stop waits
        for the stop. Raises ServiceStateError if the service is stuck, or if its own thread would
        have to wait.
        """
        while True:
            action, operation = self._apply(ServiceTransition.START)
            if action is None:
                return
            if action is ServiceAction.START:
                self._run_start(operation)
                return
            if action is ServiceAction.REFUSE:
                raise ServiceStateError(
                    f"{self.name} was asked to stop and is still running; call stop() again before "
                    f"start()"
                )
            if self.in_own_thread:
                raise ServiceStateError(
                    f"{self.name} is being started or stopped, and its own thread cannot wait "
                    f"for that; call start() from another thread"
                )
            self._clock.wait(operation.done)
            if self._started_by(operation):
                return

    def stop(
        self, *, timeout: float | None = STOP_TIMEOUT, deadline: Deadline | None = None
    ) -> bool:
        """Stop the service; True once it is stopped, False if the time ran out first. Blocks,
        idempotent.

        A `deadline` replaces the timeout. Stopping a service that is stopped or was never started
        returns True at once. Callers that come during a stop wait for it, each within its own time.
        The caller whose call ran `_stop` gets the error that `_stop` raised. From one of its own
        threads, which cannot wait for it, the stop goes on in another thread and the result is
        False.
        """
        within = Deadline.after(timeout, self._clock) if deadline is None else deadline
        if self.in_own_thread:
            BackgroundThread(
                partial(self.stop, deadline=within), name=f"{self.name}-stops", report_errors=True
            ).start()
            return False
        while True:
            action, operation = self._apply(ServiceTransition.STOP)
            if action is None:
                return True
            if action is ServiceAction.STOP:
                return self._run_stop(operation, within)
            if not self._clock.wait(operation.done, within.remaining()):
                return False
            if operation.outcome is ServiceTransition.STOPPED:
                return True

    def wait_stopped(self, timeout: float | None = None) -> bool:
        """Wait until it is stopped; False if the timeout passes first. Does not ask it to stop."""
        return self._clock.wait(self._local.stopped, timeout)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.stop() and error is None:
            raise DeadlineExceededError(f"{self.name} did not stop within {STOP_TIMEOUT} s")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self._local.state.value}>"

    @property
    def _local(self) -> _LocalState:
        return self._states.get(os.getpid()) or self._states.setdefault(os.getpid(), _LocalState())

    def _apply(self, transition: ServiceTransition) -> tuple[ServiceAction | None, _Operation]:
        """Apply a request to the state machine; return the caller's action and the current
        operation.
        """
        local = self._local
        with local.lock:
            local.state, action = SERVICE_MACHINE.step(local.state, transition)
            if action in (ServiceAction.START, ServiceAction.STOP):
                local.operation = _Operation()
                local.stopped.clear()
            return action, local.operation

    def _run_start(self, operation: _Operation) -> None:
        try:
            self._start()
        except BaseException as error:
            self._finish_operation(operation, ServiceTransition.FAILED, error)
            raise
        self._finish_operation(operation, ServiceTransition.STARTED)

    def _run_stop(self, operation: _Operation, deadline: Deadline) -> bool:
        try:
            gone = self._stop(deadline)
        except BaseException as error:
            self._finish_operation(operation, ServiceTransition.TIMED_OUT, error)
            raise
        self._finish_operation(
            operation, ServiceTransition.STOPPED if gone else ServiceTransition.TIMED_OUT
        )
        return gone

    def _finish_operation(
        self, operation: _Operation, outcome: ServiceTransition, error: BaseException | None = None
    ) -> None:
        local = self._local
        with local.lock:
            local.state, _ = SERVICE_MACHINE.step(local.state, outcome)
            if local.state is ServiceState.STOPPED:
                local.stopped.set()
        operation.outcome, operation.error = outcome, error
        operation.done.set()

    def _started_by(self, operation: _Operation) -> bool:
        if operation.outcome is ServiceTransition.FAILED:
            raise ServiceStateError(
                f"{self.name} could not be started: {operation.error}"
            ) from operation.error
        return operation.outcome is ServiceTransition.STARTED


class ServiceGroup(Service):
    """Services that start one after another and stop in reverse order, under one deadline.

    If one fails to start, those before it are stopped again (within `rollback_timeout`) and its
    error is raised. A stop reaches every service. Each `stop` runs in a thread of its own, so a
    service that raises or ignores its deadline does not block the others. The errors are raised at
    the end, as one ExceptionGroup.
    """

    def __init__(
        self,
        services: Iterable[Service],
        *,
        name: str = "group",
        clock: Clock | None = None,
        rollback_timeout: float = STOP_TIMEOUT,
    ) -> None:
        super().__init__(name=name, clock=clock)
        self.services = tuple(services)
        self._rollback_timeout = rollback_timeout

    @property
    def in_own_thread(self) -> bool:
        return any(service.in_own_thread for service in self.services)

    def _start(self) -> None:
        for count, service in enumerate(self.services):
            try:
                service.start()
            except BaseException as error:
                self._roll_back(self.services[:count], error)
                raise

    def _stop(self, deadline: Deadline) -> bool:
        return self._stop_in_reverse(self.services, deadline)

    def _roll_back(self, services: Sequence[Service], cause: BaseException) -> None:
        """Stop the services that were started; errors of the rollback become notes on `cause`."""
        try:
            if not self._stop_in_reverse(
                services, Deadline.after(self._rollback_timeout, self._clock)
            ):
                cause.add_note(
                    f"{self.name}: not all services stopped again within {self._rollback_timeout} s"
                )
        except BaseExceptionGroup as group:
            cause.add_note(f"{self.name}: {group.exceptions!r} while stopping again")

    def _stop_in_reverse(self, services: Sequence[Service], deadline: Deadline) -> bool:
        threads = [self._stop_one(service, deadline) for service in reversed(services)]
        errors = [thread.error for thread in threads if thread.error is not None]
        if errors:
            raise BaseExceptionGroup(
                f"{self.name}: {len(errors)} of {len(services)} services failed to stop", errors
            )
        return all(service.stopped for service in services)

    def _stop_one(self, service: Service, deadline: Deadline) -> BackgroundThread:
        thread = BackgroundThread(
            partial(service.stop, deadline=deadline), name=f"{self.name}-stops-{service.name}"
        )
        thread.start(inline_fallback=True)
        thread.wait(self._clock, deadline)
        return thread


@runtime_checkable
class Runnable(Protocol):
    """A loop that runs until it is asked to stop. A group calls `run` in a thread of its own.

    `heartbeat` and `name` are optional and looked up by getattr. So are `drain` and `resume`, which
    stop and resume taking new work.
    """

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 20,
    ) -> None:
        """Process work until `max_iterations` polls are made or `shutdown` is called. Blocks."""

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """Make `run` finish its work in flight and return; True if it did within the timeout.
        Thread-safe.
        """

    @property
    def running(self) -> bool: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Shut down."""
