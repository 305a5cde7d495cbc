from __future__ import annotations

import threading

import pytest

from longwatch.core.clock import SystemClock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.host.errand import Errand
from longwatch.testing import FakeClock

CLOCK = SystemClock()
SOON = Deadline.after(60, CLOCK)


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_it_is_made_once_in_a_daemon_thread_with_its_name() -> None:
    seen: list[tuple[str, bool]] = []
    errand = Errand(
        lambda: seen.append((threading.current_thread().name, threading.current_thread().daemon)),
        name="mine",
    )
    errand.start()
    errand.start()
    assert errand.wait(CLOCK, SOON)
    assert [("mine", True)] == seen


def test_when_it_was_waited_for_its_thread_is_gone() -> None:
    errand = Errand(lambda: None, name="mine")
    slow_to_end, run = threading.Event(), errand._thread.run

    def run_and_linger() -> None:
        run()
        slow_to_end.wait(0.05)

    errand._thread.run = run_and_linger  # type: ignore[method-assign]
    errand.start()
    assert errand.wait(CLOCK, SOON)
    assert not errand._thread.is_alive()


def test_start_returns_when_the_call_is_about_to_be_made() -> None:
    errand = Errand(lambda: None, name="mine")
    slow_to_begin, run, about = threading.Event(), errand._thread.run, list[bool]()

    def linger_and_run() -> None:
        slow_to_begin.wait(0.05)
        about.append(True)
        run()

    errand._thread.run = linger_and_run  # type: ignore[method-assign]
    errand.start()
    assert [True] == about
    assert errand.wait(CLOCK, SOON)


def test_it_does_not_wait_for_itself() -> None:
    answers: list[tuple[bool, bool]] = []
    errand = Errand(
        lambda: answers.append((errand.inside, errand.wait(CLOCK, Deadline.never(CLOCK)))),
        name="mine",
    )
    errand.start()
    assert errand.over.block(5)
    assert [(True, False)] == answers
    assert not errand.inside


def test_waiting_ends_with_the_deadline() -> None:
    clock, may_end = FakeClock(), Wakeup()
    errand = Errand(lambda: clock.wait(may_end), name="mine")
    errand.start()
    assert not errand.wait(clock, Deadline.after(0, clock))
    may_end.set()
    assert errand.wait(clock, Deadline.never(clock))


def test_what_it_raises_is_kept_for_whoever_asks() -> None:
    errand = Errand(lambda: 1 // 0, name="mine")
    errand.start()
    assert errand.wait(CLOCK, SOON)
    assert isinstance(errand.error, ZeroDivisionError)


def test_what_a_loud_one_raises_is_also_told_to_the_hook_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    errand = Errand(lambda: 1 // 0, name="mine", loud=True)
    errand.start()
    assert errand.wait(CLOCK, SOON)
    assert [errand.error] == [one.exc_value for one in told]


def test_without_a_thread_it_says_so_and_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    errand = Errand(lambda: None, name="mine")
    with pytest.raises(RuntimeError, match="new thread"):
        errand.start()
    assert errand.wait(CLOCK, SOON)
    assert isinstance(errand.error, RuntimeError)


def test_without_a_thread_it_can_be_made_by_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    made: list[str] = []
    errand = Errand(lambda: made.append(threading.current_thread().name), name="mine")
    errand.start(here_if_no_thread=True)
    assert [threading.current_thread().name] == made
    assert errand.wait(CLOCK, SOON)
