from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import Any, Self

import pytest

from engine_rig import TIMEOUT
from longwatch.core.events.base import Events
from longwatch.core.events.runtime import (
    GroupStarted,
    GroupStopped,
    GroupStopping,
    LoopCrashed,
    LoopEnded,
    LoopStarted,
    SignalHandlersSkipped,
    TimeoutsMismatched,
)
from longwatch.errors import ServiceStateError, ShutdownTimeoutError, TryAgainError, UsageError
from longwatch.host.crash_file import CRASH_DIR_VARIABLE
from longwatch.host.parent_channel import ParentChannel
from longwatch.mailbox import open_mailbox
from longwatch.runtime import LoopGroup, MainLoop, MainLoopContext
from loop_rig import (
    GROUP_IDLE_THREADS,
    BackgroundRun,
    GatedLoop,
    StubLoop,
    running_group,
    stub_group,
    wait_until,
)


@pytest.fixture(autouse=True)
def crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CRASH_DIR_VARIABLE, str(tmp_path / "crashes"))
    return tmp_path / "crashes"


def stubs(count: int) -> list[StubLoop]:
    return [StubLoop(f"stub-{number}") for number in range(count)]


# --- making one ---


def test_making_one_starts_nothing_and_opens_nothing(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    group = LoopGroup(
        [GatedLoop(requests=open_mailbox(f"sqlite:///{tmp_path}/m.db", "jobs"))], health_port=0
    )
    assert (set(), False, None, []) == (
        set(threading.enumerate()) - before,
        group.running,
        group.health_address,
        list(tmp_path.iterdir()),
    )


def test_loops_without_a_name_are_called_by_their_place() -> None:
    group = LoopGroup([StubLoop(), StubLoop("mail"), StubLoop()])
    assert ("loop-0", "mail", "loop-2") == group.names


def test_only_names_that_were_given_can_be_equal() -> None:
    with pytest.raises(UsageError, match="more than one is called mail, pages"):
        LoopGroup([StubLoop("pages"), StubLoop("mail"), StubLoop("mail"), StubLoop("pages")])
    assert ("loop-1", "loop-1-unnamed") == LoopGroup([StubLoop("loop-1"), StubLoop()]).names


@pytest.mark.parametrize("loops", [[], [object()], [StubLoop(), "mail"], object(), "mail", None])
def test_what_is_no_group_of_loops_is_refused(loops: Any) -> None:
    with pytest.raises(UsageError, match=r"at least one loop|expected a loop, got "):
        LoopGroup(loops)


def test_one_loop_needs_no_list() -> None:
    loop = StubLoop("mail")
    group = LoopGroup(loop)
    assert ((loop,), ("mail",)) == (group.loops, group.names)


class Pages(MainLoop[str, None]):
    def handle(self, request: str, context: MainLoopContext) -> None: ...


@pytest.mark.parametrize("loops", [Pages, [Pages], [StubLoop(), Pages]])
def test_the_class_of_a_loop_is_refused_with_the_call_that_makes_one(loops: Any) -> None:
    with pytest.raises(UsageError) as refused:
        LoopGroup(loops)
    expected = "expected a loop instance, got the class Pages; pass Pages(requests=…)"
    assert expected == str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"shutdown_timeout": -1},
        {"watchdog_interval": 0},
        {"max_processing_seconds": 0},
        {"watchdog_threshold": 0},
    ],
)
def test_a_number_that_cannot_be_is_refused_when_it_is_made(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(settings))):
        LoopGroup([StubLoop()], **settings)


# --- timeouts that do not go together ---


def test_a_threshold_that_is_not_more_than_the_wait_is_refused_before_anything_runs() -> None:
    loop = StubLoop()
    group = LoopGroup([loop], watchdog_threshold=30)
    with pytest.raises(UsageError, match="must be more than wait_time_seconds"):
        group.run(wait_time_seconds=30)
    assert (False, False) == (loop.started.is_set(), group.running)


def test_doubts_are_warned_of_with_the_number_to_set() -> None:
    with running_group(
        (made := stub_group(StubLoop(), watchdog_interval=300)).group, visibility_timeout=900
    ):
        made.wait_idle()
    assert [
        ("watchdog_interval", "set it below 240"),
        ("visibility_timeout", "set it above 1320"),
    ] == [
        (event.setting, event.problem.rsplit(": ", 1)[1])
        for event in made.observer.of(TimeoutsMismatched)
    ]


def test_the_defaults_raise_no_doubt_and_are_what_loops_are_run_with() -> None:
    with running_group((made := stub_group(StubLoop())).group):
        made.wait_idle()
    assert [] == made.observer.of(TimeoutsMismatched)
    assert [{"visibility_timeout": 1800, "wait_time_seconds": 30}] == made.loops[0].run_settings


# --- a run ---


def test_every_loop_runs_in_a_thread_of_its_own_until_the_group_is_told_to_stop() -> None:
    made = stub_group(*stubs(3))
    with running_group(made.group) as running:
        made.wait_idle()
        assert [True] * 4 == [made.group.running, *(loop.running for loop in made.loops)]
        assert made.group.shutdown()
        running.wait()
    assert [False] * 4 == [made.group.running, *(loop.running for loop in made.loops)]
    assert {"stub-0", "stub-1", "stub-2"} == {event.loop for event in made.observer.of(LoopStarted)}
    assert {"stub-0", "stub-1", "stub-2"} == {event.loop for event in made.observer.of(LoopEnded)}
    assert [("stub-0", "stub-1", "stub-2")] == [
        event.loops for event in made.observer.of(GroupStarted)
    ]
    assert ["asked"] == [event.reason for event in made.observer.of(GroupStopping)]
    assert [()] == [event.overdue for event in made.observer.of(GroupStopped)]


class Bare:
    """A Runnable with nothing that is optional: no name, no heartbeat, no drain."""

    def __init__(self) -> None:
        self.began, self._may_end = threading.Event(), threading.Event()

    running = True

    def run(self, **_: Any) -> None:
        self.began.set()
        assert self._may_end.wait(TIMEOUT)

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        self._may_end.set()
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def test_a_loop_needs_nothing_beyond_the_contract() -> None:
    loop = Bare()
    group = LoopGroup([loop], events=Events())
    with running_group(group):
        assert loop.began.wait(TIMEOUT)
        group.drain()
        group.resume()
        assert group.health is not None
        assert (("loop-0",), [], True) == (
            group.names,
            group.health.beat_ages(),
            group.health.readiness().ok,
        )


def test_it_ends_by_itself_when_all_loops_are_done() -> None:
    made = stub_group(*stubs(2))
    running = BackgroundRun(lambda: made.group.run(install_signals=False))
    made.wait_idle()
    made.loops[0].may_end.set()
    made.observer.wait_for(LoopEnded)
    assert not running.is_finished
    made.loops[1].may_end.set()
    running.wait()
    assert (["done"], True) == (
        [event.reason for event in made.observer.of(GroupStopping)],
        made.loops[0].shutdown_timeouts.empty(),
    )


def test_a_loop_that_crashes_stops_the_others_and_then_its_error_is_raised() -> None:
    made = stub_group(*stubs(3))
    running = BackgroundRun(lambda: made.group.run(install_signals=False))
    made.wait_idle()
    made.loops[1].error = ValueError("broken")
    made.loops[1].may_end.set()
    with pytest.raises(ValueError, match="broken"):
        running.wait()
    assert [30.0, 30.0] == [
        made.loops[0].shutdown_timeouts.get(timeout=0),
        made.loops[2].shutdown_timeouts.get(timeout=0),
    ]
    assert [("stub-1", "ValueError: broken")] == [
        (event.loop, event.error) for event in made.observer.of(LoopCrashed)
    ]
    assert [False] * 3 == [loop.running for loop in made.loops]
    assert ["crashed"] == [event.reason for event in made.observer.of(GroupStopping)]


def test_the_error_is_raised_only_after_the_others_have_stopped() -> None:
    made = stub_group(*stubs(2))
    made.loops[0].ignores_shutdown = True
    running = BackgroundRun(lambda: made.group.run(install_signals=False))
    made.wait_idle()
    made.loops[1].error = ValueError("broken")
    made.loops[1].may_end.set()
    assert 30.0 == made.loops[0].shutdown_timeouts.get(timeout=TIMEOUT)
    assert not running.is_finished
    made.loops[0].may_end.set()
    with pytest.raises(ValueError, match="broken"):
        running.wait()


def test_leaving_its_context_shuts_it_down() -> None:
    made = stub_group(*stubs(2))
    with made.group:
        running = BackgroundRun(lambda: made.group.run(install_signals=False))
        made.wait_idle()
    running.wait()


def test_told_to_stop_before_its_first_run_that_one_returns_at_once_and_the_next_does_not() -> None:
    made = stub_group(StubLoop())
    assert made.group.shutdown()
    made.group.run(install_signals=False)
    assert not made.loops[0].started.is_set()
    with running_group(made.group):
        made.wait_idle()


def test_it_can_run_again_and_a_shutdown_in_between_is_nothing() -> None:
    made = stub_group(StubLoop())
    for _ in range(2):
        with running_group(made.group):
            made.wait_idle()
        made.loops[0].started.clear()
        made.loops[0].may_end.clear()
        assert made.group.shutdown()


def test_it_runs_once_at_a_time() -> None:
    made = stub_group(StubLoop())
    with running_group(made.group):
        made.wait_idle()
        with pytest.raises(ServiceStateError, match="this group is running already"):
            made.group.run()


def test_off_the_main_thread_signals_are_not_heard_and_that_is_warned_of_once() -> None:
    made = stub_group(StubLoop())
    with running_group(made.group, install_signals=True):
        made.wait_idle()
    assert 1 == len(made.observer.of(SignalHandlersSkipped))


def test_if_the_rest_of_the_group_cannot_start_the_loops_that_run_already_are_stopped(
    tmp_path: Path,
) -> None:
    made = stub_group(*stubs(2))
    made.group.set_parent(ParentChannel(str(tmp_path / "nobody")))
    running = BackgroundRun(lambda: made.group.run(install_signals=False))
    with pytest.raises(TryAgainError, match="cannot send the group message"):
        running.wait()
    assert [False, False] == [loop.running for loop in made.loops]
    assert ["failed"] == [event.reason for event in made.observer.of(GroupStopping)]


def test_if_there_is_no_thread_for_a_loop_the_others_are_stopped(
    monkeypatch: pytest.MonkeyPatch, crashes: Path
) -> None:
    made = stub_group(*stubs(3))
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "loop-stub-1":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    running = BackgroundRun(lambda: made.group.run(install_signals=False))
    with pytest.raises(RuntimeError, match="new thread"):
        running.wait()
    assert [False] * 3 == [loop.running for loop in made.loops]
    assert [False, True] == [
        made.loops[0].shutdown_timeouts.empty(),
        made.loops[2].shutdown_timeouts.empty(),
    ]
    assert [] == list(crashes.iterdir())


# --- under one deadline ---


def test_three_slow_loops_are_told_together_and_stop_side_by_side() -> None:
    """Each ends only when all three have been told."""
    together = threading.Barrier(3)

    class Slow(StubLoop):
        def shutdown(self, *, timeout: float = 30.0) -> bool:
            together.wait(TIMEOUT)
            return super().shutdown(timeout=timeout)

    with running_group((made := stub_group(Slow("a"), Slow("b"), Slow("c"))).group):
        made.wait_idle()
        assert made.group.shutdown()
    assert not together.broken


def test_each_loops_limit_is_its_own_or_the_groups() -> None:
    loops = [
        StubLoop("a"),
        StubLoop("b", shutdown_timeout=5.0),
        StubLoop("c", shutdown_timeout=90.0),
    ]
    with running_group((made := stub_group(*loops)).group):
        made.wait_idle()
        made.group.shutdown()
    assert [30.0, 5.0, 90.0] == [loop.shutdown_timeouts.get(timeout=0) for loop in loops]


@pytest.mark.parametrize(
    ("timeout", "expected"),
    [(10.0, [10.0, 5.0, 10.0]), (100.0, [30.0, 5.0, 90.0]), (0.0, [0.0, 0.0, 0.0])],
)
def test_an_explicit_timeout_caps_them_all(timeout: float, expected: list[float]) -> None:
    loops = [
        StubLoop("a"),
        StubLoop("b", shutdown_timeout=5.0),
        StubLoop("c", shutdown_timeout=90.0),
    ]
    made = stub_group(*loops)
    running = BackgroundRun(lambda: made.group.run(install_signals=False))
    made.wait_idle()
    made.group.shutdown(timeout=timeout)
    running.wait()
    assert expected == [loop.shutdown_timeouts.get(timeout=0) for loop in loops]


def test_limits_are_all_counted_from_the_same_start() -> None:
    """While the first is waited for, the time of the others runs."""
    loops = [StubLoop("a"), StubLoop("b", shutdown_timeout=5.0)]
    made = stub_group(*loops)
    for loop in loops:
        loop.ignores_shutdown = True
    running = BackgroundRun(lambda: made.group.run(install_signals=False))
    made.wait_idle()
    stopping = BackgroundRun(made.group.shutdown)
    made.clock.await_parked(GROUP_IDLE_THREADS + 1)
    made.clock.advance(29.0)
    loops[0].may_end.set()
    with pytest.raises(ShutdownTimeoutError, match="b did not stop in time"):
        running.wait()
    stopping.wait()
    loops[1].may_end.set()


def test_past_its_limit_a_loop_is_left_behind_with_its_stacks_on_record(crashes: Path) -> None:
    made = stub_group(*stubs(2))
    made.loops[1].ignores_shutdown = True
    running = BackgroundRun(lambda: made.group.run(install_signals=False))
    made.wait_idle()
    answers = queue.SimpleQueue[bool]()
    stopping = BackgroundRun(lambda: answers.put(made.group.shutdown()))
    made.clock.await_parked(GROUP_IDLE_THREADS + 1)
    made.clock.advance(30.0)
    assert not running.is_finished
    made.clock.advance(0.25, parked=0)
    with pytest.raises(
        ShutdownTimeoutError, match=r"stub-1 did not stop in time; see .*raise shutdown_timeout"
    ):
        running.wait()
    stopping.wait()
    assert (False, ("stub-1",)) == (answers.get(), made.observer.wait_for(GroupStopped).overdue)
    [file] = crashes.iterdir()
    assert ["stub-1 did not stop in time", "in run"] == [
        word for word in ("stub-1 did not stop in time", "in run") if word in file.read_text()
    ]
    assert made.loops[1].running
    made.loops[1].may_end.set()


def test_a_loop_that_stops_a_moment_after_its_limit_did_not_stop_in_time() -> None:
    """It is not left behind: the run returns, and only the answer is False."""
    made, answers = stub_group(*stubs(2)), queue.SimpleQueue[bool]()
    made.loops[1].ignores_shutdown = True
    running = BackgroundRun(lambda: made.group.run(install_signals=False))
    made.wait_idle()
    stopping = BackgroundRun(lambda: answers.put(made.group.shutdown()))
    made.clock.await_parked(GROUP_IDLE_THREADS + 1)
    made.clock.advance(30.125)
    made.loops[1].may_end.set()
    running.wait()
    stopping.wait()
    assert (False, ()) == (answers.get(), made.observer.wait_for(GroupStopped).overdue)


def test_whether_all_stopped_is_said_of_this_run_and_not_of_the_last(tmp_path: Path) -> None:
    """The second run fails, so nobody counts its loops; they have stopped all the same."""
    made, answers = stub_group(StubLoop()), queue.SimpleQueue[bool]()
    [loop] = made.loops
    loop.ignores_shutdown = True
    running = BackgroundRun(lambda: made.group.run(install_signals=False))
    made.wait_idle()
    stopping = BackgroundRun(lambda: answers.put(made.group.shutdown()))
    made.clock.await_parked(GROUP_IDLE_THREADS + 1)
    made.clock.advance(30.25, parked=0)
    with pytest.raises(ShutdownTimeoutError):
        running.wait()
    stopping.wait()
    loop.may_end.set()
    wait_until(lambda: not loop.running)
    loop.may_end.clear()
    loop.shutdown_timeouts.get(timeout=0)
    made.group.set_parent(ParentChannel(str(tmp_path / "nobody")))
    running = BackgroundRun(lambda: made.group.run(install_signals=False))
    loop.shutdown_timeouts.get(timeout=TIMEOUT)
    stopping = BackgroundRun(lambda: answers.put(made.group.shutdown()))
    wait_until(
        lambda: (
            made.group._run_guard.current is not None and made.group._run_guard.current.is_stopping
        )
    )
    loop.may_end.set()
    with pytest.raises(TryAgainError, match="cannot send the group message"):
        running.wait()
    stopping.wait()
    assert [False, True] == [answers.get(), answers.get()]


def test_a_crash_and_a_loop_that_does_not_stop_are_both_told() -> None:
    made = stub_group(*stubs(2))
    made.loops[0].ignores_shutdown = True
    running = BackgroundRun(lambda: made.group.run(install_signals=False))
    made.wait_idle()
    made.loops[1].error = ValueError("broken")
    made.loops[1].may_end.set()
    made.loops[0].shutdown_timeouts.get(timeout=TIMEOUT)
    made.clock.await_parked(GROUP_IDLE_THREADS)
    made.clock.advance(30.25, parked=0)
    with pytest.raises(ShutdownTimeoutError, match="stub-0 did not stop") as raised:
        running.wait()
    assert "broken" == str(raised.value.__cause__)
    made.loops[0].may_end.set()


def test_a_loop_that_is_told_just_before_its_run_begins_is_told_again() -> None:
    """It has run before, so what it was told in between was nothing to it."""
    told = threading.Event()

    class Late(StubLoop):
        """A loop whose second run begins only when it has been told to stop."""

        def run(self, **settings: Any) -> None:
            assert not self.run_settings or told.wait(TIMEOUT)
            super().run(**settings)

        def shutdown(self, *, timeout: float = 30.0) -> bool:
            told.set()
            return self.running is False or super().shutdown(timeout=timeout)

    loop = Late()
    group = LoopGroup([loop], events=Events())
    with running_group(group):
        assert loop.started.wait(TIMEOUT)
    loop.started.clear()
    loop.may_end.clear()
    told.clear()
    running = BackgroundRun(lambda: group.run(install_signals=False))
    wait_until(
        lambda: (
            group.health is not None and all(member.has_started for member in group.health.runners)
        )
    )
    assert group.shutdown()
    running.wait()
