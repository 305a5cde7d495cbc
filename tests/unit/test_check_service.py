from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import pytest

import longwatch.testing
from longwatch.core.deadline import Deadline
from longwatch.core.events.base import Events
from longwatch.core.events.host import PeriodicTaskFailed, ShutdownCallbackFailed
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.periodic import Cadence, Periodic
from longwatch.host.service import Service, ServiceGroup
from longwatch.testing import RecordingObserver, check_service, service_check


class Plain(Service):
    """Keeps the contract, with a thread and a descriptor."""

    def __init__(self) -> None:
        super().__init__(name="plain")
        self.fails = False

    def _start(self) -> None:
        if self.fails:
            raise OSError("port in use")
        self.reader, self.writer = os.pipe()
        self.thread = threading.Thread(target=os.read, args=(self.reader, 1), daemon=True)
        self.thread.start()

    def _stop(self, deadline: Deadline) -> bool:
        os.write(self.writer, b"x")
        self.thread.join(deadline.remaining())
        os.close(self.reader)
        os.close(self.writer)
        return True


@contextmanager
def failing(service: Service) -> Iterator[None]:
    assert isinstance(service, Plain)
    service.fails = True
    yield
    service.fails = False


def periodic() -> Periodic:
    return Periodic(lambda: None, Cadence(interval=60.0), name="periodic")


def test_a_service_that_keeps_the_contract_passes() -> None:
    check_service(Plain, broken=failing)


def test_periodic_keeps_the_contract() -> None:
    check_service(periodic)


def test_a_group_keeps_the_contract() -> None:
    check_service(lambda: ServiceGroup([periodic(), Plain(), ServiceGroup([periodic()])]))


def test_a_group_of_which_one_fails_to_start_keeps_the_contract() -> None:
    members: list[Plain] = []

    def group() -> ServiceGroup:
        members.append(Plain())
        return ServiceGroup([periodic(), members[-1]])

    check_service(group, broken=lambda _: failing(members[-1]))


class LeavesThread(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.end_of_test = threading.Event()
        LEAKED.append(self.end_of_test)

    def _start(self) -> None:
        super()._start()
        threading.Thread(target=self.end_of_test.wait, name="forgotten", daemon=True).start()


LEAKED: list[threading.Event] = []


@pytest.fixture
def _leaked_threads_end() -> Iterator[None]:
    yield
    while LEAKED:
        LEAKED.pop().set()


class LeavesDescriptor(Plain):
    def _start(self) -> None:
        super()._start()
        self.leaked = os.dup(self.reader)


class FailsLeavingDescriptor(Plain):
    def _start(self) -> None:
        self.leaked = os.pipe()
        super()._start()

    def _stop(self, deadline: Deadline) -> bool:
        for descriptor in self.leaked:
            os.close(descriptor)
        return super()._stop(deadline)


class StartsOnce(Plain):
    def _start(self) -> None:
        if hasattr(self, "thread"):
            raise RuntimeError("threads can only be started once")
        super()._start()


class NeverStops(Plain):
    def _stop(self, deadline: Deadline) -> bool:
        return False


class StopRaisesBeforeStart(Plain):
    def stop(self, *, timeout: float | None = 30.0, deadline: Deadline | None = None) -> bool:
        if not self.started:
            raise RuntimeError("not started")
        return super().stop(timeout=timeout, deadline=deadline)


class Hangs(LeavesThread):
    def _start(self) -> None:
        self.end_of_test.wait()


@pytest.mark.usefixtures("_leaked_threads_end")
@pytest.mark.parametrize(
    ("factory", "fault"),
    [
        (LeavesThread, "leaves no thread behind, but forgotten"),
        (LeavesDescriptor, "leaves no descriptor behind"),
        (StartsOnce, "threads can only be started once"),
        (NeverStops, "it stops at the end"),
        (StopRaisesBeforeStart, "not started"),
        (Hangs, "starting twice is starting once: it ends within"),
    ],
)
def test_a_service_that_breaks_the_contract_is_found(
    factory: Callable[[], Service], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_check, "TIMEOUT", 1.0)
    with pytest.raises(AssertionError, match=fault):
        check_service(factory)


def test_a_failed_start_that_leaves_something_behind_is_found() -> None:
    with pytest.raises(AssertionError, match="leaves no descriptor behind"):
        check_service(FailsLeavingDescriptor, broken=failing)


def test_a_start_that_should_fail_and_does_not_is_found() -> None:
    with pytest.raises(AssertionError, match=r"a broken start\(\) raises"):
        check_service(periodic, broken=nullcontext)


def test_the_observer_tells_what_happened_in_order_and_by_type() -> None:
    observer = RecordingObserver()
    events = Events(observer)
    first = PeriodicTaskFailed(task="a", error="x", failures=1)
    second = ShutdownCallbackFailed(callback="b", error="y")
    events.emit(first)
    events.emit(second)
    assert ["periodic_task_failed", "shutdown_callback_failed"] == observer.names()
    assert [second] == observer.of(ShutdownCallbackFailed)
    assert [first, second] == observer.events


def test_the_observer_waits_for_a_type_or_a_predicate() -> None:
    observer = RecordingObserver()
    event = PeriodicTaskFailed(task="a", error="x", failures=2)
    emitter = BackgroundThread(lambda: observer(event), name="test")
    emitter.start()
    assert event is observer.wait_for(PeriodicTaskFailed)
    assert event is observer.wait_for(
        lambda seen: isinstance(seen, PeriodicTaskFailed) and seen.failures == 2
    )
    assert emitter.done.block(10)


def test_the_observer_says_what_happened_instead() -> None:
    observer = RecordingObserver()
    observer(ShutdownCallbackFailed(callback="b", error="y"))
    with pytest.raises(AssertionError, match=r"these did: .*shutdown_callback_failed"):
        observer.wait_for(PeriodicTaskFailed, 0.0)


def test_the_kit_lists_what_it_has_and_has_what_it_lists() -> None:
    names = dir(longwatch.testing)
    assert sorted(names) == names
    assert all(getattr(longwatch.testing, name).__name__ == name for name in names)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = longwatch.testing.nothing_like_it  # type: ignore[attr-defined]  # which is as it should be
