from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_rig import TIMEOUT
from longwatch.core.events.base import Events
from longwatch.host import watchdog
from longwatch.host.crash_file import CRASH_DIR_VARIABLE
from longwatch.mailbox import Mailbox, open_mailbox
from longwatch.mailbox.memory import MemoryStore
from longwatch.runtime import LoopGroup
from longwatch.store.sqlite.database import SqliteDatabase
from longwatch.testing import FakeClock
from loop_rig import (
    GROUP_IDLE_THREADS,
    LOOP_IDLE_THREADS,
    GatedLoop,
    StubGroup,
    StubLoop,
    pass_time,
    running_group,
    stub_group,
    wait_until,
)
from snippet import run_snippet as program


@pytest.fixture(autouse=True)
def crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CRASH_DIR_VARIABLE, str(tmp_path / "crashes"))
    return tmp_path / "crashes"


@pytest.fixture
def mailbox() -> Mailbox[Any]:
    return open_mailbox(MemoryStore(), "jobs")


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Each time the process would have been ended."""
    ended: list[None] = []
    monkeypatch.setattr(watchdog, "kill_own_process", lambda: ended.append(None))
    return ended


def watched(*loops: StubLoop, **settings: Any) -> StubGroup:
    return stub_group(*loops, **{"watchdog_threshold": 60.0, "watchdog_interval": 10.0, **settings})


def test_a_loop_that_gives_no_beat_for_the_threshold_ends_the_process(exits: list[None]) -> None:
    clock = FakeClock()
    made = watched(StubLoop("mail", clock=clock), clock=clock)
    with running_group(made.group):
        made.wait_idle()
        clock.advance(60.0)
        assert [] == exits
        clock.advance(10.0)
        assert [None] == exits


def test_time_before_its_run_does_not_count(exits: list[None]) -> None:
    clock = FakeClock()
    loop = StubLoop("mail", clock=clock)
    clock.advance(10_000.0)
    made = watched(loop, clock=clock)
    with running_group(made.group):
        made.wait_idle()
        assert made.group.health is not None
        assert [("mail", 0.0)] == made.group.health.beat_ages()
        clock.advance(50.0)
    assert [] == exits


def test_a_loop_that_has_finished_is_not_watched_any_more(exits: list[None]) -> None:
    clock = FakeClock()
    loops = [StubLoop("mail", clock=clock), StubLoop("pages", clock=clock)]
    made = watched(*loops, clock=clock)
    with running_group(made.group):
        made.wait_idle()
        loops[0].may_end.set()
        wait_until(
            lambda: made.group.health is not None and made.group.health.runners[0].is_finished
        )
        clock.await_parked(GROUP_IDLE_THREADS)
        for _ in range(20):
            loops[1].heartbeat.beat()
            clock.advance(10.0)
    assert [] == exits


def test_without_a_threshold_nobody_watches(exits: list[None]) -> None:
    clock = FakeClock()
    made = stub_group(StubLoop("mail", clock=clock), watchdog_threshold=None, clock=clock)
    with running_group(made.group):
        made.wait_idle(parked=GROUP_IDLE_THREADS - 1)
        clock.advance(2000.0)
    assert [] == exits


def test_a_real_loop_that_is_idle_is_never_ended(mailbox: Mailbox[Any], exits: list[None]) -> None:
    clock = FakeClock()
    loop = GatedLoop(requests=mailbox, clock=clock)
    group = LoopGroup(
        [loop], watchdog_threshold=60.0, watchdog_interval=10.0, clock=clock, events=Events()
    )
    with running_group(group):
        clock.await_parked(GROUP_IDLE_THREADS + LOOP_IDLE_THREADS)
        pass_time(clock, 300.0, loop, parked=GROUP_IDLE_THREADS + LOOP_IDLE_THREADS)
    assert [] == exits


# --- in other processes ---

PRELUDE = """
import os, queue, sys, threading
from longwatch.mailbox import open_mailbox
from longwatch.runtime import LoopGroup, MainLoop

class Loop(MainLoop):
    began = queue.SimpleQueue()
    may_end = threading.Event()

    def handle(self, request, context):
        self.began.put(request)
        self.may_end.wait()
"""


def test_a_group_that_was_built_before_a_fork_runs_in_the_child(tmp_path: Path) -> None:
    with program(
        f"""{PRELUDE}
mailbox = open_mailbox("sqlite:///{tmp_path}/m.db", "jobs")
group = LoopGroup([Loop(requests=mailbox)], health_port=0)
mailbox.send("x")
if os.fork() == 0:
    Loop.may_end.set()
    threading.Thread(target=lambda: (Loop.began.get(), group.shutdown()), daemon=True).start()
    group.run()
    print("child", mailbox.approximate_count(), flush=True)
    os._exit(0)
print("parent", os.waitstatus_to_exitcode(os.wait()[1]), group.running, mailbox.approximate_count())
"""
    ) as snippet:
        assert ["child 0", "parent 0 False 0"] == [snippet.read_line(), snippet.read_line()]
        assert (0, "") == snippet.wait()


def test_threads_that_were_left_behind_do_not_keep_the_process_at_its_end(tmp_path: Path) -> None:
    with program(
        f"""{PRELUDE}
mailbox = open_mailbox("sqlite:///{tmp_path}/m.db", "jobs")
group = LoopGroup([Loop(requests=mailbox)], shutdown_timeout=0)
mailbox.send("x")
threading.Thread(target=lambda: (Loop.began.get(), group.shutdown()), daemon=True).start()
try:
    group.run(install_signals=False)
except Exception as error:
    print(type(error).__name__)
"""
    ) as snippet:
        assert "ShutdownTimeoutError" == snippet.read_line()
        assert 0 == snippet.wait()[0]
    with SqliteDatabase(tmp_path / "m.db") as database:
        [message] = open_mailbox(database, "jobs").receive(wait_time_seconds=TIMEOUT)
        assert (2, 0, 0) == (message.delivery_count, message.failures, message._record.crashes)


def test_an_interrupt_that_nobody_caught_stops_the_loops_too(tmp_path: Path) -> None:
    with program(
        f"""{PRELUDE}
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
mailbox = open_mailbox("sqlite:///{tmp_path}/m.db", "jobs")
loop = Loop(requests=mailbox)
mailbox.send("x")
threading.Thread(
    target=lambda: (Loop.began.get(), os.kill(os.getpid(), signal.SIGINT), Loop.may_end.set()),
    daemon=True
).start()
try:
    LoopGroup([loop]).run(install_signals=False)
except KeyboardInterrupt:
    print(loop.running, mailbox.approximate_count())
"""
    ) as snippet:
        assert "False 0" == snippet.read_line()
        assert (0, "") == snippet.wait()
