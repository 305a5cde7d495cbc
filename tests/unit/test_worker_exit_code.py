from __future__ import annotations

import pytest

from longwatch.core.end_cause import EndCause
from longwatch.supervisor.plan import ProgramKind
from longwatch.supervisor.program_listener import BreakerTrip, ProgramEnd, ProgramStart
from longwatch.supervisor.restart_policy import EndVerdict
from longwatch.workers.exit_code import ExitTracker

WORKER = ProgramKind.WORKER


class Tracked:
    """An exit tracker over two workers that have started, and how often it was all done."""

    def __init__(self) -> None:
        self.done = 0
        self.tracker = ExitTracker(["a", "b"], self._count)
        self.start("a", "b")

    def _count(self) -> None:
        self.done += 1

    def start(self, *names: str, on_demand: bool = False) -> None:
        for name in names:
            self.tracker.program_started(
                ProgramStart(program=name, kind=WORKER, pid=1, on_demand=on_demand)
            )

    def end(
        self,
        name: str,
        verdict: EndVerdict,
        *,
        code: int = 0,
        restart: bool = False,
        on_demand: bool = False,
    ) -> None:
        self.tracker.program_ended(
            ProgramEnd(
                program=name,
                kind=WORKER,
                pid=1,
                verdict=verdict,
                cause=EndCause.exit(code),
                restart=restart,
                killed=0,
                on_demand=on_demand,
            )
        )

    @property
    def outcome(self) -> tuple[int, int]:
        return self.done, self.tracker.exit_code


@pytest.fixture
def tracked() -> Tracked:
    return Tracked()


def test_all_are_done_when_the_last_has_exited_well(tracked: Tracked) -> None:
    tracked.end("a", EndVerdict.CLEAN_EXIT)
    assert (0, 0) == tracked.outcome
    tracked.end("b", EndVerdict.CLEAN_EXIT)
    assert (1, 0) == tracked.outcome


@pytest.mark.parametrize(
    ("verdict", "code"),
    [(EndVerdict.CONFIGURATION_ERROR, 2), (EndVerdict.FATAL_ERROR_NO_RESTART, 100)],
)
def test_a_worker_that_is_given_up_does_not_end_the_others_and_makes_the_code_100(
    tracked: Tracked, verdict: EndVerdict, code: int
) -> None:
    tracked.end("a", verdict, code=code)
    assert (0, 0) == tracked.outcome
    tracked.end("b", EndVerdict.CLEAN_EXIT)
    assert (1, 100) == tracked.outcome


def test_a_tripped_breaker_gives_a_worker_up_until_it_starts_again(tracked: Tracked) -> None:
    tracked.tracker.breaker_tripped(BreakerTrip(program="a", kind=WORKER))
    tracked.start("a")
    tracked.end("b", EndVerdict.CLEAN_EXIT)
    assert (0, 0) == tracked.outcome
    tracked.tracker.breaker_tripped(BreakerTrip(program="a", kind=WORKER))
    assert (1, 100) == tracked.outcome


def test_a_worker_that_starts_again_is_not_done(tracked: Tracked) -> None:
    tracked.end("a", EndVerdict.UNEXPECTED_EXIT, code=1, restart=True)
    tracked.end("b", EndVerdict.CLEAN_EXIT, restart=True)
    assert (0, 0) == tracked.outcome


def test_a_worker_that_fails_in_the_shutdown_makes_the_code_1(tracked: Tracked) -> None:
    tracked.end("a", EndVerdict.SHUTDOWN_COMPLETE)
    assert (0, 0) == tracked.outcome
    tracked.end("b", EndVerdict.SHUTDOWN_COMPLETE, code=3)
    assert (0, 1) == tracked.outcome


@pytest.mark.parametrize(
    ("verdict", "code"),
    [(EndVerdict.SHUTDOWN_COMPLETE, 1), (EndVerdict.CONFIGURATION_ERROR, 2)],
)
def test_a_process_for_suspects_neither_keeps_the_end_up_nor_counts_in_the_code(
    tracked: Tracked, verdict: EndVerdict, code: int
) -> None:
    tracked.start("a-suspect-1", on_demand=True)
    tracked.end("a", EndVerdict.CLEAN_EXIT)
    tracked.end("b", EndVerdict.CLEAN_EXIT)
    assert (1, 0) == tracked.outcome
    tracked.end("a-suspect-1", verdict, code=code, on_demand=True)
    assert (1, 0) == tracked.outcome
