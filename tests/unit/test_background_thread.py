from __future__ import annotations

import threading

import pytest

from longwatch.core.clock import SystemClock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.host.background_thread import BackgroundThread
from longwatch.testing import FakeClock

CLOCK = SystemClock()
SOON = Deadline.after(60, CLOCK)


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_it_is_made_once_in_a_daemon_thread_with_its_name() -> None:
    seen: list[tuple[str, bool]] = []
    thread = BackgroundThread(
        lambda: seen.append((threading.current_thread().name, threading.current_thread().daemon)),
        name="mine",
    )
    thread.start()
    thread.start()
    assert thread.wait(CLOCK, SOON)
    assert [("mine", True)] == seen


def test_when_it_was_waited_for_its_thread_is_gone() -> None:
    thread = BackgroundThread(lambda: None, name="mine")
    slow_to_end, run = threading.Event(), thread._thread.run

    def run_and_linger() -> None:
        run()
        slow_to_end.wait(0.05)

    thread._thread.run = run_and_linger  # type: ignore[method-assign]
    thread.start()
    assert thread.wait(CLOCK, SOON)
    assert not thread._thread.is_alive()


def test_start_returns_when_the_call_is_about_to_be_made() -> None:
    thread = BackgroundThread(lambda: None, name="mine")
    slow_to_begin, run, about = threading.Event(), thread._thread.run, list[bool]()

    def linger_and_run() -> None:
        slow_to_begin.wait(0.05)
        about.append(True)
        run()

    thread._thread.run = linger_and_run  # type: ignore[method-assign]
    thread.start()
    assert [True] == about
    assert thread.wait(CLOCK, SOON)


def test_it_does_not_wait_for_itself() -> None:
    answers: list[tuple[bool, bool]] = []
    thread = BackgroundThread(
        lambda: answers.append((thread.in_own_thread, thread.wait(CLOCK, Deadline.never(CLOCK)))),
        name="mine",
    )
    thread.start()
    assert thread.done.block(5)
    assert [(True, False)] == answers
    assert not thread.in_own_thread


def test_waiting_ends_with_the_deadline() -> None:
    clock, may_end = FakeClock(), Wakeup()
    thread = BackgroundThread(lambda: clock.wait(may_end), name="mine")
    thread.start()
    assert not thread.wait(clock, Deadline.after(0, clock))
    may_end.set()
    assert thread.wait(clock, Deadline.never(clock))


def test_what_it_raises_is_kept_for_whoever_asks() -> None:
    thread = BackgroundThread(lambda: 1 // 0, name="mine")
    thread.start()
    assert thread.wait(CLOCK, SOON)
    assert isinstance(thread.error, ZeroDivisionError)


def test_what_a_loud_one_raises_is_also_told_to_the_hook_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    thread = BackgroundThread(lambda: 1 // 0, name="mine", report_errors=True)
    thread.start()
    assert thread.wait(CLOCK, SOON)
    assert [thread.error] == [one.exc_value for one in told]


def test_without_a_thread_it_says_so_and_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    thread = BackgroundThread(lambda: None, name="mine")
    with pytest.raises(RuntimeError, match="new thread"):
        thread.start()
    assert thread.wait(CLOCK, SOON)
    assert isinstance(thread.error, RuntimeError)


def test_without_a_thread_it_can_be_made_by_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    made: list[str] = []
    thread = BackgroundThread(lambda: made.append(threading.current_thread().name), name="mine")
    thread.start(inline_fallback=True)
    assert [threading.current_thread().name] == made
    assert thread.wait(CLOCK, SOON)
