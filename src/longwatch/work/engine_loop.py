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
from longwatch.core.events import Events
from longwatch.core.heartbeat import Heartbeat
from longwatch.core.lease import LeasePolicy
from longwatch.errors import ShutdownTimeoutError, StoreError, UsageError
from longwatch.work.calls import SourceCall
from longwatch.work.engine import Engine, EnginePolicy
from longwatch.work.place import LEASE_UNDER_A_PARENT, Place
from longwatch.work.policy import Surroundings
from longwatch.work.slots import Runner
from longwatch.work.source import Source
from longwatch.work.telling import told_to_logging
from longwatch.work.turns import Turn, Turns, look_up


class EngineLoop(ABC):
    """Runs an engine over one source from `run` to `shutdown`, as often as it is asked to. It obeys
    `host.runnable.Runnable`.

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
        self._place: Place | None = None
        self._engine: Engine | None = None
        self._drained = False
        self._turns = Turns(self._called, self.clock)
        if shutdown_timeout is not None and not shutdown_timeout >= 0:
            kind = type(self).__name__
            raise UsageError(
                f"shutdown_timeout of {kind} must be a number of seconds, or None, not "
                f"{shutdown_timeout}"
            )

    # --- what a subclass says ---

    @property
    @abstractmethod
    def _source(self) -> Source: ...

    @property
    @abstractmethod
    def home(self) -> object:
        """What stands for its store: equal for two loops over the same."""

    @abstractmethod
    def _runner(self, place: Place) -> Runner:
        """Who runs the rows of one run."""

    @abstractmethod
    def _policy(self, polls: int | None, visibility: float, wait: float) -> EnginePolicy:
        """How the engine works, by the arguments of `run`, which it checks."""

    def _enders(self, _turn: Turn) -> Iterable[Callable[[], None]]:
        """Begin to listen for reasons of one's own to end this turn; what ends each."""
        return ()

    def _alongside(self, _engine: Engine, _place: Place) -> AbstractContextManager[object]:
        """What goes on while the engine works, until it has stopped."""
        return nullcontext()

    # --- the contract of a Runnable ---

    @property
    def running(self) -> bool:
        return self._turns.present is not None

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 20,
    ) -> None:
        """Work until `max_iterations` polls are made, or `shutdown` is called; blocks."""
        policy = self._policy(max_iterations, visibility_timeout, wait_time_seconds)
        with self._turns.one() as turn:
            if not turn.told and policy.polls != 0:
                self._work(turn, policy)

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """Finish what is in flight, hand back the rest, and have `run` return; whether it did,
        within the timeout.

        Before the first run: that one returns at once. From one of its own threads it cannot wait,
        and returns False.
        """
        deadline = Deadline.after(timeout, self.clock)
        turn = self._turns.tell(deadline)
        if turn is None:
            return True
        return not self.inside and self.clock.wait(turn.ended, timeout)

    def drain(self) -> None:
        """Take nothing more, hand back what was not begun, until `resume` or the end of the run;
        what runs goes on.
        """
        self._drained = True
        engine = self._engine
        if engine is not None:
            engine.drain()

    def resume(self) -> None:
        """Take work again."""
        self._drained = False
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

    def attach(self, place: Place) -> None:
        """Run there from the next run on."""
        self._place = place

    def excuse_the_fresh(self, after: float) -> None:
        """Before the process is ended because of silence: rows whose work has beaten within so
        long are not to blame.
        """
        engine = self._engine
        if engine is not None:
            engine.excuse_the_fresh(after)

    def reach(self) -> None:
        """Ask its store something small; its error comes out if that cannot be."""
        self._source.next_due()

    @property
    def entered(self) -> bool:
        """Whether it has reached its store since it runs."""
        engine = self._engine
        return engine is not None and (engine.started or engine.holding > 0)

    @property
    def inside(self) -> bool:
        """Whether this is asked from one of its own threads, which cannot wait for its end."""
        engine = self._engine
        return engine is not None and engine.inside

    @property
    def holding(self) -> int:
        """How many rows it has at present."""
        engine = self._engine
        return 0 if engine is None else engine.holding

    @property
    def freshness(self) -> float | None:
        """Seconds since the stalest sign of life; None if it has no engine yet."""
        engine = self._engine
        return None if engine is None else engine.freshness()

    # --- one run ---

    def _work(self, turn: Turn, policy: EnginePolicy) -> None:
        place = self._place or Place(name=self._called, events=self._events or told_to_logging())
        if place.parent is not None and self._source.whereabouts() is not None:
            policy = replace(policy, lease=LeasePolicy(LEASE_UNDER_A_PARENT), stale_after=None)
        engine = self._engine = self._made(place, policy)
        stopped = True
        with ExitStack() as alongside:
            try:
                if self._has_started(engine, turn, place):
                    alongside.enter_context(self._alongside(engine, place))
                    self._wait(engine, turn)
            finally:
                stopped = engine.stop(deadline=turn.deadline)
                self.heartbeat.beat()  # from here on its own counts again
                self._engine = None
                self._drained = False
        if not stopped:
            raise ShutdownTimeoutError(
                f"{place.name} was still busy when its time to stop was over; its work is "
                f"left behind"
            )

    def _made(self, place: Place, policy: EnginePolicy) -> Engine:
        return Engine(
            self._source,
            self._runner(place),
            policy=policy,
            name=place.name,
            clock=self.clock,
            events=place.events,
            solitude=place.solitude,
            parent=place.parent,
            drained=lambda: self._drained,
        )

    def _has_started(self, engine: Engine, turn: Turn, place: Place) -> bool:
        """Have the engine up as soon as its store is there; False if it was told to stop before
        that.
        """
        entering = SourceCall(
            "enter",
            Surroundings(place.name, engine.policy, self.clock, place.events, engine.heartbeat),
        )
        while not turn.told:
            refusal = entering.make(lambda: _started(engine))
            if isinstance(refusal, Exception):
                raise refusal
            if refusal:
                if engine.draining != self._drained:  # somebody has changed their mind meanwhile
                    (engine.drain if self._drained else engine.resume)()
                return True
            engine.heartbeat.beat()
            self.clock.wait(turn.over, entering.retry_in)
        return False

    def _wait(self, engine: Engine, turn: Turn) -> None:
        with ExitStack() as undo:
            undo.callback(engine.wait_exhausted(turn.over))
            for ender in self._enders(turn):
                undo.callback(ender)
            while not self.clock.wait(turn.over, look_up()):
                pass

    @property
    def _called(self) -> str:
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
        freshness = self._owner.freshness
        return super().elapsed() if freshness is None else freshness


def _started(engine: Engine) -> bool | Exception:
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
