from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from longwatch.core.clock import Clock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.errors import DeadlineExceededError, ServiceStateError
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.service import SERVICE_MACHINE, Service, ServiceGroup, ServiceState
from longwatch.testing import FakeClock


class Scripted(Service):
    """Writes down what it is told, and can be made to fail, to block or not to go."""

    def __init__(
        self, name: str = "scripted", *, clock: Clock | None = None, calls: list[str] | None = None
    ) -> None:
        super().__init__(name=name, clock=clock)
        self.calls = [] if calls is None else calls
        self.start_error: BaseException | None = None
        self.stop_error: BaseException | None = None
        self.never_stops = False
        self.may_start = Wakeup()
        self.may_stop = Wakeup()
        self.may_start.set()
        self.may_stop.set()

    def _start(self) -> None:
        self.calls.append(f"+{self.name}")
        self._clock.wait(self.may_start)
        if self.start_error is not None:
            raise self.start_error

    def _stop(self, deadline: Deadline) -> bool:
        self.calls.append(f"-{self.name}")
        if self.stop_error is not None:
            raise self.stop_error
        return self._clock.wait(self.may_stop, deadline.remaining()) and not self.never_stops


class IgnoresDeadline(Scripted):
    """Ignores its deadline."""

    def _stop(self, deadline: Deadline) -> bool:
        return super()._stop(Deadline.never(deadline.clock))


def in_thread(work: Callable[[], object]) -> BackgroundThread:
    thread = BackgroundThread(work, name="test")
    thread.start()
    return thread


def wait_for(thread: BackgroundThread) -> bool:
    return thread.done.block(10.0)


def test_every_state_of_the_table_can_be_reached_and_left() -> None:
    assert frozenset(ServiceState) == SERVICE_MACHINE.reachable(ServiceState.STOPPED)
    assert frozenset() == SERVICE_MACHINE.dead_ends()


def test_a_service_goes_from_stopped_to_started_to_stopped() -> None:
    service = Scripted()
    assert (False, True) == (service.started, service.stopped)
    service.start()
    assert (True, False) == (service.started, service.stopped)
    assert service.stop()
    assert (False, True) == (service.started, service.stopped)
    assert ["+scripted", "-scripted"] == service.calls


def test_stopping_before_start_and_starting_or_stopping_twice_does_nothing() -> None:
    service = Scripted()
    assert service.stop()
    service.start()
    service.start()
    assert service.stop()
    assert service.stop()
    assert ["+scripted", "-scripted"] == service.calls


def test_a_failed_start_raises_its_error_leaves_it_stopped_and_can_be_tried_again() -> None:
    service = Scripted()
    service.start_error = OSError("port in use")
    with pytest.raises(OSError, match="port in use"):
        service.start()
    assert service.stopped
    assert service.stop()
    service.start_error = None
    service.start()
    assert service.started
    assert ["+scripted", "+scripted"] == service.calls


def test_whoever_starts_while_it_starts_waits_for_that_start() -> None:
    clock = FakeClock()
    service = Scripted(clock=clock)
    service.may_start.clear()
    starters = [in_thread(service.start) for _ in range(3)]
    clock.await_parked(3)
    assert (False, False) == (service.started, service.stopped)
    service.may_start.set()
    assert all(wait_for(starter) for starter in starters)
    assert ["+scripted"] == service.calls


class SlowClock(FakeClock):
    """Wakes its waiters late, when they may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.may_wake = threading.Event()

    def wait(self, wakeup: Wakeup, timeout: float | None = None) -> bool:
        return super().wait(wakeup, timeout) and self.may_wake.wait(10)


def test_whoever_waited_for_a_start_does_not_start_it_again_when_it_was_stopped_meanwhile() -> None:
    sluggish = SlowClock()
    service = Scripted(clock=FakeClock())
    service.may_start.clear()
    first = in_thread(service.start)
    service._clock.await_parked(1)  # type: ignore[attr-defined]
    brisk, service._clock = service._clock, sluggish
    second = in_thread(service.start)
    sluggish.await_parked(1)
    service._clock = brisk
    service.may_start.set()
    assert wait_for(first)
    assert service.stop()
    sluggish.may_wake.set()
    assert wait_for(second)
    assert second.error is None
    assert ["+scripted", "-scripted"] == service.calls


def test_whoever_waited_for_a_start_that_failed_gets_an_error_with_its_cause() -> None:
    clock = FakeClock()
    service = Scripted(clock=clock)
    service.may_start.clear()
    first = in_thread(service.start)
    clock.await_parked(1)
    second = in_thread(service.start)
    clock.await_parked(2)
    service.start_error = OSError("port in use")
    service.may_start.set()
    assert wait_for(first)
    assert wait_for(second)
    assert first.error is service.start_error
    assert isinstance(second.error, ServiceStateError)
    assert second.error.__cause__ is service.start_error
    assert ["+scripted"] == service.calls


def test_everyone_who_stops_waits_until_it_is_down() -> None:
    clock = FakeClock()
    service = Scripted(clock=clock)
    service.start()
    service.may_stop.clear()
    answers: list[bool] = []
    stoppers = [in_thread(lambda: answers.append(service.stop())) for _ in range(3)]
    clock.await_parked(3)
    assert (False, False) == (service.started, service.stopped)
    service.may_stop.set()
    assert all(wait_for(stopper) for stopper in stoppers)
    assert [True] * 3 == answers
    assert ["+scripted", "-scripted"] == service.calls


def test_each_stopper_waits_only_its_own_time() -> None:
    clock = FakeClock()
    service = Scripted(clock=clock)
    service.start()
    service.may_stop.clear()
    patient = in_thread(lambda: service.stop(timeout=100))
    clock.await_parked(1)
    answers: list[bool] = []
    hasty = in_thread(lambda: answers.append(service.stop(timeout=5)))
    clock.await_parked(2)
    clock.advance(5, parked=1)
    assert wait_for(hasty)
    assert [False] == answers
    service.may_stop.set()
    assert wait_for(patient)
    assert service.stopped


def test_a_patient_stopper_takes_over_when_the_time_of_a_hasty_one_is_up() -> None:
    clock = FakeClock()
    service = Scripted(clock=clock)
    service.start()
    service.may_stop.clear()
    hasty = in_thread(lambda: service.stop(timeout=5))
    clock.await_parked(1)
    answers: list[bool] = []
    patient = in_thread(lambda: answers.append(service.stop(timeout=100)))
    clock.await_parked(2)
    clock.advance(5, parked=1)
    assert wait_for(hasty)
    service.may_stop.set()
    assert wait_for(patient)
    assert [True] == answers
    assert ["+scripted", "-scripted", "-scripted"] == service.calls


def test_a_service_that_does_not_go_is_neither_up_nor_down_and_does_not_start() -> None:
    service = Scripted()
    service.start()
    service.never_stops = True
    assert not service.stop()
    assert (False, False) == (service.started, service.stopped)
    assert not service.wait_stopped(0.0)
    with pytest.raises(ServiceStateError, match=r"call stop\(\) again"):
        service.start()
    service.never_stops = False
    assert service.stop()
    assert (False, True) == (service.started, service.stopped)


def test_a_stop_that_raises_can_be_tried_again() -> None:
    service = Scripted()
    service.start()
    service.stop_error = OSError("disk full")
    with pytest.raises(OSError, match="disk full"):
        service.stop()
    assert not service.stopped
    service.stop_error = None
    assert service.stop()


def test_a_start_during_a_stop_waits_for_it_and_then_starts() -> None:
    clock = FakeClock()
    service = Scripted(clock=clock)
    service.start()
    service.may_stop.clear()
    stopper = in_thread(service.stop)
    clock.await_parked(1)
    starter = in_thread(service.start)
    clock.await_parked(2)
    service.may_stop.set()
    assert wait_for(stopper)
    assert wait_for(starter)
    assert service.started
    assert ["+scripted", "-scripted", "+scripted"] == service.calls


def test_a_stop_during_a_start_stops_it_once_it_is_up() -> None:
    clock = FakeClock()
    service = Scripted(clock=clock)
    service.may_start.clear()
    starter = in_thread(service.start)
    clock.await_parked(1)
    stopper = in_thread(service.stop)
    clock.await_parked(2)
    service.may_start.set()
    assert wait_for(starter)
    assert wait_for(stopper)
    assert service.stopped


def test_a_stop_during_a_start_that_fails_finds_it_down() -> None:
    clock = FakeClock()
    service = Scripted(clock=clock)
    service.may_start.clear()
    starter = in_thread(service.start)
    clock.await_parked(1)
    answers: list[bool] = []
    stopper = in_thread(lambda: answers.append(service.stop()))
    clock.await_parked(2)
    service.start_error = OSError("port in use")
    service.may_start.set()
    assert wait_for(starter)
    assert wait_for(stopper)
    assert [True] == answers
    assert ["+scripted"] == service.calls


def test_waiting_for_the_end_returns_when_someone_stops_it_or_the_time_is_up() -> None:
    clock = FakeClock()
    service = Scripted(clock=clock)
    assert service.wait_stopped()
    service.start()
    answers: list[bool] = []
    hasty = in_thread(lambda: answers.append(service.wait_stopped(5)))
    clock.await_parked(1)
    clock.advance(5, parked=0)
    assert wait_for(hasty)
    patient = in_thread(lambda: answers.append(service.wait_stopped()))
    clock.await_parked(1)
    service.stop()
    assert wait_for(patient)
    assert [False, True] == answers


def test_a_deadline_counts_instead_of_the_timeout() -> None:
    clock = FakeClock()
    service = Scripted(clock=clock)
    service.start()
    service.may_stop.clear()
    stopper = in_thread(lambda: service.stop(deadline=Deadline.after(2, clock)))
    clock.await_parked(1)
    clock.advance(2, parked=0)
    assert wait_for(stopper)
    assert not service.stopped


def test_the_context_starts_and_stops_it() -> None:
    with Scripted() as service:
        assert service.started
    assert service.stopped


def test_a_context_that_cannot_stop_it_says_so_unless_something_else_went_wrong() -> None:
    service = Scripted()
    service.never_stops = True
    with pytest.raises(DeadlineExceededError, match="scripted did not stop"), service:
        pass
    service.never_stops = False
    service.stop()
    service.never_stops = True
    with pytest.raises(KeyError, match="mine"), service:
        raise KeyError("mine")


def group_of(
    *names: str, clock: Clock | None = None
) -> tuple[ServiceGroup, list[Scripted], list[str]]:
    diary: list[str] = []
    members = [Scripted(name, calls=diary, clock=clock) for name in names]
    return ServiceGroup(members, clock=clock), members, diary


def test_a_group_starts_in_order_and_stops_in_reverse() -> None:
    group, _, diary = group_of("a", "b", "c")
    group.start()
    assert group.stop()
    assert ["+a", "+b", "+c", "-c", "-b", "-a"] == diary


def test_an_empty_group_starts_and_stops() -> None:
    group, _, _ = group_of()
    group.start()
    assert group.started
    assert group.stop()


def test_when_one_of_a_group_fails_to_start_those_before_it_are_stopped_in_reverse_and_its_error_is_raised() -> (  # noqa: E501 - one name
    None
):
    group, (_, _, c, _), diary = group_of("a", "b", "c", "d")
    c.start_error = OSError("port in use")
    with pytest.raises(OSError, match="port in use"):
        group.start()
    assert ["+a", "+b", "+c", "-b", "-a"] == diary
    assert group.stopped
    c.start_error = None
    group.start()
    assert group.started


def test_what_goes_wrong_while_rolling_back_is_noted_on_the_error_that_caused_it() -> None:
    group, (a, b, c), _ = group_of("a", "b", "c")
    c.start_error = OSError("port in use")
    a.never_stops = True
    with pytest.raises(OSError, match="port in use") as stuck:
        group.start()
    assert ["group: not all services stopped again within 30.0 s"] == stuck.value.__notes__
    a.never_stops = False
    a.stop()
    b.stop_error = ValueError("broken")
    with pytest.raises(OSError, match="port in use") as failed:
        group.start()
    assert failed.value.__notes__[-1] == "group: (ValueError('broken'),) while stopping again"
    assert a.stopped


def test_a_group_goes_on_stopping_when_one_raises_and_raises_at_the_end() -> None:
    group, (_, b, c), diary = group_of("a", "b", "c")
    group.start()
    b.stop_error, c.stop_error = OSError("b"), ValueError("c")
    with pytest.raises(ExceptionGroup, match="2 of 3 services failed to stop") as caught:
        group.stop()
    assert (c.stop_error, b.stop_error) == caught.value.exceptions
    assert ["-c", "-b", "-a"] == diary[3:]
    b.stop_error = c.stop_error = None
    assert group.stop()
    assert ["-c", "-b"] == diary[6:]


def test_a_group_stops_under_one_deadline() -> None:
    clock = FakeClock()
    group, members, diary = group_of("a", "b", "c", clock=clock)
    group.start()
    for member in members:
        member.may_stop.clear()
    answers: list[bool] = []
    stopper = in_thread(lambda: answers.append(group.stop(timeout=10)))
    clock.await_parked(2)
    clock.advance(10, parked=0)
    assert wait_for(stopper)
    assert [False] == answers
    assert ["-c", "-b", "-a"] == diary[3:]
    for member in members:
        member.may_stop.set()
    assert group.stop()


def test_one_that_ignores_its_deadline_does_not_keep_the_others_of_a_group_from_being_told() -> (
    None
):
    clock = FakeClock()
    diary: list[str] = []
    deaf = IgnoresDeadline("deaf", calls=diary, clock=clock)
    other = Scripted("other", calls=diary, clock=clock)
    group = ServiceGroup([other, deaf], clock=clock)
    group.start()
    deaf.may_stop.clear()
    answers: list[bool] = []
    stopper = in_thread(lambda: answers.append(group.stop(timeout=10)))
    clock.await_parked(2)
    clock.advance(10, parked=1)
    assert wait_for(stopper)
    assert [False] == answers
    assert ["-deaf", "-other"] == diary[2:]
    deaf.may_stop.set()
    assert group.stop()


def test_a_group_is_stopped_also_when_the_system_has_no_thread_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group, _, diary = group_of("a", "b")
    group.start()

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    assert group.stop()
    assert ["-b", "-a"] == diary[2:]
