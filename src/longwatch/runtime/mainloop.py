"""A loop over a mailbox: your `handle` for every message, on the slots of the work engine."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import isfinite
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, get_args, get_origin

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.clock import Clock, SystemClock
from longwatch.core.deadline import Deadline
from longwatch.core.events import Events
from longwatch.core.heartbeat import Heartbeat
from longwatch.core.lease import LeasePolicy
from longwatch.errors import ShutdownTimeoutError, StoreError, UsageError
from longwatch.host.parent import ParentLine
from longwatch.mailbox import bounds
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.runner import require_no_generator_function
from longwatch.runtime.context import MainLoopContext
from longwatch.runtime.handling import Handling
from longwatch.runtime.messages import OutputT, RequestDecoder, RequestT
from longwatch.runtime.telling import told_to_logging
from longwatch.runtime.turns import Turn, Turns, look_up
from longwatch.work.calls import SourceCall
from longwatch.work.engine import Engine, EnginePolicy
from longwatch.work.policy import MOST_SLOTS, Surroundings
from longwatch.work.solitude import Solitude

LEASE_UNDER_A_PARENT = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a loop runs: in a group, perhaps in a process that has a parent."""

    name: str
    events: Events = field(default_factory=told_to_logging)
    solitude: Solitude = field(default_factory=Solitude)
    parent: ParentLine | None = None


class MainLoop(ABC, Generic[RequestT, OutputT]):
    """Takes messages from `requests`, has `handle` work on them, and sends what that returns to where the sender said, else to
    `responses`, else nowhere. `concurrency` of them at a time.

    A subclass writes `handle`. What it takes is the class's type argument, `class Pages(MainLoop[Url, Page])`, or `request_type`.
    `retry` spaces the tries of a message whose handler raises. Making one starts nothing and opens nothing.
    """

    def __init__(  # noqa: PLR0913 - the contract
        self,
        *,
        requests: Mailbox[Any],
        responses: Mailbox[Any] | None = None,
        name: str | None = None,
        concurrency: int = 1,
        shutdown_timeout: float | None = None,
        request_type: Any = None,
        retry: BackoffPolicy | None = None,
        clock: Clock | None = None,
        events: Events | None = None,
    ) -> None:
        self.requests = requests
        self.responses = responses
        self.name = name
        self.concurrency = _checked_concurrency(concurrency)
        self.shutdown_timeout = shutdown_timeout
        self.clock = clock or SystemClock()
        self.retry = retry or EnginePolicy().retry
        self.heartbeat: Heartbeat = _LoopHeartbeat(self)
        self._decoder: RequestDecoder[Any] = RequestDecoder(request_type or _request_type(type(self)))
        self._events = events
        self._place: Place | None = None
        self._engine: Engine | None = None
        self._drained = False
        self._turns = Turns(self._called, self.clock)
        self._check()

    @abstractmethod
    def handle(self, request: RequestT, context: MainLoopContext) -> Any:
        """Work on one request; what it returns is the answer. `async def` is fine too."""

    # --- the contract of a Runnable ---

    @property
    def running(self) -> bool:
        return self._turns.present is not None

    def run(self, *, max_iterations: int | None = None, visibility_timeout: float = 300, wait_time_seconds: float = 20) -> None:
        """Work until `max_iterations` polls are made, `shutdown` is called, or the mailbox is closed; blocks.

        A message is this loop's for `visibility_timeout`, and for as long again whenever that is renewed, which happens while its
        handler beats at least that often. Under a parent the lease is 15 seconds, and the parent renews it.
        """
        policy = self._policy(max_iterations, visibility_timeout, wait_time_seconds)
        with self._turns.one() as turn:
            if not turn.told and policy.polls != 0:
                self._work(turn, policy)

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """Finish what is in flight, hand back the rest, and have `run` return; whether it did, within the timeout.

        Before the first run: that one returns at once. From the loop's own handler it cannot wait, and returns False.
        """
        deadline = Deadline.after(timeout, self.clock)
        turn = self._turns.tell(deadline)
        if turn is None:
            return True
        return not self.inside and self.clock.wait(turn.ended, timeout)

    def drain(self) -> None:
        """Take nothing more, hand back what was not begun, until `resume` or the end of the run; what runs goes on."""
        self._drained = True
        engine = self._engine
        if engine is not None:
            engine.drain()

    def resume(self) -> None:
        """Take messages again."""
        self._drained = False
        engine = self._engine
        if engine is not None:
            engine.resume()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._called} on {self.requests!r}>"

    def read_request(self, body: Any) -> RequestT:
        """A plain value as the request that `handle` takes; SerializationError for one that is none."""
        request: RequestT = self._decoder.request_of(body)
        return request

    # --- for a group ---

    def attach(self, place: Place) -> None:
        """Run there from the next run on."""
        self._place = place

    def excuse_the_fresh(self, after: float) -> None:
        """Before the process is ended because of silence: messages whose handler has beaten within so long are not to blame."""
        engine = self._engine
        if engine is not None:
            engine.excuse_the_fresh(after)

    @property
    def entered(self) -> bool:
        """Whether it has reached its store since it runs."""
        engine = self._engine
        return engine is not None and engine.started

    @property
    def inside(self) -> bool:
        """Whether this is asked from one of its own threads, which cannot wait for its end."""
        engine = self._engine
        return engine is not None and engine.inside

    @property
    def holding(self) -> int:
        """How many messages it has at present."""
        engine = self._engine
        return 0 if engine is None else engine.holding

    # --- one run ---

    def _work(self, turn: Turn, policy: EnginePolicy) -> None:
        place = self._place or Place(name=self._called, events=self._events or told_to_logging())
        if place.parent is not None and self.requests.backend.whereabouts() is not None:
            policy = replace(policy, lease=LeasePolicy(LEASE_UNDER_A_PARENT), stale_after=None)
        engine = self._engine = self._made(place, policy)
        stopped = True
        try:
            if self._has_started(engine, turn, place):
                self._wait(engine, turn)
        finally:
            stopped = engine.stop(deadline=turn.deadline)
            self.heartbeat.beat()  # from here on its own counts again
            self._engine = None
            self._drained = False
        if not stopped:
            raise ShutdownTimeoutError(f"{place.name} was still busy when its time to stop was over; its work is left behind")

    def _made(self, place: Place, policy: EnginePolicy) -> Engine:
        handling = Handling(
            self.handle,
            self._decoder,
            requests=self.requests,
            responses=self.responses,
            retry=self.retry,
            name=place.name,
            clock=self.clock,
            events=place.events,
        )
        return Engine(
            self.requests.backend,
            handling,
            policy=policy,
            name=place.name,
            clock=self.clock,
            events=place.events,
            solitude=place.solitude,
            parent=place.parent,
            drained=lambda: self._drained,
        )

    def _has_started(self, engine: Engine, turn: Turn, place: Place) -> bool:
        """Have the engine up as soon as its store is there; False if it was told to stop before that."""
        entering = SourceCall("enter", Surroundings(place.name, engine.policy, self.clock, place.events, engine.heartbeat))
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
        with _listening(turn, engine, self.requests):
            while not self.clock.wait(turn.over, look_up()):
                pass

    def _policy(self, polls: int | None, visibility: float, wait: float) -> EnginePolicy:
        visibility, wait = bounds.check_visibility(visibility), bounds.check_wait(wait)
        if polls:
            bounds.check_whole("max_iterations", polls)
        if not visibility:
            raise UsageError("visibility_timeout must be more than 0 seconds; 300 is a good value")
        return EnginePolicy(
            slots=self.concurrency,
            lease=LeasePolicy(visibility),
            retry=self.retry,
            stale_after=visibility,
            polls=polls,
            poll_wait=wait if isfinite(wait) else 86_400.0,
        )

    # --- small words ---

    @property
    def _called(self) -> str:
        return self.name or type(self).__name__

    @property
    def freshness(self) -> float | None:
        """Seconds since the stalest sign of life; None if it has no engine yet."""
        engine = self._engine
        return None if engine is None else engine.freshness()

    def _check(self) -> None:
        kind = type(self).__name__
        require_no_generator_function(self.handle)
        try:
            inspect.signature(self.handle).bind(object(), object())
        except TypeError as error:
            raise UsageError(
                f"{kind}.handle cannot be called with a request and a context ({error}); write: def handle(self, request, context)"
            ) from None
        if self.shutdown_timeout is not None and not self.shutdown_timeout >= 0:
            raise UsageError(f"shutdown_timeout of {kind} must be a number of seconds, or None, not {self.shutdown_timeout}")


class _LoopHeartbeat(Heartbeat):
    """As fresh as the stalest slot that is busy, so that one that is stuck cannot hide behind those that work."""

    __slots__ = ("_owner",)

    def __init__(self, owner: MainLoop[Any, Any]) -> None:
        super().__init__(owner.clock)
        self._owner = owner

    def elapsed(self) -> float:
        freshness = self._owner.freshness
        return super().elapsed() if freshness is None else freshness


@contextmanager
def _listening(turn: Turn, engine: Engine, requests: Mailbox[Any]) -> Iterator[None]:
    """The mailbox is closed, or enough polls are made: the run is over."""
    undo = [requests.on_close(turn.over.set), engine.wait_exhausted(turn.over)]
    try:
        yield
    finally:
        for each in undo:
            each()


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


def _checked_concurrency(concurrency: int) -> int:
    return bounds.check_whole("concurrency", concurrency, most=MOST_SLOTS)


def _request_type(kind: type) -> Any:
    """What the class says it takes, itself or through the classes between; Any where it does not."""
    found = _argument(kind)
    return Any if isinstance(found, TypeVar) else found


def _argument(kind: Any) -> Any:
    origin: Any = get_origin(kind) or kind
    given = get_args(kind)
    if origin is MainLoop:
        return given[0] if given else Any
    bases = origin.__dict__.get("__orig_bases__", origin.__bases__)
    base = next(each for each in bases if issubclass(get_origin(each) or each, MainLoop))
    found = _argument(base)
    return dict(zip(origin.__parameters__, given, strict=False)).get(found, found)
