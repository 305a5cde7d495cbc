"""A source and a handler that a test holds in its hands, and an engine between them on a clock
that stands still.

Stops that are under way, and the moment before their deadline in which what still runs is
told.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from longwatch.core.clock import Wakeup
from longwatch.core.events.base import Events
from longwatch.core.lease import LeasePolicy
from longwatch.engine.claim_source import (
    ClaimedRow,
    EngineSweeper,
    EverySweep,
    ExchangeResult,
    GivenUp,
    RowOutcome,
    Settlement,
    ignore_given_up,
)
from longwatch.engine.context import RowContext
from longwatch.engine.engine import Engine, EnginePolicy
from longwatch.engine.row_life import RowRunner
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.incarnation import Incarnation
from longwatch.store.claims import Claim, RowSelection
from longwatch.testing import FakeClock, RecordingObserver

TIMEOUT = 10.0
IDLE_THREADS = 3
"""How many threads of an engine that has nothing to do are parked on its clock: exchange loop,
lease renewer, sweeper.
"""
QUIET_POLICY = EnginePolicy(
    slots=2, lease=LeasePolicy(30.0), sweep_interval=1000.0, poll_interval=1000.0, settle_delay=0.0
)


@dataclass(slots=True)
class FakeRow:
    """One row of the fake source, and what its item tells the engine."""

    seq: int
    alone: bool = False
    deliveries: int = 0
    failures: int = 0
    releases: int = 0
    failures_left: int | None = None
    claim: Claim | None = None
    owner: int | None = None
    is_gone: bool = False

    @property
    def id(self) -> str:
        return f"message-{self.seq}"


@dataclass
class FakeSource:
    """Rows in memory. `given_up` are dead letters that the next exchange, or sweep, reports;
    `faults` are called first in every call and may raise or block;
    `lost_replies` are raised at its end.
    """

    rows: list[FakeRow] = field(default_factory=list)
    settlements: list[Settlement] = field(default_factory=list)
    renewals: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)
    owners: list[tuple[str | None, float | None]] = field(default_factory=list)
    """The parent and the renewal interval of each owner."""
    drain_reports: list[bool] = field(default_factory=list)
    selections: list[RowSelection] = field(default_factory=list)
    suspects: int = 0
    place: dict[str, str] | None = None
    wants: list[int] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    due: float | None = None
    is_paused: bool = False
    is_shared: bool = False
    name: str = "orders"
    given_up: dict[str, list[GivenUp]] = field(default_factory=dict)
    faults: dict[str, Callable[[], object]] = field(default_factory=dict)
    lost_replies: dict[str, BaseException] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.changed = threading.Condition()
        self._listeners: set[Wakeup] = set()

    # --- for the test ---

    def put(self, *rows: FakeRow) -> None:
        with self.changed:
            self.rows += rows
        self.notify()

    def notify(self) -> None:
        for wakeup in tuple(self._listeners):
            wakeup.set()

    def wait_until(self, condition: Callable[[], bool], what: str = "it") -> None:
        with self.changed:
            assert self.changed.wait_for(condition, TIMEOUT), (
                f"{what} did not happen; {self.settlements} {self.calls[-10:]}"
            )

    def wait_for_settlements(self, *expected: tuple[int, RowOutcome]) -> None:
        self.wait_until(
            lambda: sorted(expected) == sorted(self.outcomes()),
            f"{expected}, there is {self.outcomes()}: it",
        )

    def outcomes(self) -> list[tuple[int, RowOutcome]]:
        return [(settlement.claim.seq, settlement.outcome) for settlement in self.settlements]

    def wait_for_calls(self, name: str, count: int) -> None:
        self.wait_until(lambda: self.calls.count(name) >= count, f"{count} × {name}")

    def reclaim(self, seq: int) -> None:
        """As a sweeper does whose clock says that the lease has ended: the row is somebody
        else's now.
        """
        with self.changed:
            [row] = [row for row in self.rows if row.seq == seq]
            row.claim = Claim(seq, -1, row.deliveries + 1)

    # --- work.Source ---

    def register_owner(
        self,
        incarnation: Incarnation,
        *,
        page: str | None = None,
        parent: str | None = None,
        renew_seconds: float | None = None,
    ) -> int:
        with self._called("register_owner"):
            self.pages.append(page or "")
            self.owners.append((parent, renew_seconds))
            return len(self.pages)

    def exchange(
        self,
        settlements: Sequence[Settlement],
        *,
        owner: int,
        limit: int,
        lease_seconds: float,
        selection: RowSelection = RowSelection.ANY,
    ) -> ExchangeResult:
        with self._called("exchange"):
            settled = [self._settle(settlement) for settlement in settlements]
            self.wants.append(limit)
            self.selections.append(selection)
            return ExchangeResult(
                settled,
                self._claim(owner, limit) if limit and not self.is_paused else [],
                given_up=self.given_up.pop("exchange", ()),
            )

    def renew(self, *, owner: int, lease_seconds: float, skip: Collection[Claim] = ()) -> int:
        with self._called("renew"):
            kept = [claim for claim in self._held(owner) if claim not in skip]
            self.renewals.append((len(kept), tuple(claim.seq for claim in skip)))
            return len(kept)

    def held(self, *, owner: int) -> list[Claim]:
        with self._called("held"):
            return self._held(owner)

    def report_draining(self, *, owner: int, is_draining: bool = True) -> None:
        with self._called("report_draining"):
            self.drain_reports.append(is_draining)

    def count_suspects(self, *, limit: int) -> int:
        with self._called("count_suspects"):
            return min(self.suspects, limit)

    def row_ids(self, seqs: Collection[int]) -> dict[int, str]:
        return {seq: f"message-{seq}" for seq in seqs}

    def sweep(self, on_given_up: Callable[[GivenUp], None] = ignore_given_up) -> int:
        with self._called("sweep"):
            for each in self.given_up.pop("sweep", ()):
                on_given_up(each)
            return 0

    def sweeper_for(self, incarnation: Incarnation, *, selection: RowSelection) -> EngineSweeper:
        return EverySweep(self.sweep)

    def locator(self) -> dict[str, str] | None:
        return self.place

    def next_due(self) -> float | None:
        with self._called("next_due"):
            return self.due

    def listen(self, wakeup: Wakeup) -> Callable[[], None]:
        with self._called("listen"):
            self._listeners.add(wakeup)
        return lambda: self._listeners.discard(wakeup)

    @contextmanager
    def _called(self, name: str) -> Iterator[None]:
        with self.changed:
            self.calls.append(name)
            self.changed.notify_all()
        if name in self.faults:
            self.faults[name]()
        with self.changed:
            yield
            self.changed.notify_all()
        if name in self.lost_replies:
            raise self.lost_replies[name]

    def _settle(self, settlement: Settlement) -> bool:
        rows = [row for row in self.rows if row.claim == settlement.claim]
        if not rows:
            return False
        [row] = rows
        self.settlements.append(settlement)
        row.claim = None
        row.failures += settlement.outcome is RowOutcome.FAILED
        row.releases += settlement.outcome is RowOutcome.RELEASED
        row.is_gone = (
            settlement.outcome in {RowOutcome.DONE, RowOutcome.DEAD} or settlement.delay > 0
        )
        return True

    def _claim(self, owner: int, want: int) -> list[ClaimedRow]:
        leased: list[ClaimedRow] = []
        for row in self.rows:
            if row.claim is not None or row.is_gone:
                continue
            if len(leased) == want or (row.alone and leased):
                break
            row.deliveries += 1
            row.claim = Claim(row.seq, owner, row.deliveries)
            leased.append(
                ClaimedRow(row.claim, row, is_exclusive=row.alone, failures_left=row.failures_left)
            )
            if row.alone:
                break
        return leased

    def _held(self, owner: int) -> list[Claim]:
        return [
            row.claim for row in self.rows if row.claim is not None and row.claim.owner == owner
        ]


class GatedRunner:
    """A runner whose every row waits until the test says how it ends."""

    def __init__(self) -> None:
        self.started: queue.SimpleQueue[RowContext] = queue.SimpleQueue()
        self.contexts: dict[int, RowContext] = {}
        self._ends: dict[int, queue.SimpleQueue[Callable[[], Settlement | None]]] = {}
        self._lock = threading.Lock()
        self._is_open = False

    def __call__(self, leased: ClaimedRow, context: RowContext) -> Settlement | None:
        self.contexts[leased.claim.seq] = context
        self.started.put(context)
        return self._outcomes_of(leased.claim.seq).get(timeout=10 * TIMEOUT)() or Settlement(
            leased.claim, RowOutcome.DONE
        )

    def next_started(self) -> int:
        """The row that begins next."""
        return self.started.get(timeout=TIMEOUT).claimed.claim.seq

    def open(self, *rows: int) -> None:
        for seq in rows:
            self._outcomes_of(seq).put(lambda: None)

    def fail(self, seq: int, error: BaseException) -> None:
        def end() -> None:
            raise error

        self._outcomes_of(seq).put(end)

    def open_all(self) -> None:
        """Let everything through, now and from now on."""
        with self._lock:
            self._is_open = True
            ends = tuple(self._ends)
        self.open(*ends)

    def _outcomes_of(self, seq: int) -> queue.SimpleQueue[Callable[[], Settlement | None]]:
        with self._lock:
            end = self._ends.setdefault(seq, queue.SimpleQueue())
            if self._is_open:
                end.put(lambda: None)
            return end


@dataclass
class EngineRig:
    """An engine, what it works with, and what it told."""

    source: FakeSource
    clock: FakeClock
    observer: RecordingObserver
    engine: Engine

    @property
    def fetcher(self) -> Any:
        assert self.engine._current_run is not None
        return self.engine._current_run.fetcher

    @property
    def exchange_loop(self) -> Any:
        assert self.engine._current_run is not None
        return self.engine._current_run.exchange_loop

    def wait_idle(self) -> None:
        """Return when exchange loop, lease renewer and sweeper all wait."""
        self.clock.await_parked(IDLE_THREADS)

    def pass_time(self, seconds: float, *, parked: int = IDLE_THREADS) -> None:
        """Move time no faster than the store answers: a renewal is not on the clock, and time
        would outrun it.
        """
        end = self.clock.monotonic() + seconds
        while (now := self.clock.monotonic()) < end:
            self._await_renewal()
            self.clock.await_parked(parked)
            self.clock.advance(
                min(max(self.clock._next_due() - now, 0.0), end - now), parked=parked
            )
        self._await_renewal()
        self.clock.await_parked(parked)

    def _await_renewal(self) -> None:
        assert self.engine._current_run is not None
        renewal = self.engine._current_run._lease_renewer._renewal
        assert renewal is None or renewal.done.block(TIMEOUT)


@contextmanager
def running_engine(
    runner: RowRunner,
    *rows: FakeRow,
    policy: EnginePolicy = QUIET_POLICY,
    source: FakeSource | None = None,
    clock: FakeClock | None = None,
) -> Iterator[EngineRig]:
    """A started engine; at the end whatever the test left running is let go by moving its clock
    until it is stopped.
    """
    source = source or FakeSource()
    source.put(*rows)
    clock, observer = clock or FakeClock(), RecordingObserver()
    engine = Engine(source, runner, policy=policy, clock=clock, events=Events(observer))
    engine.start()
    try:
        yield EngineRig(source, clock, observer, engine)
    finally:
        source.faults.clear()
        source.lost_replies.clear()
        if isinstance(runner, GatedRunner):
            runner.open_all()
        stop_advancing_clock(engine, clock)
    assert not source._listeners


def stop_advancing_clock(engine: Engine, clock: FakeClock) -> None:
    """Stop it without a deadline, and move time while it ends: it may wait for a backoff, or for
    company to settle with.
    """
    stopping = threading.Thread(target=lambda: engine.stop(timeout=None), daemon=True)
    stopping.start()
    for _ in range(2000):
        stopping.join(0.005)
        if not stopping.is_alive():
            return
        due = clock._next_due()
        clock._wake_due(due) if due < clock.monotonic() + 60 else None
    raise AssertionError(f"{engine} did not stop")


def fake_rows(*numbers: int) -> list[FakeRow]:
    return [FakeRow(number) for number in numbers]


STOP_TIMEOUT = 10.0
_STOPPING = "stopping"


class BackgroundStop:
    """A stop under way in another thread."""

    def __init__(self, stop: Callable[[], bool]) -> None:
        self.stopped: bool | None = None
        self._stop = stop
        self._thread = BackgroundThread(self._run, name=_STOPPING)
        self._thread.start()

    def _run(self) -> None:
        self.stopped = self._stop()

    def is_finished(self, *, within: float) -> bool:
        return self._thread.done.block(within)

    def wait(self) -> bool | None:
        assert self.is_finished(within=STOP_TIMEOUT)
        if self._thread.error is not None:
            raise self._thread.error
        return self.stopped


def stop_once_cancelled(
    clock: FakeClock, is_cancelled: Callable[[], bool], stop: Callable[[float], bool]
) -> bool | None:
    """Stop with a deadline, and move time until `is_cancelled`; the result of the stop. Time stands
    still after the cancel: however slow the machine is, the cancelled code has all the time it
    takes.
    """
    return begin_stop_until(clock, is_cancelled, stop).wait()


def begin_stop_until(
    clock: FakeClock, is_cancelled: Callable[[], bool], stop: Callable[[float], bool]
) -> BackgroundStop:
    """Begin a stop with a deadline, and move time until `is_cancelled`, which has to be before the
    last second. Time moves once the stop has its deadline, and stands still in that last second:
    whatever is computed from the time that is left stays right.
    """
    until = clock.monotonic() + 19.0
    with _first_reading(clock) as has_deadline:
        stopping = BackgroundStop(lambda: stop(20.0))
        assert has_deadline.wait(STOP_TIMEOUT)
    for _ in range(2000):
        if is_cancelled():
            return stopping
        clock._wake_due(min(clock.monotonic() + 0.5, until))
        stopping.is_finished(within=0.005)
    raise AssertionError("the code was not cancelled")


@contextmanager
def _first_reading(clock: FakeClock) -> Iterator[threading.Event]:
    """An event that is set when a thread of a BackgroundStop has read the clock."""
    was_read = threading.Event()

    def monotonic() -> float:
        now = FakeClock.monotonic(clock)
        if threading.current_thread().name == _STOPPING:
            was_read.set()
        return now

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "monotonic", monotonic)
        yield was_read
