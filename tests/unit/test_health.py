from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.core.clock import Wakeup
from longwatch.core.fake_clock import FakeClock
from longwatch.core.health import (
    Aspect,
    CheckResult,
    Health,
    HealthCheck,
    HealthReason,
    HealthReport,
    Probe,
)

READY = frozenset({Aspect.READY})


def check(probe: Probe, *, name: str = "store", aspects: frozenset[Aspect] = READY) -> HealthCheck:
    return HealthCheck(name, probe, aspects)


def ask(probe: Probe) -> CheckResult:
    (result,) = Health([check(probe)], FakeClock()).report(Aspect.READY).results
    return result


def reasons(report: HealthReport) -> dict[str, HealthReason]:
    return {result.name: result.reason for result in report.results}


class Hanging:
    """A probe that hangs from `enter` until `release`, and says ok otherwise; counts how often it
    was asked. `reports` has the report that waited for it.
    """

    def __init__(self, health: Callable[[Probe, FakeClock], Health]) -> None:
        self.clock = FakeClock()
        self.calls = 0
        self.hang = False
        self._go = Wakeup()
        self.health = health(self, self.clock)
        self.reports: list[HealthReport] = []
        self._thread = threading.Thread(
            target=lambda: self.reports.append(self.health.report(Aspect.READY))
        )

    def __call__(self) -> bool:
        self.calls += 1
        if self.hang:
            self.clock.wait(self._go)
        return True

    def enter(self) -> None:
        self.hang = True
        self._thread.start()
        self.clock.await_parked(1)

    def release(self) -> None:
        self.hang = False
        self._go.set()
        self._thread.join()


def one_check(probe: Probe, clock: FakeClock) -> Health:
    return Health([check(probe)], clock)


@pytest.mark.parametrize("said", [True, None, HealthReason.OK])
def test_a_probe_says_ok_with_true_nothing_or_the_reason_ok(
    said: bool | HealthReason | None,  # noqa: FBT001 - what probes return
) -> None:
    assert (CheckResult("store", HealthReason.OK), True) == (
        ask(lambda: said),
        ask(lambda: said).ok,
    )


def test_a_probe_that_says_false_has_failed() -> None:
    assert (CheckResult("store", HealthReason.FAILED), False) == (
        ask(lambda: False),
        ask(lambda: False).ok,
    )


@pytest.mark.parametrize(
    "reason", [reason for reason in HealthReason if reason is not HealthReason.OK]
)
def test_every_other_reason_is_a_no_and_is_passed_on(reason: HealthReason) -> None:
    assert (reason, False) == (ask(lambda: reason).reason, ask(lambda: reason).ok)


@pytest.mark.parametrize("nonsense", [1, "ok", object()])
def test_an_answer_that_is_none_of_these_is_a_no(nonsense: object) -> None:
    assert HealthReason.FAILED == ask(lambda: nonsense).reason  # type: ignore[arg-type,return-value]


def test_a_probe_that_raises_has_failed_and_only_the_type_of_the_error_is_told() -> None:
    def probe() -> bool:
        raise ConnectionError("postgresql://user:secret@db/")

    assert CheckResult("store", HealthReason.RAISED, "ConnectionError") == ask(probe)


def test_a_probe_that_raises_does_not_keep_the_others_from_being_asked() -> None:
    health = Health([check(lambda: 1 / 0 > 0), check(lambda: True, name="loops")], FakeClock())

    assert {"store": HealthReason.RAISED, "loops": HealthReason.OK} == reasons(
        health.report(Aspect.READY)
    )


def test_a_probe_that_ends_its_thread_does_so_and_can_be_asked_again() -> None:
    def probe() -> bool:
        raise SystemExit

    health = one_check(probe, FakeClock())
    for _ in range(2):
        with pytest.raises(SystemExit):
            health.report(Aspect.READY)


@pytest.mark.parametrize(
    ("seconds", "reason"), [(2.0, HealthReason.OK), (2.1, HealthReason.TIMED_OUT)]
)
def test_an_answer_after_the_deadline_is_no_answer(seconds: float, reason: HealthReason) -> None:
    clock = FakeClock()
    health = one_check(lambda: clock.advance(seconds), clock)

    assert {"store": reason} == reasons(health.report(Aspect.READY))


def test_a_probe_that_raises_too_late_overran() -> None:
    clock = FakeClock()

    def probe() -> bool:
        clock.advance(5)
        raise ValueError

    assert {"store": HealthReason.TIMED_OUT} == reasons(
        one_check(probe, clock).report(Aspect.READY)
    )


def test_a_probe_that_hangs_overran_for_everyone_else_at_once_and_is_not_asked_again() -> None:
    hanging = Hanging(one_check)
    hanging.enter()
    hanging.clock.advance(2.1)
    reports = [hanging.health.report(Aspect.READY) for _ in range(3)]
    asked = hanging.calls
    hanging.release()

    assert ([{"store": HealthReason.TIMED_OUT}] * 3, 1) == (
        [reasons(report) for report in reports],
        asked,
    )


def test_a_probe_at_work_within_its_deadline_stands_by_its_last_answer() -> None:
    hanging = Hanging(one_check)
    hanging.health.report(Aspect.READY)
    hanging.enter()
    hanging.clock.advance(2.0)
    report = hanging.health.report(Aspect.READY)
    hanging.release()

    assert {"store": HealthReason.OK} == reasons(report)


def test_a_probe_at_work_that_never_answered_yet_is_pending_and_pending_is_a_no() -> None:
    hanging = Hanging(one_check)
    hanging.enter()
    report = hanging.health.report(Aspect.READY)
    hanging.release()

    assert ({"store": HealthReason.PENDING}, False) == (reasons(report), report.ok)


def test_a_probe_that_came_back_late_overran_until_it_is_asked_again() -> None:
    hanging = Hanging(one_check)
    hanging.enter()
    hanging.clock.advance(60)
    hanging.release()
    (late,) = hanging.reports

    assert ({"store": HealthReason.TIMED_OUT}, {"store": HealthReason.OK}) == (
        reasons(late),
        reasons(hanging.health.report(Aspect.READY)),
    )


def test_one_probe_that_hangs_hides_no_other() -> None:
    hanging = Hanging(
        lambda probe, clock: Health(
            [check(probe), check(lambda: HealthReason.UNREACHABLE, name="queue")], clock
        )
    )
    hanging.enter()
    hanging.clock.advance(3)
    report = hanging.health.report(Aspect.READY)
    hanging.release()

    assert {"store": HealthReason.TIMED_OUT, "queue": HealthReason.UNREACHABLE} == reasons(report)


def test_a_check_speaks_only_for_its_aspects() -> None:
    both = frozenset({Aspect.READY, Aspect.STARTED})
    health = Health(
        [check(lambda: True, name="a"), check(lambda: False, name="b", aspects=both)], FakeClock()
    )

    assert [[], ["a", "b"], ["b"]] == [
        [result.name for result in health.report(aspect).results]
        for aspect in (Aspect.LIVE, Aspect.READY, Aspect.STARTED)
    ]


def test_nothing_to_check_is_ok() -> None:
    assert Health([], FakeClock()).report(Aspect.LIVE).ok


@given(answers=st.lists(st.sampled_from(HealthReason), max_size=6))
def test_the_whole_is_ok_if_every_part_is_and_names_those_that_are_not(
    answers: list[HealthReason],
) -> None:
    checks = [check(lambda said=said: said, name=str(n)) for n, said in enumerate(answers)]  # type: ignore[misc]
    report = Health(checks, FakeClock()).report(Aspect.READY)

    assert all(said is HealthReason.OK for said in answers) == report.ok
    assert [str(n) for n, said in enumerate(answers) if said is not HealthReason.OK] == [
        result.name for result in report.failing
    ]


def test_two_checks_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match=r"more than one is called loops, store$"):
        Health(
            [
                check(lambda: True, name=name)
                for name in ("store", "loops", "store", "loops", "queue")
            ],
            FakeClock(),
        )


@pytest.mark.parametrize(
    ("name", "aspects", "timeout"),
    [("", READY, 2.0), ("store", frozenset(), 2.0), ("store", READY, 0.0)],
)
def test_a_check_needs_a_name_an_aspect_and_time(
    name: str, aspects: frozenset[Aspect], timeout: float
) -> None:
    with pytest.raises(
        ValueError, match="needs a name, at least one aspect, and a timeout above 0"
    ):
        HealthCheck(name, lambda: True, aspects, timeout)


def test_a_probe_that_asks_for_a_report_itself_is_not_asked_without_end() -> None:
    clock = FakeClock()
    inner: list[HealthReport] = []
    health = one_check(lambda: inner.append(health.report(Aspect.READY)), clock)

    assert {"store": HealthReason.OK} == reasons(health.report(Aspect.READY))
    assert [{"store": HealthReason.PENDING}] == [reasons(report) for report in inner]
