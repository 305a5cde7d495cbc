"""The contract of every long-lived object: start, started, stop, stopped.

    stopped ──start──► starting ──came up──► started ──stop──► stopping ──went down──► stopped
       ▲                  │                                     ▲    │
       └─────failed───────┘                                stop │    │ overran
                                                                └─ stuck ◄┘

*Stuck* is a service that was told to stop and is not gone: `_stop` raised or its time ran out. It
is neither started nor stopped, refuses to start, and another `stop()` tries again. Each process has
its own state: a forked child finds every service stopped. `longwatch.testing.check_service`
certifies that a service keeps the contract.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from functools import partial
from types import TracebackType
from typing import Self

from longwatch.core.clock import Clock, SystemClock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.core.machine import Machine
from longwatch.errors import DeadlineExceededError, ServiceStateError
from longwatch.host.errand import Errand

STOP_TIMEOUT = 30.0


class State(Enum):
    STOPPED = "stopped"
    STARTING = "starting"
    STARTED = "started"
    STOPPING = "stopping"
    STUCK = "stuck"


class Told(Enum):
    """What a service hears: two wishes from outside, four reports from inside."""

    START = "start"
    STOP = "stop"
    CAME_UP = "came up"
    FAILED = "failed"
    WENT_DOWN = "went down"
    OVERRAN = "overran"


class Act(Enum):
    """What the one who expressed a wish does about it."""

    BRING_UP = auto()
    TAKE_DOWN = auto()
    AWAIT = auto()
    REFUSE = auto()


LIFE = Machine(
    "service",
    {
        (State.STOPPED, Told.START): (State.STARTING, Act.BRING_UP),
        (State.STOPPED, Told.STOP): (State.STOPPED, None),
        (State.STARTING, Told.START): (State.STARTING, Act.AWAIT),
        (State.STARTING, Told.STOP): (State.STARTING, Act.AWAIT),
        (State.STARTING, Told.CAME_UP): (State.STARTED, None),
        (State.STARTING, Told.FAILED): (State.STOPPED, None),
        (State.STARTED, Told.START): (State.STARTED, None),
        (State.STARTED, Told.STOP): (State.STOPPING, Act.TAKE_DOWN),
        (State.STOPPING, Told.START): (State.STOPPING, Act.AWAIT),
        (State.STOPPING, Told.STOP): (State.STOPPING, Act.AWAIT),
        (State.STOPPING, Told.WENT_DOWN): (State.STOPPED, None),
        (State.STOPPING, Told.OVERRAN): (State.STUCK, None),
        (State.STUCK, Told.START): (State.STUCK, Act.REFUSE),
        (State.STUCK, Told.STOP): (State.STOPPING, Act.TAKE_DOWN),
    },
)


class _Change:
    """A start or stop under way: those who did not begin it wait for `over` and share its
    outcome.
    """

    __slots__ = ("error", "outcome", "over")

    def __init__(self) -> None:
        self.over = Wakeup()
        self.outcome: Told | None = None
        self.error: BaseException | None = None


class _Life:
    """What one process knows of a service."""

    __slots__ = ("change", "down", "lock", "state")

    def __init__(self) -> None:
        self.state = State.STOPPED
        self.lock = threading.Lock()
        self.change = _Change()
        self.down = Wakeup()
        self.down.set()


class Service(ABC):
    """A long-lived object that is started and stopped; safe from any thread, and again and again.

    Subclasses write `_start()` and `_stop(deadline)`. Neither is ever called while the other runs,
    nor out of turn.
    """

    def __init__(self, *, name: str, clock: Clock | None = None) -> None:
        self.name = name
        self._clock = clock or SystemClock()
        self._lives: dict[int, _Life] = {}

    @abstractmethod
    def _start(self) -> None:
        """Bring it up; when this raises it has cleaned up behind itself."""

    @abstractmethod
    def _stop(self, deadline: Deadline) -> bool:
        """Take it down and say whether it is gone; called again if it was not, so it starts by
        looking at what is left.
        """

    @property
    def started(self) -> bool:
        """Whether it is up: fully started, and not yet told to stop."""
        return self._life.state is State.STARTED

    @property
    def stopped(self) -> bool:
        """Whether nothing of it runs."""
        return self._life.state is State.STOPPED

    @property
    def inside(self) -> bool:
        """Whether this is asked from one of the service's own threads, which cannot wait for its
        end.
        """
        return False

    def start(self) -> None:
        """Return when it is up.

        Whoever comes while it is being started waits for that attempt; if it fails, its error goes
        to the one who began it and the others get ServiceStateError. A failed start leaves it
        stopped, to be tried again. A start during a stop waits for it.
        """
        while True:
            act, change = self._tell(Told.START)
            if act is None:
                return
            if act is Act.BRING_UP:
                self._bring_up(change)
                return
            if act is Act.REFUSE:
                raise ServiceStateError(
                    f"{self.name} was told to stop and is still there; stop() it again before "
                    f"start()"
                )
            if self.inside:
                raise ServiceStateError(
                    f"{self.name} is being started or stopped, and its own thread cannot wait "
                    f"for that"
                )
            self._clock.wait(change.over)
            if self._is_up_after(change):
                return

    def stop(
        self, *, timeout: float | None = STOP_TIMEOUT, deadline: Deadline | None = None
    ) -> bool:
        """Return True when it is down, False when its time ran out first; a deadline counts instead
        of the timeout.

        Stopping what is stopped, or never started, is True at once. Everyone who calls while it is
        being stopped waits, each within their own time. What `_stop` raises goes to the one whose
        call it was. One of its own threads cannot wait for it: there the stop goes on in another
        thread and the answer is False.
        """
        within = Deadline.after(timeout, self._clock) if deadline is None else deadline
        if self.inside:
            Errand(
                partial(self.stop, deadline=within), name=f"{self.name}-stops", loud=True
            ).start()
            return False
        while True:
            act, change = self._tell(Told.STOP)
            if act is None:
                return True
            if act is Act.TAKE_DOWN:
                return self._take_down(change, within)
            if not self._clock.wait(change.over, within.remaining()):
                return False
            if change.outcome is Told.WENT_DOWN:
                return True

    def wait_stopped(self, timeout: float | None = None) -> bool:
        """Wait until somebody has stopped it; False when the timeout passes first. It is not
        told to stop by this.
        """
        return self._clock.wait(self._life.down, timeout)

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
        return f"<{type(self).__name__} {self.name} {self._life.state.value}>"

    @property
    def _life(self) -> _Life:
        return self._lives.get(os.getpid()) or self._lives.setdefault(os.getpid(), _Life())

    def _tell(self, told: Told) -> tuple[Act | None, _Change]:
        """Express a wish; returns what to do about it, and the change it concerns."""
        life = self._life
        with life.lock:
            life.state, act = LIFE.step(life.state, told)
            if act in (Act.BRING_UP, Act.TAKE_DOWN):
                life.change = _Change()
                life.down.clear()
            return act, life.change

    def _bring_up(self, change: _Change) -> None:
        try:
            self._start()
        except BaseException as error:
            self._settle(change, Told.FAILED, error)
            raise
        self._settle(change, Told.CAME_UP)

    def _take_down(self, change: _Change, deadline: Deadline) -> bool:
        try:
            gone = self._stop(deadline)
        except BaseException as error:
            self._settle(change, Told.OVERRAN, error)
            raise
        self._settle(change, Told.WENT_DOWN if gone else Told.OVERRAN)
        return gone

    def _settle(self, change: _Change, outcome: Told, error: BaseException | None = None) -> None:
        life = self._life
        with life.lock:
            life.state, _ = LIFE.step(life.state, outcome)
            if life.state is State.STOPPED:
                life.down.set()
        change.outcome, change.error = outcome, error
        change.over.set()

    def _is_up_after(self, change: _Change) -> bool:
        if change.outcome is Told.FAILED:
            raise ServiceStateError(
                f"{self.name} could not be started: {change.error}"
            ) from change.error
        return change.outcome is Told.CAME_UP


class ServiceGroup(Service):
    """Services that come up one after another and go down in reverse, under one deadline.

    If one cannot be started, those before it are stopped again (within `rollback_timeout`) and its
    error is raised. Stopping tells every one of them, whatever the others do: each `stop` has a
    thread of its own, so neither one that raises nor one that ignores its deadline stands in the
    way. The errors come at the end, as one ExceptionGroup.
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
    def inside(self) -> bool:
        return any(service.inside for service in self.services)

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
        """Stop what was started; what goes wrong here is noted on the error that led here."""
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
        errands = [self._stop_one(service, deadline) for service in reversed(services)]
        errors = [errand.error for errand in errands if errand.error is not None]
        if errors:
            raise BaseExceptionGroup(
                f"{self.name}: {len(errors)} of {len(services)} services failed to stop", errors
            )
        return all(service.stopped for service in services)

    def _stop_one(self, service: Service, deadline: Deadline) -> Errand:
        errand = Errand(
            partial(service.stop, deadline=deadline), name=f"{self.name}-stops-{service.name}"
        )
        errand.start(here_if_no_thread=True)
        errand.wait(self._clock, deadline)
        return errand
