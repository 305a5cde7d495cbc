"""A source and a handler that a test holds in its hands, and an engine between them on a clock
that stands still.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from longwatch.core.clock import Wakeup
from longwatch.core.events import Events
from longwatch.core.fake_clock import FakeClock
from longwatch.core.lease import LeasePolicy
from longwatch.host.incarnation import Incarnation
from longwatch.store.claims import Claim
from longwatch.testing import RecordingObserver
from longwatch.work.context import WorkContext
from longwatch.work.engine import Engine, EnginePolicy
from longwatch.work.slots import Runner
from longwatch.work.source import Exchange, Leased, Outcome, Settlement

PATIENCE = 10.0
RESTING = 3
"""How many threads of an engine that has nothing to do are parked on its clock: feeder, keeper,
sweeper.
"""
QUIET = EnginePolicy(
    slots=2, lease=LeasePolicy(30.0), sweep_every=1000.0, poll=1000.0, settle_within=0.0
)


@dataclass(slots=True)
class Item:
    """One row of the fake source, and what its item tells the engine."""

    seq: int
    alone: bool = False
    deliveries: int = 0
    failures: int = 0
    claim: Claim | None = None
    owner: int | None = None
    gone: bool = False


@dataclass
class FakeSource:
    """Rows in memory. `faults` are called first in every call and may raise or block;
    `lost_answers` are raised at its end.
    """

    rows: list[Item] = field(default_factory=list)
    settlements: list[Settlement] = field(default_factory=list)
    renewals: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)
    wants: list[int] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    due: float | None = None
    paused: bool = False
    faults: dict[str, Callable[[], object]] = field(default_factory=dict)
    lost_answers: dict[str, BaseException] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.changed = threading.Condition()
        self._listeners: set[Wakeup] = set()

    # --- for the test ---

    def put(self, *rows: Item) -> None:
        with self.changed:
            self.rows += rows
        self.hint()

    def hint(self) -> None:
        for wakeup in tuple(self._listeners):
            wakeup.set()

    def await_that(self, holds: Callable[[], bool], what: str = "it") -> None:
        with self.changed:
            assert self.changed.wait_for(holds, PATIENCE), (
                f"{what} did not happen; {self.settlements} {self.calls[-10:]}"
            )

    def await_settled(self, *expected: tuple[int, Outcome]) -> None:
        self.await_that(
            lambda: sorted(expected) == sorted(self.outcomes()),
            f"{expected}, there is {self.outcomes()}: it",
        )

    def outcomes(self) -> list[tuple[int, Outcome]]:
        return [(settlement.claim.seq, settlement.outcome) for settlement in self.settlements]

    def await_calls(self, name: str, count: int) -> None:
        self.await_that(lambda: self.calls.count(name) >= count, f"{count} × {name}")

    def take_away(self, seq: int) -> None:
        """As a sweeper does whose clock says that the lease has ended: the row is somebody
        else's now.
        """
        with self.changed:
            [row] = [row for row in self.rows if row.seq == seq]
            row.claim = Claim(seq, -1, row.deliveries + 1)

    # --- work.Source ---

    def enter(self, incarnation: Incarnation, *, page: str | None = None) -> int:
        with self._called("enter"):
            self.pages.append(page or "")
            return len(self.pages)

    def exchange(
        self, settlements: Sequence[Settlement], *, owner: int, want: int, duration: float
    ) -> Exchange:
        with self._called("exchange"):
            settled = [self._settle(settlement) for settlement in settlements]
            self.wants.append(want)
            return Exchange(settled, self._claim(owner, want) if want and not self.paused else [])

    def renew(self, *, owner: int, duration: float, skip: Collection[Claim] = ()) -> int:
        with self._called("renew"):
            kept = [claim for claim in self._held(owner) if claim not in skip]
            self.renewals.append((len(kept), tuple(claim.seq for claim in skip)))
            return len(kept)

    def held(self, *, owner: int) -> list[Claim]:
        with self._called("held"):
            return self._held(owner)

    def sweep(self) -> int:
        with self._called("sweep"):
            return 0

    def whereabouts(self) -> dict[str, str] | None:
        return None

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
        if name in self.lost_answers:
            raise self.lost_answers[name]

    def _settle(self, settlement: Settlement) -> bool:
        rows = [row for row in self.rows if row.claim == settlement.claim]
        if not rows:
            return False
        [row] = rows
        self.settlements.append(settlement)
        row.claim = None
        row.failures += settlement.outcome is Outcome.FAILED
        row.gone = settlement.outcome in {Outcome.DONE, Outcome.DEAD} or settlement.delay > 0
        return True

    def _claim(self, owner: int, want: int) -> list[Leased]:
        leased: list[Leased] = []
        for row in self.rows:
            if row.claim is not None or row.gone:
                continue
            if len(leased) == want or (row.alone and leased):
                break
            row.deliveries += 1
            row.claim = Claim(row.seq, owner, row.deliveries)
            leased.append(Leased(row.claim, row, alone=row.alone))
            if row.alone:
                break
        return leased

    def _held(self, owner: int) -> list[Claim]:
        return [
            row.claim for row in self.rows if row.claim is not None and row.claim.owner == owner
        ]


class Gate:
    """A runner whose every row waits until the test says how it ends."""

    def __init__(self) -> None:
        self.began: queue.SimpleQueue[WorkContext] = queue.SimpleQueue()
        self.contexts: dict[int, WorkContext] = {}
        self._ends: dict[int, queue.SimpleQueue[Callable[[], Settlement | None]]] = {}
        self._lock = threading.Lock()
        self._is_open = False

    def __call__(self, leased: Leased, context: WorkContext) -> Settlement | None:
        self.contexts[leased.claim.seq] = context
        self.began.put(context)
        return self._end_of(leased.claim.seq).get(timeout=10 * PATIENCE)() or Settlement(
            leased.claim, Outcome.DONE
        )

    def next(self) -> int:
        """The row that begins next."""
        return self.began.get(timeout=PATIENCE).leased.claim.seq

    def open(self, *rows: int) -> None:
        for seq in rows:
            self._end_of(seq).put(lambda: None)

    def fail(self, seq: int, error: BaseException) -> None:
        def end() -> None:
            raise error

        self._end_of(seq).put(end)

    def open_for_all(self) -> None:
        """Let everything through, now and from now on."""
        with self._lock:
            self._is_open = True
            ends = tuple(self._ends)
        self.open(*ends)

    def _end_of(self, seq: int) -> queue.SimpleQueue[Callable[[], Settlement | None]]:
        with self._lock:
            end = self._ends.setdefault(seq, queue.SimpleQueue())
            if self._is_open:
                end.put(lambda: None)
            return end


@dataclass
class Rig:
    """An engine, what it works with, and what it told."""

    source: FakeSource
    clock: FakeClock
    observer: RecordingObserver
    engine: Engine

    @property
    def feeder(self) -> Any:
        assert self.engine._shift is not None
        return self.engine._shift.feeder

    def settle_down(self) -> None:
        """Return when feeder, keeper and sweeper all wait."""
        self.clock.await_parked(RESTING)

    def pass_time(self, seconds: float, *, parked: int = RESTING) -> None:
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
        assert self.engine._shift is not None
        renewal = self.engine._shift._keeper._renewal
        assert renewal is None or renewal.over.block(PATIENCE)


@contextmanager
def rigged(
    runner: Runner, *rows: Item, policy: EnginePolicy = QUIET, source: FakeSource | None = None
) -> Iterator[Rig]:
    """A started engine; at the end whatever the test left running is let go by moving its clock
    until it is stopped.
    """
    source = source or FakeSource()
    source.put(*rows)
    clock, observer = FakeClock(), RecordingObserver()
    engine = Engine(source, runner, policy=policy, clock=clock, events=Events(observer))
    engine.start()
    try:
        yield Rig(source, clock, observer, engine)
    finally:
        source.faults.clear()
        source.lost_answers.clear()
        if isinstance(runner, Gate):
            runner.open_for_all()
        stop_by_moving(engine, clock)
    assert not source._listeners


def stop_by_moving(engine: Engine, clock: FakeClock) -> None:
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


def numbered(*numbers: int) -> list[Item]:
    return [Item(number) for number in numbers]
