from __future__ import annotations

import http.client
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from engine_rig import TIMEOUT
from leaks import no_leaks
from longwatch.core.events.base import Events
from longwatch.core.events.runtime import GroupStarted, LoopDegraded, LoopRecovered
from longwatch.core.health import HealthReason
from longwatch.errors import StoreUnreachableError, UsageError
from longwatch.host import watchdog
from longwatch.host.crash_file import CRASH_DIR_VARIABLE
from longwatch.host.watchdog import Watchdog
from longwatch.mailbox import Mailbox, open_mailbox
from longwatch.mailbox.memory import MemoryStore
from longwatch.observe import Metrics
from longwatch.runtime import LoopGroup
from longwatch.testing import FakeClock, RecordingObserver
from loop_rig import GROUP_IDLE_THREADS as RESTING
from loop_rig import BackgroundRun, GatedLoop, StubLoop, running_group, wait_until


@pytest.fixture(autouse=True)
def crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CRASH_DIR_VARIABLE, str(tmp_path / "crashes"))
    return tmp_path / "crashes"


@pytest.fixture(autouse=True)
def exits(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Each time the process would have been ended."""
    ended: list[None] = []
    monkeypatch.setattr(watchdog, "kill_own_process", lambda: ended.append(None))
    return ended


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def observer() -> RecordingObserver:
    return RecordingObserver()


@pytest.fixture
def mailbox() -> Mailbox[Any]:
    return open_mailbox(MemoryStore(), "jobs")


def grouped(
    *loops: Any, clock: FakeClock, observer: RecordingObserver | None = None, **settings: Any
) -> LoopGroup:
    watching = {
        "watchdog_threshold": 100.0,
        "watchdog_interval": 10.0,
        "health_host": "127.0.0.1",
        "health_port": 0,
    }
    return LoopGroup(
        loops,
        clock=clock,
        events=Events(observer or RecordingObserver()),
        **{**watching, **settings},
    )


def ask(group: LoopGroup, path: str) -> tuple[int, str]:
    assert group.health_address is not None
    with closing(http.client.HTTPConnection(*group.health_address, timeout=TIMEOUT)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode().removesuffix("\n")


def reasons(group: LoopGroup, path: str = "/health/ready") -> dict[str, str]:
    """What each check says."""
    return {
        check["name"]: check["reason"]
        for check in json.loads(ask(group, f"{path}?verbose")[1])["checks"]
    }


def begun(*loops: StubLoop) -> None:
    for loop in loops:
        assert loop.started.wait(TIMEOUT)


# --- the port ---


def test_a_port_that_is_taken_is_an_error_before_any_loop_runs_and_before_anybody_watches(
    monkeypatch: pytest.MonkeyPatch, clock: FakeClock, crashes: Path
) -> None:
    watching: list[Watchdog] = []
    monkeypatch.setattr(Watchdog, "_start", watching.append)
    loop = StubLoop()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        group = grouped(loop, clock=clock, health_port=taken.getsockname()[1])
        with (
            no_leaks(),
            pytest.raises(UsageError, match=r"the health port \d+ on 127.0.0.1 is in use"),
        ):
            group.run(install_signals=False)
    assert (False, [], False) == (loop.started.is_set(), watching, group.running)
    assert [] == list(crashes.iterdir())


def test_the_same_group_runs_once_the_port_is_free(clock: FakeClock) -> None:
    loop = StubLoop()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        group = grouped(loop, clock=clock, health_port=taken.getsockname()[1])
        with pytest.raises(UsageError, match="in use"):
            group.run(install_signals=False)
    with running_group(group):
        begun(loop)
        assert 200 == ask(group, "/health/live")[0]


def test_the_port_is_told_and_let_go_of_at_the_end(
    clock: FakeClock, observer: RecordingObserver
) -> None:
    loop = StubLoop()
    group = grouped(loop, clock=clock, observer=observer)
    with running_group(group):
        begun(loop)
        address = group.health_address
        assert address is not None
        assert f"http://127.0.0.1:{address[1]}" == observer.wait_for(GroupStarted).health_address
    assert group.health_address is None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=TIMEOUT)


def test_without_a_port_nobody_listens(clock: FakeClock, observer: RecordingObserver) -> None:
    loop = StubLoop()
    group = grouped(loop, clock=clock, observer=observer, health_port=None)
    with running_group(group):
        assert "" == observer.wait_for(GroupStarted).health_address
        assert group.health_address is None


# --- ready ---


def test_it_is_ready_when_every_loop_runs_and_its_store_is_there(mailbox: Mailbox[Any]) -> None:
    loops = [GatedLoop(requests=mailbox, name="mail"), GatedLoop(requests=mailbox, name="pages")]
    group = LoopGroup(loops, health_host="127.0.0.1", health_port=0, events=Events())
    with running_group(group):
        wait_until(
            lambda: group.health_address is not None and ask(group, "/health/ready")[0] == 200
        )
        assert {
            "draining": "ok",
            "loop mail": "ok",
            "loop pages": "ok",
            "store 1": "ok",
        } == reasons(group)
        assert [(200, '{"status": "healthy"}'), (200, "Ready")] == [
            ask(group, "/health/ready"),
            ask(group, "/readyz"),
        ]


def test_the_moment_draining_starts_it_is_not_ready_and_it_lives_on(clock: FakeClock) -> None:
    loop = StubLoop("mail")
    group = grouped(loop, clock=clock)
    with running_group(group):
        begun(loop)
        assert 200 == ask(group, "/health/ready")[0]
        group.drain()
        assert (503, '{"status": "unhealthy"}') == ask(group, "/health/ready")
        assert (503, "draining") == ask(group, "/readyz")
        assert 200 == ask(group, "/health/live")[0]
        group.resume()
        assert 200 == ask(group, "/health/ready")[0]


def test_while_it_stops_it_is_not_ready_and_still_answers(clock: FakeClock) -> None:
    loop = StubLoop("mail")
    loop.ignores_shutdown = True
    group = grouped(loop, clock=clock)
    with running_group(group):
        begun(loop)
        stopping = BackgroundRun(group.shutdown)
        loop.shutdown_timeouts.get(timeout=TIMEOUT)
        assert ("draining", 200) == (reasons(group)["draining"], ask(group, "/health/live")[0])
        loop.may_end.set()
        stopping.wait()


def test_a_loop_that_has_finished_makes_it_not_ready_and_nothing_else(
    clock: FakeClock, exits: list[None]
) -> None:
    loops = [StubLoop("mail"), StubLoop("pages")]
    group = grouped(*loops, clock=clock)
    with running_group(group):
        begun(*loops)
        loops[0].may_end.set()
        wait_until(lambda: reasons(group)["loop mail"] == HealthReason.NOT_RUNNING)
        assert {"loop mail": "not_running", "loop pages": "ok", "draining": "ok"} == reasons(group)
        assert 200 == ask(group, "/health/live")[0]


def test_a_loop_that_has_not_begun_is_not_started(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_start, start = threading.Event(), threading.Thread.start

    def held_up(thread: threading.Thread) -> None:
        if thread.name == "loop-pages":
            assert may_start.wait(TIMEOUT)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", held_up)
    loops = [StubLoop("mail"), StubLoop("pages")]
    group = grouped(*loops, clock=clock)
    with running_group(group):
        begun(loops[0])
        assert ("ok", "not_started") == (reasons(group)["loop mail"], reasons(group)["loop pages"])
        assert [503, 503, 200] == [
            ask(group, path)[0] for path in ("/startupz", "/health/ready", "/health/live")
        ]
        may_start.set()
        begun(loops[1])
        wait_until(lambda: ask(group, "/startupz")[0] == 200)


def test_a_store_that_cannot_be_reached_makes_it_not_ready(
    mailbox: Mailbox[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = GatedLoop(requests=mailbox, name="mail")
    group = LoopGroup([loop], health_host="127.0.0.1", health_port=0, events=Events())

    def down() -> None:
        raise StoreUnreachableError("the password is 1234")

    with running_group(group):
        wait_until(
            lambda: group.health_address is not None and ask(group, "/health/ready")[0] == 200
        )
        monkeypatch.setattr(mailbox.backend, "next_due", down)
        assert (503, "store 1: unreachable") == ask(group, "/readyz")
        assert 200 == ask(group, "/health/live")[0]


def test_loops_of_one_store_ask_it_once_and_loops_of_two_ask_both(tmp_path: Path) -> None:
    one, two = MemoryStore(), MemoryStore()
    loops = [
        GatedLoop(requests=open_mailbox(store, name), name=name)
        for store, name in ((one, "a"), (one, "b"), (two, "c"))
    ]
    group = LoopGroup(loops, health_host="127.0.0.1", health_port=0, events=Events())
    with running_group(group):
        wait_until(lambda: group.health_address is not None)
        assert {"store 1", "store 2"} == {
            name for name in reasons(group) if name.startswith("store")
        }


# --- stale, and what comes of it ---


def test_past_the_readiness_threshold_a_loop_is_degraded_before_any_kill(
    clock: FakeClock, observer: RecordingObserver, exits: list[None]
) -> None:
    loop = StubLoop("mail", clock=clock)
    group = grouped(loop, clock=clock, observer=observer)
    with running_group(group):
        begun(loop)
        clock.await_parked(RESTING)
        clock.advance(90.0)
        assert (200, []) == (ask(group, "/health/ready")[0], observer.of(LoopDegraded))
        clock.advance(1.0)
        assert (503, "loop mail: stale") == ask(group, "/readyz")
        assert [("mail", 91.0, 90.0)] == [
            (each.loop, each.elapsed, each.threshold) for each in observer.of(LoopDegraded)
        ]
        assert ([], 200) == (exits, ask(group, "/health/live")[0])
        loop.heartbeat.beat()
        clock.advance(1.0)
        assert (200, ["mail"]) == (
            ask(group, "/health/ready")[0],
            [each.loop for each in observer.of(LoopRecovered)],
        )


@pytest.mark.parametrize(
    ("settings", "stale_after"),
    [
        ({}, 90.0),
        ({"readiness_threshold": 40.0}, 40.0),
        ({"watchdog_threshold": None, "readiness_threshold": 40.0}, 40.0),
        ({"watchdog_threshold": None}, None),
    ],
)
def test_the_readiness_threshold_is_nine_tenths_of_the_watchdogs_unless_another_was_given(
    clock: FakeClock, settings: dict[str, Any], stale_after: float | None
) -> None:
    loop = StubLoop("mail", clock=clock)
    group = grouped(loop, clock=clock, **settings)
    with running_group(group):
        begun(loop)
        clock.await_parked(RESTING - ("watchdog_threshold" in settings))
        clock.advance(stale_after or 10_000.0)
        assert "ok" == reasons(group)["loop mail"]
        clock.advance(0.5)
        assert ("ok" if stale_after is None else "stale") == reasons(group)["loop mail"]


def test_it_is_not_even_live_once_the_watchdog_itself_must_have_failed(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watchdog, "_round", lambda _: None)
    loop = StubLoop("mail", clock=clock)
    group = grouped(loop, clock=clock)
    with running_group(group):
        begun(loop)
        clock.await_parked(RESTING)
        clock.advance(120.0)
        assert 200 == ask(group, "/health/live")[0]
        clock.advance(0.5)
        assert (503, {"watchdog": "stale"}) == (
            ask(group, "/health/live")[0],
            reasons(group, "/health/live"),
        )


def test_a_stuck_handler_cannot_hide_behind_a_busy_one(
    mailbox: Mailbox[Any], clock: FakeClock
) -> None:
    loop = GatedLoop(requests=mailbox, name="mail", concurrency=2, clock=clock)
    group = grouped(loop, clock=clock, readiness_threshold=40.0)
    mailbox.send_many(["stuck", "busy"])
    with running_group(group):
        contexts = {
            each.request: each.context for each in (loop.next_started(), loop.next_started())
        }
        for _ in range(5):
            clock.await_parked(RESTING + 4)
            clock.advance(10.0)
            contexts["busy"].beat()
        assert "stale" == reasons(group)["loop mail"]
        contexts["stuck"].beat()
        assert "ok" == reasons(group)["loop mail"]


# --- metrics ---


def test_metrics_say_how_the_loops_are_and_what_they_have_done(mailbox: Mailbox[Any]) -> None:
    loop = GatedLoop(requests=mailbox, name="mail")
    group = LoopGroup(
        [loop], health_host="127.0.0.1", health_port=0, metrics=Metrics(), events=Events()
    )
    mailbox.send_many(["a", "b"])
    with running_group(group):
        loop.next_started()
        loop.open("a")
        loop.next_started()
        text = ask(group, "/metrics")[1]
    for line in (
        'longwatch_loop_running{loop="mail"} 1.0',
        'longwatch_mailbox_acked_total{loop="mail"} 1.0',
        'longwatch_mailbox_leased{mailbox="jobs"} 1.0',
        "longwatch_health_ready 1.0",
    ):
        assert line in text.splitlines()


# --- sd_notify ---


class Listener:
    """What systemd, or a supervisor, hears."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(TIMEOUT)

    def next(self) -> list[str]:
        return self._socket.recv(4096).decode().splitlines()

    def waiting(self) -> list[list[str]]:
        """What was said and not read yet; the system keeps ten of them."""
        found = []
        self._socket.setblocking(False)
        try:
            while True:
                found.append(self.next())
        except BlockingIOError:
            self._socket.settimeout(TIMEOUT)
            return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "9000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    listener = Listener(tmp_path / "notify")
    yield listener
    listener.close()


BEAT = ["WATCHDOG=1"]


def test_whoever_supervises_it_is_told_that_it_is_ready_and_that_it_stops(
    systemd: Listener, clock: FakeClock
) -> None:
    loops = [StubLoop("mail"), StubLoop("pages")]
    group = grouped(*loops, clock=clock, health_port=None)
    with running_group(group):
        assert ["READY=1", "STATUS=2 loops"] in (systemd.next(), systemd.next())
        begun(*loops)
        assert ["STOPPING=1"] not in systemd.waiting()
        group.shutdown()
    assert [["STOPPING=1"]] == [words for words in systemd.waiting() if words != BEAT]


def test_beats_are_passed_on_only_while_every_loop_beats(
    systemd: Listener, clock: FakeClock, exits: list[None]
) -> None:
    loops = [StubLoop("mail", clock=clock), StubLoop("pages", clock=clock)]
    group = grouped(*loops, clock=clock, health_port=None)
    with running_group(group):
        begun(*loops)
        clock.await_parked(RESTING)
        systemd.waiting()
        clock.advance(5.0)
        assert [BEAT] * 5 == systemd.waiting()
        clock.advance(85.0)
        loops[0].heartbeat.beat()
        systemd.waiting()
        clock.advance(5.0)
        assert [] == systemd.waiting()
        loops[1].heartbeat.beat()
        clock.advance(3.0)
        assert [BEAT] * 3 == systemd.waiting()
    assert [] == exits


def test_without_somebody_who_waits_for_beats_none_are_sent(
    systemd: Listener, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WATCHDOG_USEC")
    loop = StubLoop("mail")
    group = grouped(loop, clock=clock, health_port=None)
    with running_group(group):
        begun(loop)
        clock.await_parked(RESTING)
        clock.advance(50.0)
    assert [["READY=1", "STATUS=1 loop"], ["STOPPING=1"]] == systemd.waiting()


def test_a_stall_is_told_before_the_end(
    systemd: Listener, clock: FakeClock, exits: list[None]
) -> None:
    loop = StubLoop("mail", clock=clock)
    group = grouped(loop, clock=clock, health_port=None)
    with running_group(group):
        begun(loop)
        clock.await_parked(RESTING)
        clock.advance(109.0)
        systemd.waiting()
        clock.advance(1.0)
        assert [None] == exits
        assert ["WATCHDOG=trigger", "STATUS=mail stalled for 110.0 s"] in systemd.waiting()
