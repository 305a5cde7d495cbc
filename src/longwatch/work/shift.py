"""One start of an engine: its owner, its page, its threads, and how they end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from longwatch.core.clock import Wakeup
from longwatch.core.deadline import Deadline
from longwatch.core.events import WorkGivenUp
from longwatch.errors import TryAgainError
from longwatch.host.beatpage import BeatPage
from longwatch.host.incarnation import Incarnation
from longwatch.host.periodic import Cadence, Periodic
from longwatch.host.runtimedir import runtime_directory
from longwatch.work.calls import SourceCall
from longwatch.work.drain import Act, Course, Drain, Told
from longwatch.work.feeder import Feeder
from longwatch.work.keeper import Keeper
from longwatch.work.policy import Surroundings
from longwatch.work.slots import Crew, Runner
from longwatch.work.solitude import Solitude
from longwatch.work.source import Source
from longwatch.work.tenure import Tenure


class Shift:
    """Feeder, slots, keeper and sweeper of one incarnation. Begun once, ended as often as it
    takes.
    """

    def __init__(
        self, source: Source, runner: Runner, solitude: Solitude, around: Surroundings
    ) -> None:
        self._source = source
        self._around = around
        self._course = Course()
        self._news = Wakeup()
        self._page, self._tenure = _entered(source, around)
        self._seat = solitude.sit(self._news.set)
        self.crew = Crew(runner, self._tenure, self._page, around)
        self.feeder = Feeder(
            source,
            self._tenure,
            self.crew,
            self._course,
            self._seat,
            self._news,
            self._page,
            around,
        )
        self._keeper = Keeper(source, self._tenure, self.crew, self.feeder, around)
        self._sweeping = SourceCall("sweep", around)
        cadence = Cadence(interval=around.policy.sweep_every, jitter=0.2)
        self._sweeper = Periodic(
            self._sweep, cadence, name=f"{around.name}-sweeper", clock=around.clock
        )
        self._unlisten: Callable[[], None] = lambda: None
        self._begun: list[Callable[[Deadline], bool]] = []

    @property
    def state(self) -> Drain:
        return self._course.state

    @property
    def inside(self) -> bool:
        return (
            self.crew.inside
            or self.feeder.errand.inside
            or self._keeper.inside
            or self._sweeper.inside
        )

    def begin(self) -> None:
        """Start the threads; if one cannot be, end those that were."""
        try:
            self._begin()
        except BaseException:
            self._course.tell(Told.STOP)
            self._dismantle(Deadline.after(_ROLLBACK, self._around.clock))
            raise

    def tell(self, told: Told) -> None:
        """Pass a wish on, and do what the table says about it."""
        act = self._course.tell(told)
        if act is Act.HAND_BACK:
            self.crew.taking = False
            self._page.start_draining()
        elif act is Act.FETCH:
            self._page.end_draining()
            self.crew.taking = True
        elif act is Act.CANCEL_RUNNING:
            for context in self.crew.running():
                context.cancel.cancel("shutdown")
        self._news.set()
        self.feeder.hurry.set()

    def end(self, deadline: Deadline) -> bool:
        """Hand back what was not begun, let what runs finish, cancel what will not, end the
        threads: all before the deadline.
        """
        self.tell(Told.STOP)
        if not self._has_finished(deadline):
            rows = tuple(context.leased.claim.seq for context in self.crew.running())
            self._around.events.emit(WorkGivenUp(engine=self._around.name, rows=rows))
            return False
        return self._dismantle(deadline)

    # --- beginning ---

    def excuse_the_fresh(self, after: float) -> None:
        """Have only those to blame for the end of the process whose slot has given no beat for
        so long.
        """
        self.crew.excuse_the_fresh(after)

    def _begin(self) -> None:
        self._unlisten = self._source.listen(self._news)
        self._tell_parent("leases", page=str(self._page.path), source=self._source.whereabouts())
        self._begun.append(self.crew.dismiss)
        self.crew.start()
        self._keeper.errand.start()
        self._begun.append(self._keeper.stop)
        self._sweeper.start()
        self._begun.append(lambda deadline: self._sweeper.stop(deadline=deadline))
        self.feeder.errand.start()
        self._begun.append(lambda deadline: self.feeder.errand.wait(self._around.clock, deadline))

    def _sweep(self) -> None:
        """Not while our own leases may have ended: those that could not be renewed would be the
        first to be taken, with what is done and could not be settled. The keeper has them renewed
        as soon as the store answers; others sweep meanwhile.
        """
        if self._is_trusted() or not self.feeder.holding():
            self._sweeping.make(self._source.sweep)

    def _is_trusted(self) -> bool:
        return self._tenure.is_trusted(self._around.clock.monotonic())

    # --- ending ---

    def _has_finished(self, deadline: Deadline) -> bool:
        """Wait until the last row is settled; shortly before the deadline cancel what still
        runs.
        """
        clock, feeder = self._around.clock, self.feeder.errand
        remaining = deadline.remaining()
        if remaining is None:
            return feeder.wait(clock, deadline)
        grace = min(self._around.policy.cancel_grace, remaining / 10)
        if feeder.wait(clock, Deadline(deadline.at - grace, clock)):
            return True
        self.tell(Told.CANCEL)
        return feeder.wait(clock, deadline)

    def _dismantle(self, deadline: Deadline) -> bool:
        """End the threads, the last begun first; what is left is tried again by the next call."""
        self._begun = [stop for stop in reversed(self._begun) if not stop(deadline)][::-1]
        if self._begun:
            return False
        if self._course.state is not Drain.STOPPED:
            self._course.tell(Told.EMPTY)
        self._unlisten()
        self._seat.leave()
        with suppress(
            TryAgainError
        ):  # one that is gone, or does not listen, keeps nothing that is left
            self._tell_parent("leases_over")
        self._page.close()
        return True

    def _tell_parent(self, about: str, **facts: object) -> None:
        if self._tenure.kept and self._around.parent is not None:
            self._around.parent.tell(
                about, engine=self._around.name, owner=self._tenure.owner, **facts
            )


_ROLLBACK = 5.0
"""Seconds that the threads of a start that failed are given to end."""


def _entered(source: Source, around: Surroundings) -> tuple[BeatPage, Tenure]:
    """A new incarnation with its page, entered as an owner of leases."""
    incarnation = Incarnation.mine()
    page = BeatPage(_page_path(incarnation), around.policy.slots)
    try:
        owner = source.enter(incarnation, page=str(page.path))
    except BaseException:
        page.close()
        raise
    kept = around.parent is not None and source.whereabouts() is not None
    return page, Tenure(owner, around.policy.lease, clock=around.clock, page=page, kept=kept)


def _page_path(incarnation: Incarnation) -> Path:
    return runtime_directory() / f"page-{incarnation.id}"
