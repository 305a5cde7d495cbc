"""The stress test that every service of `longwatch.host.service` must pass."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from longwatch.core.clock import SystemClock
from longwatch.core.deadline import Deadline
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.service import Service

TIMEOUT = 30.0
"""Real seconds after which a call or a thread counts as hanging."""

_DESCRIPTOR_GRACE = 1.0
"""Seconds after which descriptors of other threads are closed again."""
THREADS = 8
ROUNDS = 25

BrokenStart = Callable[[Service], AbstractContextManager[object]]


def check_service(factory: Callable[[], Service], *, broken: BrokenStart | None = None) -> None:
    """Raise AssertionError unless the factory's services start and stop by the contract.

    The factory makes a new, stopped service each time. `broken(service)` returns a context manager
    in which its start must fail. With it the test also checks that a failed start leaves nothing
    behind and can be retried.
    """
    for check in CHECKS:
        _run(check, factory)
    if broken is not None:
        for check_broken in BROKEN_CHECKS:
            _run(partial(check_broken, broken=broken), factory)


def _a_new_one_is_stopped_and_stopping_it_changes_nothing(service: Service) -> None:
    _expect_down(service)
    _expect(service.stop(), "stop() before start() is True")
    _expect_down(service)


def _starting_twice_is_starting_once(service: Service) -> None:
    service.start()
    service.start()
    _expect_up(service)
    _expect(not service.wait_stopped(0.0), "wait_stopped() of a started service runs out of time")


def _stopping_twice_is_stopping_once(service: Service) -> None:
    service.start()
    _expect(service.stop(), "stop() is True")
    _expect(service.stop(), "a second stop() is True")
    _expect_down(service)


def _it_starts_again_after_a_stop(service: Service) -> None:
    for _ in range(3):
        service.start()
        _expect_up(service)
        _expect(service.stop(), "stop() is True")
        _expect_down(service)


def _it_is_up_inside_its_context_and_down_after(service: Service) -> None:
    with service:
        _expect_up(service)
    _expect_down(service)


def _every_concurrent_start_finds_it_up(service: Service) -> None:
    def start() -> None:
        service.start()
        _expect_up(service)

    _run_concurrently(start)


def _every_concurrent_stop_finds_it_down(service: Service) -> None:
    def stop() -> None:
        _expect(service.stop(), "every concurrent stop() is True")
        _expect_down(service)

    service.start()
    _run_concurrently(stop)


def _a_wait_for_its_end_is_woken(service: Service) -> None:
    service.start()
    waiting = BackgroundThread(
        lambda: _expect(service.wait_stopped(), "wait_stopped() is True"), name="check-wait"
    )
    waiting.start()
    _expect(service.stop(), "stop() is True")
    _await(waiting, "wait_stopped()")


def _starts_and_stops_from_all_sides_end_well(service: Service) -> None:
    seeds = iter(range(THREADS))

    def churn() -> None:
        dice = random.Random(next(seeds))  # noqa: S311 - not a secret
        for _ in range(ROUNDS):
            dice.choice((service.start, service.stop))()

    _run_concurrently(churn)


def _a_failed_start_raises_and_can_be_tried_again(service: Service, *, broken: BrokenStart) -> None:
    for _ in range(2):
        with broken(service):
            _expect_failure(service)
        _expect_down(service)
        _expect(service.stop(), "stop() after a failed start() is True")
    service.start()
    _expect_up(service)


def _every_concurrent_start_learns_of_a_failure(service: Service, *, broken: BrokenStart) -> None:
    with broken(service):
        _run_concurrently(lambda: _expect_failure(service))
    _expect_down(service)


CHECKS: tuple[Callable[[Service], None], ...] = (
    _a_new_one_is_stopped_and_stopping_it_changes_nothing,
    _starting_twice_is_starting_once,
    _stopping_twice_is_stopping_once,
    _it_starts_again_after_a_stop,
    _it_is_up_inside_its_context_and_down_after,
    _every_concurrent_start_finds_it_up,
    _every_concurrent_stop_finds_it_down,
    _a_wait_for_its_end_is_woken,
    _starts_and_stops_from_all_sides_end_well,
)
BROKEN_CHECKS = (
    _a_failed_start_raises_and_can_be_tried_again,
    _every_concurrent_start_learns_of_a_failure,
)


def _run(check: Callable[[Service], None], factory: Callable[[], Service]) -> None:
    """Run one check on a new service. Raises AssertionError if it fails, hangs or leaks a thread or
    a descriptor.
    """
    title = getattr(check, "func", check).__name__.strip("_").replace("_", " ")
    with _expect_no_leaks(title):
        service = factory()
        thread = BackgroundThread(partial(check, service), name="check-service")
        thread.start()
        _await(thread, title)
        _expect(service.stop(timeout=TIMEOUT), f"{title}: it stops at the end")
        _expect_down(service)


@contextmanager
def _expect_no_leaks(title: str) -> Iterator[None]:
    gc.collect()
    threads, descriptors = set(threading.enumerate()), _descriptors()
    yield
    for thread in set(threading.enumerate()) - threads:
        thread.join(TIMEOUT)
        _expect(
            not thread.is_alive(),
            f"{title}: it leaves no thread behind, but {thread.name} still runs",
        )
    left = _left_open(descriptors)
    _expect(not left, f"{title}: it leaves no descriptor behind, but {sorted(left)} are open")


def _left_open(before: set[int]) -> set[int]:
    """Return the new descriptors that stay open. Other threads open and close theirs meanwhile, so
    each is given some time.
    """
    until = time.monotonic() + min(TIMEOUT, _DESCRIPTOR_GRACE)
    while (left := _descriptors() - before) and time.monotonic() < until:
        threading.Event().wait(0.02)
    return left


def _descriptors() -> set[int]:
    numbers = (int(entry.name) for entry in Path("/dev/fd").iterdir())
    return {number for number in numbers if _is_open(number)}


def _is_open(descriptor: int) -> bool:
    """Return whether a descriptor is open. The listing also has the descriptor it was read from."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _run_concurrently(work: Callable[[], None]) -> None:
    """Run the same work in many threads that begin together. Raises the first error."""
    gate = threading.Barrier(THREADS)

    def one() -> None:
        gate.wait(TIMEOUT)
        work()

    threads = [BackgroundThread(one, name=f"check-crowd-{number}") for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        _await(thread, "one of many at once")


def _await(thread: BackgroundThread, title: str) -> None:
    clock = SystemClock()
    _expect(
        thread.wait(clock, Deadline.after(TIMEOUT, clock)), f"{title}: it ends within {TIMEOUT} s"
    )
    if thread.error is not None:
        raise AssertionError(f"{title}: {thread.error}") from thread.error


def _expect_up(service: Service) -> None:
    _expect(service.started, f"{service.name} is started")
    _expect(not service.stopped, f"{service.name} is not stopped")


def _expect_down(service: Service) -> None:
    _expect(not service.started, f"{service.name} is not started")
    _expect(service.stopped, f"{service.name} is stopped")
    _expect(service.wait_stopped(0.0), "wait_stopped() of a stopped service is True at once")


def _expect_failure(service: Service) -> None:
    try:
        service.start()
    except Exception:  # noqa: BLE001 - the service chooses the error
        return
    raise AssertionError("rule broken: a broken start() raises")


def _expect(condition: bool, rule: str) -> None:  # noqa: FBT001 - a private assert that also holds under -O
    if not condition:
        raise AssertionError(f"rule broken: {rule}")
