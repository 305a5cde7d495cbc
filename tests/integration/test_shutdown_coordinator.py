from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from signal import SIGINT, SIGKILL, SIGTERM, SIGUSR1, SIGUSR2

import pytest

from leaks import no_leaks
from longwatch.core.events.base import Events
from longwatch.core.events.host import ShutdownCallbackFailed
from longwatch.errors import ServiceStateError, UsageError
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.shutdown import ShutdownCoordinator
from longwatch.testing import RecordingObserver
from snippet import run_snippet

TIMEOUT = 10.0
A_MOMENT = 0.05
"""How long something that must not happen is given to happen."""


@pytest.fixture(autouse=True)
def _nothing_installed() -> Iterator[None]:
    handlers = [signal.getsignal(one) for one in (SIGTERM, SIGINT)]
    yield
    ShutdownCoordinator.reset()
    assert handlers == [signal.getsignal(one) for one in (SIGTERM, SIGINT)]


@pytest.fixture
def coordinator() -> ShutdownCoordinator:
    return ShutdownCoordinator()


def in_thread(work: Callable[[], object]) -> BackgroundThread:
    thread = BackgroundThread(work, name="test")
    thread.start()
    return thread


# --- one instance ---------------------------------------------------------------------------------


def test_there_is_none_until_it_is_installed_and_none_after_reset() -> None:
    assert ShutdownCoordinator.get() is None
    installed = ShutdownCoordinator.install()
    assert installed is ShutdownCoordinator.get()
    assert frozenset({SIGTERM, SIGINT}) == installed.signals
    ShutdownCoordinator.reset()
    assert ShutdownCoordinator.get() is None
    ShutdownCoordinator.reset()


def test_installing_again_gives_the_same_one_also_from_another_thread() -> None:
    first = ShutdownCoordinator.install()
    found: list[ShutdownCoordinator] = []
    assert in_thread(lambda: found.append(ShutdownCoordinator.install())).done.block(TIMEOUT)
    assert [first, first] == [*found, ShutdownCoordinator.install(signals=[SIGTERM])]


def test_installing_again_for_a_signal_it_does_not_hear_is_refused() -> None:
    ShutdownCoordinator.install(signals=[SIGTERM])
    with pytest.raises(UsageError, match="reset"):
        ShutdownCoordinator.install(signals=[SIGUSR1])


def test_after_a_reset_a_new_one_knows_nothing_of_the_old() -> None:
    old = ShutdownCoordinator.install()
    old.trigger()
    ShutdownCoordinator.reset()
    new = ShutdownCoordinator.install()
    assert (True, False) == (old.triggered, new.triggered)


def test_reset_restores_the_handlers_it_found() -> None:
    def mine(signum: int, frame: object) -> None: ...

    signal.signal(SIGUSR1, mine)
    try:
        ShutdownCoordinator.install(signals=[SIGUSR1, SIGUSR2])
        assert mine is not signal.getsignal(SIGUSR1)
        ShutdownCoordinator.reset()
        assert [mine, signal.SIG_DFL] == [signal.getsignal(SIGUSR1), signal.getsignal(SIGUSR2)]
    finally:
        signal.signal(SIGUSR1, signal.SIG_DFL)


def test_installing_off_the_main_thread_raises_and_leaves_nothing_half_installed() -> None:
    before = signal.getsignal(SIGTERM)
    with no_leaks():
        installer = in_thread(ShutdownCoordinator.install)
        assert installer.done.block(TIMEOUT)
    assert isinstance(installer.error, ServiceStateError)
    assert (None, before) == (ShutdownCoordinator.get(), signal.getsignal(SIGTERM))


def test_an_install_that_fails_half_way_leaves_nothing_half_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = signal.getsignal(SIGTERM)

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with no_leaks():
        with pytest.raises(UsageError, match="cannot be caught"):
            ShutdownCoordinator.install(signals=[SIGTERM, SIGKILL])
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            with pytest.raises(RuntimeError, match="new thread"):
                ShutdownCoordinator.install()
    assert (None, before) == (ShutdownCoordinator.get(), signal.getsignal(SIGTERM))
    assert ShutdownCoordinator.install() is ShutdownCoordinator.get()


def test_resetting_off_the_main_thread_raises_and_it_stays_installed() -> None:
    installed = ShutdownCoordinator.install()
    resetter = in_thread(ShutdownCoordinator.reset)
    assert resetter.done.block(TIMEOUT)
    assert isinstance(resetter.error, ServiceStateError)
    assert installed is ShutdownCoordinator.get()


def test_installing_and_resetting_leaves_no_thread_and_no_descriptor() -> None:
    with no_leaks():
        for _ in range(50):
            ShutdownCoordinator.install()
            ShutdownCoordinator.reset()


# --- callbacks ------------------------------------------------------------------------------------


@pytest.fixture
def _uninterrupted() -> Iterator[None]:
    """A thread that runs keeps running until it waits: so the order of starts is the order of
    first steps.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60.0)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_uninterrupted")
def test_callbacks_start_in_registration_order(coordinator: ShutdownCoordinator) -> None:
    began: list[int] = []
    for number in range(20):
        coordinator.register(lambda number=number: began.append(number))  # type: ignore[misc]
    coordinator.trigger()
    assert list(range(20)) == began


def test_trigger_returns_when_all_have_returned(coordinator: ShutdownCoordinator) -> None:
    may_end = threading.Event()
    coordinator.register(lambda: may_end.wait(TIMEOUT))
    trigger = in_thread(coordinator.trigger)
    second = in_thread(coordinator.trigger)
    assert (False, False) == (trigger.done.block(A_MOMENT), second.done.block(A_MOMENT))
    may_end.set()
    assert (True, True) == (trigger.done.block(TIMEOUT), second.done.block(TIMEOUT))


def test_callbacks_that_block_overlap(coordinator: ShutdownCoordinator) -> None:
    together = threading.Barrier(3, timeout=TIMEOUT)
    waited: list[int] = []
    for _ in range(3):
        coordinator.register(lambda: waited.append(together.wait()))
        coordinator.register(object)
    coordinator.trigger()
    assert [0, 1, 2] == sorted(waited)


def test_a_callback_runs_once_however_often_it_is_registered_and_triggered(
    coordinator: ShutdownCoordinator,
) -> None:
    runs: list[None] = []

    def callback() -> None:
        runs.append(None)

    coordinator.register(callback)
    coordinator.register(callback)
    coordinator.trigger()
    coordinator.trigger()
    coordinator.register(callback)
    coordinator.trigger()
    assert [None] == runs


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), KeyboardInterrupt()])
def test_a_callback_that_raises_is_told_and_does_not_hinder_the_others(
    error: BaseException,
) -> None:
    observer = RecordingObserver()
    coordinator = ShutdownCoordinator(events=Events(observer))
    ran: list[str] = []

    def broken() -> None:
        raise error

    coordinator.register(lambda: ran.append("before"))
    coordinator.register(broken)
    coordinator.register(lambda: ran.append("after"))
    coordinator.trigger()
    assert ["after", "before"] == sorted(ran)
    (failed,) = observer.of(ShutdownCallbackFailed)
    assert failed.callback.endswith("broken")
    assert f"{type(error).__name__}: {error}" == failed.error


def test_an_unregistered_callback_does_not_run_and_an_unknown_one_is_no_error(
    coordinator: ShutdownCoordinator,
) -> None:
    ran: list[None] = []

    def callback() -> None:
        ran.append(None)

    coordinator.unregister(callback)
    coordinator.register(callback)
    coordinator.unregister(callback)
    coordinator.unregister(callback)
    coordinator.trigger()
    assert [] == ran


def test_the_methods_of_an_object_can_be_registered_and_taken_off(
    coordinator: ShutdownCoordinator,
) -> None:
    seen = threading.Event()
    coordinator.register(seen.set)
    coordinator.unregister(seen.set)
    coordinator.trigger()
    assert not seen.is_set()
    coordinator.register(seen.set)
    assert seen.wait(TIMEOUT)


def test_a_late_callback_runs_at_once_and_the_one_who_registers_it_does_not_wait(
    coordinator: ShutdownCoordinator,
) -> None:
    coordinator.trigger()
    registrar_is_back, ran = threading.Event(), threading.Event()

    def waits_for_its_registrar() -> None:
        if registrar_is_back.wait(TIMEOUT):
            ran.set()

    coordinator.register(waits_for_its_registrar)
    registrar_is_back.set()
    assert ran.wait(TIMEOUT)


def test_a_callback_registered_while_the_others_run_runs_too_and_is_waited_for(
    coordinator: ShutdownCoordinator,
) -> None:
    ran: list[str] = []

    def outer() -> None:
        coordinator.register(lambda: ran.append("inner"))
        ran.append("outer")

    coordinator.register(outer)
    coordinator.trigger()
    coordinator.trigger()
    assert ["inner", "outer"] == sorted(ran)


def test_trigger_from_inside_a_callback_does_not_wait_for_itself(
    coordinator: ShutdownCoordinator,
) -> None:
    ran: list[bool] = []

    def callback() -> None:
        coordinator.trigger()
        ran.append(coordinator.triggered)

    coordinator.register(callback)
    coordinator.register(lambda: coordinator.trigger())  # noqa: PLW0108 - a second one, other than the first
    trigger = in_thread(coordinator.trigger)
    assert trigger.done.block(TIMEOUT)
    assert [True] == ran


def test_a_callback_that_takes_itself_off_is_waited_for_all_the_same(
    coordinator: ShutdownCoordinator,
) -> None:
    taken_off, may_end = threading.Event(), threading.Event()

    def callback() -> None:
        coordinator.unregister(callback)
        taken_off.set()
        may_end.wait(TIMEOUT)

    coordinator.register(callback)
    first = in_thread(coordinator.trigger)
    assert taken_off.wait(TIMEOUT)
    second = in_thread(coordinator.trigger)
    assert (False, False) == (first.done.block(A_MOMENT), second.done.block(A_MOMENT))
    may_end.set()
    assert (True, True) == (first.done.block(TIMEOUT), second.done.block(TIMEOUT))


def test_callbacks_run_outside_any_lock(coordinator: ShutdownCoordinator) -> None:
    done: list[object] = []

    def uses_everything() -> None:
        coordinator.unregister(uses_everything)
        coordinator.register(lambda: None)
        coordinator.on_escalation(None)
        done.append((coordinator.triggered, coordinator.signal))

    coordinator.register(uses_everything)
    assert in_thread(lambda: coordinator.trigger(15)).done.block(TIMEOUT)
    assert [(True, 15)] == done


def test_each_callback_runs_once_when_many_register_while_it_is_triggered(
    coordinator: ShutdownCoordinator,
) -> None:
    counts = [0] * 400
    together = threading.Barrier(5, timeout=TIMEOUT)

    def count(number: int) -> None:
        counts[number] += 1

    def register(start: int) -> None:
        together.wait()
        for number in range(start, 400, 4):
            coordinator.register(lambda number=number: count(number))  # type: ignore[misc]

    registrars = [in_thread(lambda start=start: register(start)) for start in range(4)]  # type: ignore[misc]
    together.wait()
    coordinator.trigger()
    assert all(registrar.done.block(TIMEOUT) for registrar in registrars)
    coordinator.trigger()
    assert [1] * 400 == counts


def test_callbacks_run_also_when_the_system_has_no_thread_left(
    coordinator: ShutdownCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[None] = []
    coordinator.register(lambda: ran.append(None))

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    coordinator.trigger()
    assert [None] == ran


def test_code_that_triggers_may_name_a_signal_and_the_first_one_stays(
    coordinator: ShutdownCoordinator,
) -> None:
    assert (False, None) == (coordinator.triggered, coordinator.signal)
    coordinator.trigger(SIGTERM)
    coordinator.trigger(SIGINT)
    assert (True, SIGTERM) == (coordinator.triggered, coordinator.signal)


# --- real signals in real processes ---------------------------------------------------------------

PRELUDE = """
import os, signal, sys, threading
from longwatch.host.shutdown import ShutdownCoordinator
coordinator = ShutdownCoordinator.install()
"""


@pytest.mark.parametrize("signum", [SIGTERM, SIGINT])
def test_a_signal_runs_the_callbacks_in_ordinary_threads_while_the_main_thread_waits_for_them(
    signum: signal.Signals,
) -> None:
    code = """
done = threading.Event()
def callback():
    print(
        threading.current_thread() is threading.main_thread(),
        coordinator.triggered, coordinator.signal
    )
    done.set()
coordinator.register(callback)
print("ready")
done.wait()
"""
    with run_snippet(PRELUDE + code) as snippet:
        assert "ready" == snippet.read_line()
        snippet.signal(signum)
        assert f"False True {int(signum)}" == snippet.read_line()
        assert (0, "") == snippet.wait()


def test_a_signal_that_comes_while_the_main_thread_holds_the_lock_a_callback_wants_does_not_deadlock() -> (  # noqa: E501 - one name
    None
):
    code = """
lock, done = threading.Lock(), threading.Event()
def callback():
    print("began")
    with lock:
        print("has the lock")
    done.set()
coordinator.register(callback)
with lock:
    os.kill(os.getpid(), signal.SIGTERM)
    input()
done.wait()
"""
    with run_snippet(PRELUDE + code) as snippet:
        assert "began" == snippet.read_line()
        snippet.send_line()
        assert "has the lock" == snippet.read_line()
        assert (0, "") == snippet.wait()


def test_a_signal_in_the_middle_of_register_and_unregister_does_not_deadlock() -> None:
    code = """
ran = []
sys.settrace(None)
def interrupt(frame, event, argument):
    if event == "line" and not coordinator.triggered and frame.f_code.co_name in (
        "register", "unregister"
    ):
        os.kill(os.getpid(), signal.SIGUSR1)
    return interrupt
signal.signal(signal.SIGUSR1, lambda *_: signals.append(1))
signals = []
ends = [threading.Event() for _ in range(50)]
sys.settrace(interrupt)
for number, end in enumerate(ends):
    coordinator.register(end.set)
    coordinator.unregister(print)
    if number == 25:
        os.kill(os.getpid(), signal.SIGTERM)
sys.settrace(None)
for end in ends:
    end.wait()
print(len(signals) > 50)
"""
    with run_snippet(PRELUDE + code) as snippet:
        assert "True" == snippet.read_line()
        assert (0, "") == snippet.wait()


def test_a_callback_may_wait_for_the_main_thread_that_the_signal_interrupted() -> None:
    code = """
main_went_on, done = threading.Event(), threading.Event()
coordinator.register(lambda: (main_went_on.wait(), print("callback"), done.set()))
os.kill(os.getpid(), signal.SIGTERM)
main_went_on.set()
done.wait()
"""
    with run_snippet(PRELUDE + code) as snippet:
        assert "callback" == snippet.read_line()
        assert (0, "") == snippet.wait()


@pytest.mark.parametrize(
    ("first", "second"), [(SIGTERM, SIGTERM), (SIGTERM, SIGINT), (SIGINT, SIGTERM)]
)
def test_a_second_signal_ends_the_process_although_a_callback_hangs(
    first: signal.Signals, second: signal.Signals
) -> None:
    code = """
coordinator.register(lambda: (print("hanging"), threading.Event().wait()))
print("ready")
threading.Event().wait()
"""
    with run_snippet(PRELUDE + code) as snippet:
        assert "ready" == snippet.read_line()
        snippet.signal(first)
        assert "hanging" == snippet.read_line()
        snippet.signal(second)
        assert (128 + second, "") == snippet.wait()


def test_a_second_signal_does_what_was_asked_for_instead_and_the_third_ends_the_process() -> None:
    code = """
coordinator.on_escalation(
    lambda: (print("escalated by the second of", coordinator.signal), threading.Event().wait())
)
coordinator.register(lambda: print("stopping"))
print("ready")
threading.Event().wait()
"""
    with run_snippet(PRELUDE + code) as snippet:
        assert "ready" == snippet.read_line()
        snippet.signal(SIGTERM)
        assert "stopping" == snippet.read_line()
        snippet.signal(SIGTERM)
        assert "escalated by the second of 15" == snippet.read_line()
        snippet.signal(SIGINT)
        assert (128 + SIGINT, "") == snippet.wait()


def test_an_escalation_that_raises_ends_the_process_all_the_same() -> None:
    code = """
from longwatch.core.events.base import Events
ShutdownCoordinator.reset()
coordinator = ShutdownCoordinator.install(
    events=Events(lambda event: print(event.name, event.error))
)
coordinator.on_escalation(lambda: 1 / 0)
coordinator.register(lambda: print("stopping"))
print("ready")
threading.Event().wait()
"""
    with run_snippet(PRELUDE + code) as snippet:
        assert "ready" == snippet.read_line()
        snippet.signal(SIGTERM)
        assert "stopping" == snippet.read_line()
        snippet.signal(SIGTERM)
        assert "shutdown_callback_failed ZeroDivisionError: division by zero" == snippet.read_line()
        assert (128 + SIGTERM, "") == snippet.wait()


def test_the_first_signal_after_code_has_triggered_does_not_escalate() -> None:
    code = """
threading.Thread(target=coordinator.trigger).start()
heard = threading.Event()
coordinator.on_escalation(lambda: print("escalated"))
os.kill(os.getpid(), signal.SIGTERM)
print("alive", coordinator.signal)
input()
os.kill(os.getpid(), signal.SIGTERM)
threading.Event().wait()
"""
    with run_snippet(PRELUDE + code) as snippet:
        assert "alive None" == snippet.read_line()
        snippet.send_line()
        assert "escalated" == snippet.read_line()


def test_a_program_whose_callback_hangs_still_ends_when_its_main_thread_does() -> None:
    code = """
began = threading.Event()
coordinator.register(lambda: (began.set(), threading.Event().wait()))
os.kill(os.getpid(), signal.SIGTERM)
began.wait()
print("leaving")
"""
    with run_snippet(PRELUDE + code) as snippet:
        assert "leaving" == snippet.read_line()
        assert 0 == snippet.wait()[0]


def test_a_signal_that_comes_during_installation_is_heard() -> None:
    code = """
from longwatch.host.background_thread import BackgroundThread
ShutdownCoordinator.reset()
start = BackgroundThread.start
def early(self, **options):
    os.kill(os.getpid(), signal.SIGTERM)
    start(self, **options)
BackgroundThread.start = early
coordinator = ShutdownCoordinator.install()
BackgroundThread.start = start
done = threading.Event()
coordinator.register(lambda: (print("heard"), done.set()))
done.wait()
"""
    with run_snippet(PRELUDE + code) as snippet:
        assert "heard" == snippet.read_line()
        assert (0, "") == snippet.wait()


def test_a_forked_child_has_none_dies_of_the_signal_and_can_install_its_own() -> None:
    code = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
coordinator.register(
    lambda: print("the parent's callback in", "child" if os.getpid() != parent else "parent")
)
parent = os.getpid()
plain = os.fork()
if plain == 0:
    print("none" if ShutdownCoordinator.get() is None else "one")
    signal.pause()
    os._exit(3)
input()
os.kill(plain, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(plain, 0)[1]))
own = os.fork()
if own == 0:
    mine = ShutdownCoordinator.install()
    done = threading.Event()
    mine.register(lambda: (print("the child's callback"), done.set()))
    os.kill(os.getpid(), signal.SIGTERM)
    done.wait()
    ShutdownCoordinator.reset()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(own, 0)[1]))
"""
    with run_snippet(PRELUDE + code) as snippet:
        assert "none" == snippet.read_line()
        snippet.send_line()
        assert [str(-SIGTERM), "the child's callback", "0"] == [
            snippet.read_line() for _ in range(3)
        ]
        assert (0, "") == snippet.wait()
