from __future__ import annotations

import faulthandler
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf, nan
from pathlib import Path
from signal import SIGKILL
from textwrap import dedent
from types import SimpleNamespace

import pytest

import requires
from longwatch.core.events.base import Event, Events
from longwatch.core.events.runtime import LoopStalled, WatchdogRoundSkipped
from longwatch.core.heartbeat import Heartbeat
from longwatch.errors import UsageError
from longwatch.host import watchdog as module
from longwatch.host.crash_file import CRASH_DIR_VARIABLE, CrashFile
from longwatch.host.service import Service
from longwatch.host.watchdog import BeatAge, Watchdog
from longwatch.testing import FakeClock, RecordingObserver, check_service
from snippet import TIMEOUT, Snippet, run_snippet


@pytest.fixture(autouse=True)
def crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the crash files of this process and of those it starts go."""
    monkeypatch.setenv(CRASH_DIR_VARIABLE, str(tmp_path / "crashes"))
    return tmp_path / "crashes"


def stacks(crashes: Path) -> str:
    """What is in the one crash file."""
    [path] = crashes.iterdir()
    return path.read_text()


# --- the end of a real process ---

PRELUDE = """
import logging, os, sys, threading
from longwatch.core.heartbeat import Heartbeat
from longwatch.host.watchdog import Watchdog
from longwatch.testing import FakeClock

logging.basicConfig(format="%(name)s %(levelname)s %(message)s", stream=sys.stdout)

def silent(seconds):
    clock = FakeClock()
    heartbeat = Heartbeat(clock)
    clock.advance(seconds)
    return heartbeat

def for_ever():
    threading.Event().wait()
"""
STALLED = """
Watchdog([silent(65.2)], stall_threshold=60.0, check_interval=0.01, loop_names=["mail"]).start()
for_ever()
"""
SENTENCE = "Watchdog: mail stalled for 65.2s (threshold: 60.0s)"


@contextmanager
def program(*parts_of_it: str) -> Iterator[Snippet]:
    with run_snippet(PRELUDE + "".join(map(dedent, parts_of_it))) as snippet:
        yield snippet


def ended(snippet: Snippet) -> tuple[int, list[str]]:
    """How it ended, and what it had printed."""
    code, _ = snippet.wait()
    return code, list(iter(snippet.read_line, ""))


def test_a_stall_ends_the_process_with_sigkill_and_these_very_words() -> None:
    with program(
        """
        beats = [silent(65.2), silent(60.0), silent(1234.56)]
        Watchdog(
            beats, stall_threshold=60.0, check_interval=0.01, loop_names=["mail", "fresh", "eval"]
        ).start()
        for_ever()
        """
    ) as snippet:
        code, printed = ended(snippet)
    assert -SIGKILL == code
    assert [
        "longwatch.runtime.watchdog CRITICAL Watchdog: mail stalled for 65.2s (threshold: 60.0s)",
        "longwatch.runtime.watchdog CRITICAL Watchdog: eval stalled for 1234.6s (threshold: 60.0s)",
        "longwatch.runtime.watchdog CRITICAL Watchdog: terminating process due to stalled workers",
    ] == printed


def test_all_stacks_are_in_the_crash_file_and_on_stderr(crashes: Path) -> None:
    with program(
        """
        def stuck_in_here():
            for_ever()

        threading.Thread(target=stuck_in_here, daemon=True).start()
        """,
        STALLED,
    ) as snippet:
        code, stderr = snippet.wait()
    written = stacks(crashes)
    assert (-SIGKILL, written[:4096]) == (code, stderr)
    assert written.splitlines()[0].endswith(f": {SENTENCE}")
    assert ["in stuck_in_here", "in <module>"] == [
        word for word in ("in stuck_in_here", "in <module>") if word in written
    ]


HAZARDS = {
    "stderr is a full pipe that nobody reads, and the log goes there": """
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        try:
            while os.write(writing, b"x" * 4096):
                pass
        except BlockingIOError:
            os.set_blocking(writing, True)
        os.dup2(writing, 2)
        logging.basicConfig(stream=sys.stderr, force=True)
    """,
    "stderr is a terminal that has room for less than there is to show": """
        import select, tty
        reading, writing = os.openpty()
        tty.setraw(writing)
        os.set_blocking(writing, False)
        try:
            while os.write(writing, b"x"):
                pass
        except BlockingIOError:
            os.set_blocking(writing, True)
        poll = select.poll()
        poll.register(writing, select.POLLOUT)
        while not poll.poll(0):
            os.read(reading, 1)
        os.dup2(writing, 2)
        for number in range(50):
            threading.Thread(target=for_ever, daemon=True).start()
    """,
    "stderr is none": """
        os.close(2)
        sys.stderr = None
    """,
    "stderr is closed": """
        os.close(2)
    """,
    "a handler of the log blocks for ever": """
        class Blocking(logging.Handler):
            def emit(self, record):
                for_ever()
        logging.getLogger().addHandler(Blocking())
    """,
    "a thread keeps the lock of a handler": """
        def keep():
            logging.getLogger().handlers[0].acquire()
            for_ever()
        threading.Thread(target=keep, daemon=True).start()
        while logging.getLogger().handlers[0].lock.acquire(blocking=False):
            logging.getLogger().handlers[0].lock.release()
    """,
    "a handler of the log raises": """
        class Raising(logging.Handler):
            def emit(self, record):
                raise OSError("no space left")
        logging.getLogger("longwatch.runtime").addHandler(Raising())
    """,
    "there is no thread left": """
        start = threading.Thread.start
        def refuse(thread):
            if thread.name != "watchdog":
                raise RuntimeError("can't start new thread")
            start(thread)
        threading.Thread.start = refuse
    """,
    "there is no thread left for the timer": """
        import faulthandler
        later = faulthandler.dump_traceback_later
        def refuse(*args, **options):
            if threading.current_thread().name == "watchdog":
                raise RuntimeError("unable to start watchdog thread")
            later(*args, **options)
        faulthandler.dump_traceback_later = refuse
    """,
    "the main thread is in a lock that it never gets": """
        never = threading.Lock()
        never.acquire()
        for_ever = never.acquire
    """,
}


@pytest.mark.parametrize("hazard", HAZARDS)
def test_the_process_ends_with_its_stacks_on_record_even_if(hazard: str, crashes: Path) -> None:
    with program(HAZARDS[hazard], STALLED) as snippet:
        assert -SIGKILL == snippet.wait()[0]
    assert SENTENCE in stacks(crashes)


@pytest.mark.parametrize("deed", ["for_ever()", "raise OSError('no store')", "sys.exit(3)"])
@pytest.mark.parametrize("where", ["before_kill=act", "events=Events(act)"])
def test_the_process_ends_even_if_whoever_is_told_before(deed: str, where: str) -> None:
    with program(
        f"""
        from longwatch.core.events.base import Events

        def act(stalls):
            print("told")
            {deed}

        Watchdog([silent(65.2)], stall_threshold=60.0, check_interval=0.01, {where}).start()
        for_ever()
        """
    ) as snippet:
        code, printed = ended(snippet)
    assert (-SIGKILL, True) == (code, "told" in printed)


def test_the_stacks_are_written_first_then_the_reason_is_recorded_then_the_log_is_tried(
    crashes: Path,
) -> None:
    with program(
        """
        from pathlib import Path

        def before_kill(stalls):
            [path] = Path(os.environ["LONGWATCH_CRASH_DIR"]).iterdir()
            print([tuple(stall) for stall in stalls], "mail stalled" in path.read_text())

        names = {"loop_names": ["mail"], "before_kill": before_kill}
        Watchdog([silent(65.5)], stall_threshold=60.0, check_interval=0.01, **names).start()
        for_ever()
        """
    ) as snippet:
        _, printed = ended(snippet)
    assert ["[('mail', 65.5)] True", 3] == [printed[0], len(printed)]


@pytest.mark.parametrize("mount", [["--mount-proc"], []], ids=["own /proc", "foreign /proc"])
def test_pid_1_of_a_container_which_gets_no_sigkill_from_itself_ends_with_137(
    mount: list[str], crashes: Path
) -> None:
    requires.require_tool("unshare")
    code = PRELUDE + "print(os.getpid(), flush=True)" + STALLED
    words = ["unshare", "--pid", "--fork", "--kill-child", *mount, sys.executable, "-c", code]
    ended = subprocess.run(words, check=False, capture_output=True, timeout=TIMEOUT, text=True)
    assert (137, "1") == (ended.returncode, ended.stdout.splitlines()[0])
    assert SENTENCE in stacks(crashes)


# --- the timer in C ---

HOLDS_THE_GIL = """
import re

def backtracking():
    re.match("(a+)+b", "a" * 60)
"""
BRIEF = "stall_threshold=0.2, check_interval=0.05"


def test_code_that_holds_the_gil_is_ended_by_the_timer_with_1_and_the_stacks_are_only_in_the_crash_file(  # noqa: E501 - one name
    crashes: Path,
) -> None:
    with program(
        HOLDS_THE_GIL,
        f"""
        Watchdog([Heartbeat()], {BRIEF}).start()
        backtracking()
        """,
    ) as snippet:
        assert (1, "") == snippet.wait()
    assert ["in backtracking", "Timeout ("] == [
        word for word in ("in backtracking", "Timeout (") if word in stacks(crashes)
    ]


def test_the_timer_is_off_once_the_watchdog_is_stopped(crashes: Path) -> None:
    with program(
        f"""
        watchdog = Watchdog([Heartbeat()], {BRIEF})
        watchdog.start()
        print(watchdog.stop())
        threading.Event().wait(0.6)
        """
    ) as snippet:
        assert (0, ["True"]) == ended(snippet)
    assert [] == list(crashes.iterdir())


class Timer:
    """Stands in for the timer of `faulthandler`, and writes down what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int] | None] = []

    def dump_traceback_later(self, seconds: float, *, exit: bool, file: int) -> None:  # noqa: A002 - its name there
        assert exit
        self.calls.append((round(seconds), file))

    def cancel_dump_traceback_later(self) -> None:
        self.calls.append(None)


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> Timer:
    made = Timer()
    for name in ("dump_traceback_later", "cancel_dump_traceback_later"):
        monkeypatch.setattr(faulthandler, name, getattr(made, name))
    return made


def test_the_timer_stands_at_threshold_and_two_intervals_and_each_round_sets_it_again(
    timer: Timer,
) -> None:
    clock = FakeClock()
    watchdog = Watchdog([Heartbeat(clock)], stall_threshold=60.0, check_interval=10.0, clock=clock)
    with watchdog:
        clock.await_parked(1)
        clock.advance(25)
        file = watchdog._crash_file.fileno
    assert [(80, file)] * 3 + [None] == timer.calls


def test_the_first_watchdog_has_the_timer_and_when_it_stops_the_next(timer: Timer) -> None:
    clock = FakeClock()
    first, second = (
        Watchdog([], stall_threshold=each, check_interval=10.0, clock=clock)
        for each in (100.0, 200.0)
    )
    first.start()
    second.start()
    clock.await_parked(2)
    clock.advance(10)
    first.stop()
    clock.await_parked(1)
    clock.advance(10)
    second.stop()
    assert [120, 120, None, 220, None] == [told and told[0] for told in timer.calls]


def test_a_round_that_meets_a_stop_does_not_set_the_timer_again(timer: Timer) -> None:
    watchdog = Watchdog([])
    watchdog.start()
    watchdog.stop()
    watchdog._round()
    assert timer.calls[-1] is None


FORKS = f"""
import signal, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
os.register_at_fork(
    after_in_child=lambda: signal.alarm(60)
)  # a test that went wrong leaves nothing for good
beating = Heartbeat()
watchdog = Watchdog([beating], {BRIEF})
"""


def test_the_forked_child_of_a_watched_process_ends_as_it_wants() -> None:
    with program(
        FORKS,
        """
        watchdog = Watchdog([beating], stall_threshold=60)  # a slow machine is no stall
        watchdog.start()
        child = os.fork()
        if child == 0:
            print(watchdog.started, watchdog.stop())
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), watchdog.started, watchdog.stop())
        """,
    ) as snippet:
        assert (0, ["False True", "7 True True"]) == ended(snippet)


@pytest.mark.parametrize("before", ["", "watchdog.start()"], ids=["built before", "started before"])
def test_a_watchdog_from_before_a_fork_can_be_started_in_the_child(before: str) -> None:
    with program(
        FORKS,
        HOLDS_THE_GIL,
        f"""
        {before}
        child = os.fork()
        if child == 0:
            watchdog.start()
            backtracking()
        watchdog.stop()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
    ) as snippet:
        assert (0, ["1"]) == ended(snippet)


def test_the_timer_of_the_parent_goes_on_after_a_fork(crashes: Path) -> None:
    with program(
        FORKS,
        HOLDS_THE_GIL,
        """
        watchdog.start()
        if os.fork() == 0:
            os._exit(0)
        backtracking()
        """,
    ) as snippet:
        assert 1 == snippet.wait()[0]
    assert "in backtracking" in stacks(crashes)


def test_forks_do_not_put_the_timer_off(timer: Timer, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    with Watchdog([], stall_threshold=60.0, check_interval=10.0):
        now += 30.0
        module._Backstop._before_fork()
        module._Backstop._in_parent()
    assert [80, None, 50, None] == [told and told[0] for told in timer.calls]


# --- rounds, on a clock that stands still ---


class PausedClock(FakeClock):
    """One whose machine may stand still: then time goes by, and nobody is woken."""

    stood_still = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.stood_still


class WatchdogRig:
    """A watchdog on a fake clock that writes down when it bites, and lets go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = PausedClock()
        self.heartbeat = Heartbeat(self.clock)
        self.observer = RecordingObserver()
        self.exits: list[float] = []
        self.look: Callable[[], Sequence[BeatAge]] = lambda: [
            BeatAge("mail", self.heartbeat.elapsed())
        ]
        monkeypatch.setattr(module, "kill_own_process", lambda: self.exits.append(self.now))

    @property
    def now(self) -> float:
        return self.clock.monotonic() - 1000.0

    def watchdog(self) -> Watchdog:
        file = CrashFile("test")
        file.open()
        return Watchdog.with_reader(
            self.check,
            stall_threshold=60.0,
            check_interval=10.0,
            clock=self.clock,
            events=Events(self.observer),
            crash_file=file,
            before_kill=lambda _: None,
        )

    def check(self) -> Sequence[BeatAge]:
        return self.look()

    @contextmanager
    def watching(self) -> Iterator[None]:
        watchdog = self.watchdog()
        with watchdog:
            self.clock.await_parked(1)
            yield
        watchdog._crash_file.close()

    def next_round(self, *, late: float = 0.0) -> None:
        self.clock.stood_still += late
        self.clock.advance(10)


def broken() -> list[BeatAge]:
    raise ZeroDivisionError


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> WatchdogRig:
    return WatchdogRig(monkeypatch)


def test_it_bites_at_the_first_round_past_the_threshold(rig: WatchdogRig) -> None:
    with rig.watching():
        rig.clock.advance(69)
        before = list(rig.exits)
        rig.clock.advance(1)
    assert ([], [70.0]) == (before, rig.exits)


def test_it_never_bites_while_there_are_beats(rig: WatchdogRig) -> None:
    with rig.watching():
        for _ in range(100):
            rig.clock.advance(59)
            rig.heartbeat.beat()
    assert ([], []) == (rig.exits, rig.observer.events)


def test_it_does_not_bite_before_it_is_started_or_once_it_is_stopped(rig: WatchdogRig) -> None:
    watchdog = rig.watchdog()
    rig.clock.advance(1000)
    rig.heartbeat.beat()
    watchdog.start()
    rig.clock.await_parked(1)
    watchdog.stop()
    rig.clock.advance(1000)
    watchdog._crash_file.close()
    assert [] == rig.exits


def test_what_comes_and_goes_is_watched_while_it_is_there(rig: WatchdogRig) -> None:
    rig.clock.advance(100)
    look, rig.look = rig.look, list
    with rig.watching():
        rig.clock.advance(20)
        rig.look = look
        rig.clock.advance(10)
    assert [130.0] == rig.exits


def test_a_late_round_is_skipped_once_so_that_loops_can_beat(rig: WatchdogRig) -> None:
    with rig.watching():
        rig.next_round()
        rig.next_round(late=600.0)
        rig.heartbeat.beat()
        rig.clock.advance(60)
    assert [] == rig.exits
    assert [600.0] == [event.late_by for event in rig.observer.of(WatchdogRoundSkipped)]


def test_a_loop_that_does_not_beat_after_a_late_round_is_ended_at_the_next(
    rig: WatchdogRig,
) -> None:
    with rig.watching():
        rig.next_round(late=600.0)
        rig.next_round()
    assert [620.0] == rig.exits


def test_of_rounds_that_are_all_late_every_other_is_skipped(rig: WatchdogRig) -> None:
    """Who is starved all the time is not excused all the time."""
    with rig.watching():
        for _ in range(4):
            rig.next_round(late=90.0)
    assert [200.0, 400.0] == rig.exits
    assert 2 == len(rig.observer.of(WatchdogRoundSkipped))


def test_a_round_is_late_from_half_an_interval_on(rig: WatchdogRig) -> None:
    with rig.watching():
        rig.clock.advance(50)
        rig.next_round(late=5.0)
        rig.next_round(late=5.1)
    assert ([65.0], 1) == (rig.exits, len(rig.observer.of(WatchdogRoundSkipped)))


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3)], ids=repr)
def test_an_error_in_a_check_does_not_end_the_watch(rig: WatchdogRig, error: BaseException) -> None:
    look = rig.look

    def fail() -> list[BeatAge]:
        raise error

    with rig.watching():
        rig.look = fail
        rig.clock.advance(100)
        rig.look = look
        rig.clock.advance(10)
    assert [110.0] == rig.exits


def test_an_error_in_a_check_is_logged(rig: WatchdogRig, caplog: pytest.LogCaptureFixture) -> None:
    rig.look = broken
    with rig.watching():
        rig.clock.advance(20)
    record, again = caplog.records
    expected = (
        "longwatch.runtime.watchdog",
        logging.ERROR,
        "Watchdog: a check failed; the checks continue",
    )
    assert (
        expected
        == (record.name, record.levelno, record.getMessage())
        == (again.name, again.levelno, again.getMessage())
    )
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ZeroDivisionError)


def test_a_log_that_blocks_does_not_end_the_watch(
    rig: WatchdogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(module, "_REPORT_TIMEOUT", 0.01)
    monkeypatch.setattr(module, "_log", lambda *_: may_end.wait())
    look = rig.look
    with rig.watching():
        rig.look = broken
        rig.clock.advance(60)
        rig.look = look
        rig.clock.advance(10)
    may_end.set()
    assert [70.0] == rig.exits


def test_last_words_that_fail_are_no_reason_to_live(
    rig: WatchdogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: CrashFile, reason: str) -> None:
        raise MemoryError

    monkeypatch.setattr(CrashFile, "dump", fail)
    with rig.watching():
        rig.clock.advance(70)
    assert [70.0] == rig.exits


def test_observers_are_told_of_a_stall_and_where_its_stacks_are(
    rig: WatchdogRig, crashes: Path
) -> None:
    with rig.watching():
        rig.clock.advance(70)
    [path] = crashes.iterdir()
    assert [
        LoopStalled(loop="mail", elapsed=70.0, threshold=60.0, stacks=str(path))
    ] == rig.observer.events


def test_an_observer_that_blocks_holds_up_neither_a_skipped_round_nor_the_next(
    rig: WatchdogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(module, "_REPORT_TIMEOUT", 0.01)

    def block(self: Events, event: Event) -> None:
        may_end.wait()

    monkeypatch.setattr(Events, "emit", block)
    with rig.watching():
        rig.next_round(late=600.0)
        rig.next_round()
    may_end.set()
    assert [620.0] == rig.exits


def test_stop_returns_in_the_middle_of_an_interval(rig: WatchdogRig) -> None:
    watchdog = rig.watchdog()
    watchdog.start()
    rig.clock.await_parked(1)
    assert [True, True] == [watchdog.stop(), watchdog.stop()]
    assert (0.0, 0) == (rig.now, rig.clock.parked)
    watchdog._crash_file.close()


def test_stop_waits_for_a_check_that_hangs_only_as_long_as_it_may() -> None:
    may_end, hanging = threading.Event(), threading.Event()

    class Hanging(Heartbeat):
        def elapsed(self) -> float:
            hanging.set()
            may_end.wait()
            return 0.0

    watchdog = Watchdog([Hanging()], stall_threshold=60.0, check_interval=0.01)
    watchdog.start()
    assert hanging.wait(TIMEOUT)
    assert not watchdog.stop(timeout=0.01)
    may_end.set()
    assert watchdog.stop()


# --- making one ---


def test_loops_without_names_are_numbered() -> None:
    clock = FakeClock()
    watchdog = Watchdog([Heartbeat(clock), Heartbeat(clock)], clock=clock)
    clock.advance(721)
    assert [("loop-0", 721.0), ("loop-1", 721.0)] == watchdog._check_heartbeats()


def test_a_check_looks_and_does_nothing(crashes: Path) -> None:
    clock = FakeClock()
    fresh, stalled = Heartbeat(clock), Heartbeat(clock)
    watchdog = Watchdog(
        [fresh, stalled], stall_threshold=60.0, loop_names=["fresh", "stalled"], clock=clock
    )
    clock.advance(60)
    at_the_threshold = watchdog._check_heartbeats()
    clock.advance(5.5)
    fresh.beat()
    assert ([], [("stalled", 65.5)]) == (at_the_threshold, watchdog._check_heartbeats())
    assert (False, False) == (watchdog.started, crashes.exists())


def test_a_list_that_grows_later_is_watched_as_it_was() -> None:
    beats = [Heartbeat()]
    watchdog = Watchdog(beats)
    beats.append(Heartbeat())
    assert [] == watchdog._check_heartbeats()


def test_the_defaults_are_those_of_the_contract() -> None:
    watchdog = Watchdog([])
    assert (720.0, 60.0) == (watchdog.stall_threshold, watchdog.check_interval)


@pytest.mark.parametrize("names", [[], ["a"], ["a", "b", "c"]], ids=len)
def test_unequal_lengths_are_refused(names: list[str]) -> None:
    told = rf"^2 heartbeats and {len(names)} loop_names; give one name for each, or none at all$"
    with pytest.raises(UsageError, match=told):
        Watchdog([Heartbeat(), Heartbeat()], loop_names=names)


@pytest.mark.parametrize("seconds", [0.0, -1.0, inf, nan])
@pytest.mark.parametrize("option", ["stall_threshold", "check_interval"])
def test_seconds_that_are_no_time_are_refused(option: str, seconds: float) -> None:
    with pytest.raises(
        UsageError, match=f"^{option} must be a number of seconds above 0, not {seconds}$"
    ):
        Watchdog([], **{option: seconds})  # type: ignore[arg-type]  # one of the two


@contextmanager
def no_place_for_crash_files(_: Service) -> Iterator[None]:
    good = os.environ[CRASH_DIR_VARIABLE]
    os.environ[CRASH_DIR_VARIABLE] = "/dev/null/nowhere"
    try:
        yield
    finally:
        os.environ[CRASH_DIR_VARIABLE] = good


def test_it_keeps_the_contract_of_a_service(crashes: Path) -> None:
    check_service(lambda: Watchdog([Heartbeat()]), broken=no_place_for_crash_files)
    assert [] == list(crashes.iterdir())


def test_a_start_that_fails_half_way_leaves_nothing_behind(
    timer: Timer, monkeypatch: pytest.MonkeyPatch, crashes: Path
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    watchdog = Watchdog([])
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="thread"):
        watchdog.start()
    monkeypatch.undo()
    assert (None, [], True) == (timer.calls[-1], list(crashes.iterdir()), watchdog.stopped)


def test_a_crash_file_that_somebody_gave_is_theirs_to_close(tmp_path: Path) -> None:
    file = CrashFile("mine", directory=tmp_path)
    file.open()
    with Watchdog([], crash_file=file):
        pass
    assert file.is_open
    file.close()


def test_one_that_somebody_gave_and_has_not_opened_is_refused_and_nothing_is_left_running(
    tmp_path: Path,
) -> None:
    watchdog = Watchdog([], crash_file=CrashFile("mine", directory=tmp_path))
    with pytest.raises(ValueError, match="file"):
        watchdog.start()
    assert (True, False) == (
        watchdog.stopped,
        "watchdog" in {thread.name for thread in threading.enumerate()},
    )
