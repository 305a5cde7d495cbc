from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from guardian_fixture import PRELUDE, TIMEOUT, GuardianFixture, pids_with_token, running_guardian
from longwatch.core.clock import Clock, SystemClock
from longwatch.host.loop import EventLoopThread
from longwatch.host.process import Child, ProcessSpec
from longwatch.supervisor import probers
from longwatch.supervisor.notify_socket import Notice, NotifySocket
from longwatch.supervisor.probes import ExecProbe, HeartbeatProbe, Probe, TcpProbe
from longwatch.supervisor.process_target import ProcessSpawner
from longwatch.testing import FakeClock
from polling import eventually
from probe_rig import ProbeRig

ENV = {"PATH": os.defpath}


class LateSpawner:
    """One whose children run before it says so."""

    def __init__(self, guardian: ProcessSpawner) -> None:
        self._confirmed = asyncio.Event()
        self._guardian = guardian

    async def confirm(self) -> None:
        self._confirmed.set()

    async def spawn(self, spec: ProcessSpec) -> Child:
        child = await self._guardian.spawn(spec)
        try:
            await self._confirmed.wait()
        except asyncio.CancelledError:
            child.kill()
            raise
        return child


def checker(
    probe: Probe, clock: Clock, *, process: ProcessSpec | None = None, **more: Any
) -> ProbeRig:
    return ProbeRig(probe, clock, process=process or ProcessSpec(argv=["-"], env=ENV), **more)


class WatchRun:
    """A watch under a fake clock, and what it has heard."""

    def __init__(self, loop: EventLoopThread, asking: ProbeRig, clock: FakeClock) -> None:
        self.checker = asking
        self.results: list[tuple[str | None, int]] = []
        self._loop = loop
        self._clock = clock
        self.ending = loop.spawn(asking.watch(lambda *answer: self.results.append(answer)))
        self.run_loop()

    def after(self, seconds: float, *, parked: int | None = None) -> list[tuple[str | None, int]]:
        """What is heard while so much time passes."""
        before = len(self.results)
        self._clock.advance(seconds, parked=self._clock.parked if parked is None else parked)
        self.run_loop()
        return self.results[before:]

    def run_on_loop(self, act: Callable[[], object]) -> None:
        async def acted() -> None:
            act()

        self._loop.call(acted(), timeout=TIMEOUT)

    def run_loop(self) -> None:
        """Let what has been begun happen."""

        async def turn() -> None:
            for _ in range(30):
                await asyncio.sleep(0)

        self._loop.call(turn(), timeout=TIMEOUT)

    def beat(self) -> None:
        self.run_on_loop(self.checker.probe_watch.beat)

    def stop_reason(self, seconds: float) -> str:
        """Why it has to go, when so much time has passed."""
        self._clock.advance(seconds, parked=0)
        return self.ending.result(TIMEOUT)


@pytest.fixture
def loop() -> Iterator[EventLoopThread]:
    with EventLoopThread() as running:
        yield running


class TestTcp:
    def ask(self, loop: EventLoopThread, port: int) -> str | None:
        return loop.call(
            checker(TcpProbe(port=port), SystemClock(), timeout=TIMEOUT).check(),
            timeout=2 * TIMEOUT,
        )

    def test_a_port_that_accepts_is_healthy_and_the_connection_is_hung_up(
        self, loop: EventLoopThread
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            assert None is self.ask(loop, server.getsockname()[1])
            accepted, _ = server.accept()
            with accepted:
                assert b"" == accepted.recv(1)

    def test_a_port_where_nobody_listens_is_a_failure(self, loop: EventLoopThread) -> None:
        with (
            socket.socket() as taken
        ):  # bound, so that nobody else gets the port, and not listening
            taken.bind(("127.0.0.1", 0))
            assert "no connection: Connection refused" == self.ask(loop, taken.getsockname()[1])

    def test_a_server_on_another_address_is_a_failure(self, loop: EventLoopThread) -> None:
        with socket.create_server(("127.0.0.2", 0)) as server:
            assert "no connection: Connection refused" == self.ask(loop, server.getsockname()[1])

    def test_a_connection_to_oneself_is_a_failure(
        self, loop: EventLoopThread, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ours = socket.socket()
        ours.bind(("127.0.0.1", 0))
        port = ours.getsockname()[1]
        made = SimpleNamespace(socket=lambda _: ours, AF_INET=socket.AF_INET)
        monkeypatch.setattr(probers, "socket", made)
        assert "no connection: no process listens" == self.ask(loop, port)
        assert -1 == ours.fileno()

    def test_a_server_whose_queue_is_full_is_a_failure_when_the_time_is_over(
        self, loop: EventLoopThread
    ) -> None:
        clock = FakeClock()
        fillers = [socket.socket() for _ in range(4)]
        with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
            for filler in fillers:
                filler.setblocking(False)
                filler.connect_ex(server.getsockname())
            asking = loop.spawn(
                checker(TcpProbe(port=server.getsockname()[1]), clock, timeout=5.0).check()
            )
            clock.await_parked(1)
            clock.advance(4.9)
            assert not asking.done()
            clock.advance(0.1, parked=0)
            assert "no connection in 5 s" == asking.result(TIMEOUT)
            for filler in fillers:
                filler.close()


class ExecChecks:
    """Exec probes under a guardian; each command bears a token, so that what is left of it can
    be found.
    """

    def __init__(self, opened: GuardianFixture) -> None:
        self.guardian = opened
        self.token = f"token-{secrets.token_hex(8)}"
        opened.tokens.append(self.token)

    def checker(
        self, code: str, *, clock: Clock | None = None, timeout: float = TIMEOUT, **more: Any
    ) -> ProbeRig:
        command = (sys.executable, "-I", "-S", "-c", PRELUDE + code, self.token)
        return self.of(command, clock=clock, timeout=timeout, **more)

    def of(self, command: tuple[str, ...], *, clock: Clock | None = None, **more: Any) -> ProbeRig:
        return checker(
            ExecProbe(command=command),
            clock or SystemClock(),
            **{"guardian": self.guardian.guardian, **more},
        )

    def ask(self, asking: ProbeRig) -> str | None:
        return self.guardian.loop.call(asking.check(), timeout=2 * TIMEOUT)

    def begin(self, asking: ProbeRig) -> Future[str | None]:
        return self.guardian.loop.spawn(asking.check())

    def running(self) -> list[int]:
        return pids_with_token(self.token)


@pytest.fixture
def commands() -> Iterator[ExecChecks]:
    with running_guardian(cgroups=False) as opened:
        yield ExecChecks(opened)


class TestExec:
    @pytest.mark.parametrize(
        ("code", "reason"),
        [
            ("pass", None),
            ("say('all is well')", None),
            ("sys.exit(3)", "exit 3"),
            ("say('first'); say('the disk is full'); sys.exit(1)", "exit 1: the disk is full"),
            (
                "say('said'); os.write(2, b'complained\\n \\n\\n'); sys.exit(1)",
                "exit 1: complained",
            ),
            ("os.write(1, b'no newline'); sys.exit(1)", "exit 1: no newline"),
            ("say('bye'); os.kill(os.getpid(), 9)", "SIGKILL: bye"),
            ("os.kill(os.getpid(), 15)", "SIGTERM"),
            ("say('red \\x1b[31m'); sys.exit(1)", r"exit 1: red \x1b[31m"),
            ("os.write(1, b'\\xff\\n'); sys.exit(1)", "exit 1: �"),
            ("say('password=hunter2 refused'); sys.exit(1)", "exit 1: password=*** refused"),
            (
                "say('x' * 190 + ' redis://bob:hunter2@cache/'); sys.exit(1)",
                "exit 1: " + "x" * 190 + " redis://…",
            ),
            ("say('x' * 500_000); sys.exit(1)", "exit 1: " + "x" * 199 + "…"),
        ],
    )
    def test_exit_0_is_healthy_and_anything_else_a_failure_with_its_last_line(
        self, commands: ExecChecks, code: str, reason: str | None
    ) -> None:
        assert reason == commands.ask(commands.checker(code))

    def test_a_command_that_cannot_be_started_is_a_failure_that_says_why(
        self, commands: ExecChecks
    ) -> None:
        assert "cannot execute '/no/such/probe': No such file or directory" == commands.ask(
            commands.of(("/no/such/probe",))
        )

    def test_the_last_line_is_that_of_the_last_question(
        self, commands: ExecChecks, tmp_path: Path
    ) -> None:
        mark = str(tmp_path / "asked")
        asking = commands.checker(
            f"if os.path.exists({mark!r}): sys.exit(1)\nopen({mark!r}, 'w').close(); "
            f"say('once'); sys.exit(1)"
        )
        assert ["exit 1: once", "exit 1"] == [commands.ask(asking), commands.ask(asking)]

    def test_a_guardian_that_is_gone_is_a_failure_that_says_so(self, commands: ExecChecks) -> None:
        commands.guardian.guardian.stop()
        told = commands.ask(commands.checker("pass"))
        assert told is not None
        assert told.startswith("the guardian is not running")

    def test_it_runs_in_the_programs_directory_and_environment_but_cannot_notify(
        self, commands: ExecChecks, tmp_path: Path
    ) -> None:
        env = {
            **ENV,
            "COLOUR": "blue",
            "NOTIFY_SOCKET": "/run/x",
            "WATCHDOG_USEC": "5",
            "WATCHDOG_PID": "1",
        }
        theirs, ours = os.pipe()
        os.write(ours, b"for the program")
        process = ProcessSpec(
            argv=["-"], env=env, cwd=str(tmp_path), stdin=theirs, stdout=1, stderr=2
        )
        code = """
theirs = sorted(set(os.environ) & {"COLOUR", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
say(os.getcwd() == os.path.realpath(sys.argv[-1]), os.environ["COLOUR"], *theirs, os.read(0, 10))
sys.exit(1)
"""
        asking = commands.of(
            (sys.executable, "-I", "-S", "-c", PRELUDE + code, str(tmp_path)), process=process
        )
        assert "exit 1: True blue COLOUR b''" == commands.ask(asking)
        os.close(theirs)
        os.close(ours)

    def test_at_the_timeout_the_whole_tree_is_killed_and_gone_before_the_answer(
        self, commands: ExecChecks, tmp_path: Path
    ) -> None:
        clock, up = FakeClock(), tmp_path / "up"
        code = f"""
deaf()
say("still thinking")
orphan(lambda: (deaf(), open({str(up)!r}, "w").close(), rest()))
rest()
"""
        asking = commands.begin(commands.checker(code, clock=clock, timeout=5.0))
        assert eventually(up.exists)
        assert 2 <= len(commands.running())
        clock.advance(4.9, parked=1)
        assert not asking.done()
        clock.advance(0.1, parked=0)
        assert "not done in 5 s and killed: still thinking" == asking.result(TIMEOUT)
        assert [] == commands.running()

    def test_at_the_timeout_one_that_is_just_being_started_is_gone_before_the_answer(
        self, commands: ExecChecks
    ) -> None:
        clock, late = FakeClock(), LateSpawner(commands.guardian.guardian)
        asking = commands.begin(commands.checker("rest()", clock=clock, timeout=5.0, guardian=late))
        assert eventually(lambda: 1 == len(commands.running()))
        clock.await_parked(1)
        clock.advance(5.0, parked=0)
        assert not asking.done()
        commands.guardian.loop.call(late.confirm(), timeout=TIMEOUT)
        assert "not done in 5 s and killed" == asking.result(TIMEOUT)
        assert [] == commands.running()

    def test_a_question_that_is_cancelled_takes_its_whole_tree_along(
        self, commands: ExecChecks, tmp_path: Path
    ) -> None:
        up = tmp_path / "up"
        code = f"deaf(); orphan(lambda: (deaf(), open({str(up)!r}, 'w').close(), rest())); rest()"
        asking = commands.begin(commands.checker(code, clock=FakeClock()))
        assert eventually(up.exists)
        asking.cancel()
        assert eventually(lambda: [] == commands.running())

    def test_what_a_healthy_command_leaves_behind_is_killed(self, commands: ExecChecks) -> None:
        assert None is commands.ask(commands.checker("orphan(lambda: (deaf(), rest()))"))
        assert [] == commands.running()

    def test_a_flood_of_output_is_bounded_and_ends_at_the_timeout(
        self, commands: ExecChecks
    ) -> None:
        clock = FakeClock()
        asking = commands.begin(
            commands.checker("while True: say('flood ' * 1000)", clock=clock, timeout=5.0)
        )
        assert eventually(lambda: 1 == len(commands.running()))
        clock.await_parked(1)
        clock.advance(5.0, parked=0)
        told = asking.result(TIMEOUT)
        assert told is not None
        assert told.startswith("not done in 5 s and killed")
        assert 300 > len(told)

    def test_commands_that_hang_are_run_one_after_the_other(self, commands: ExecChecks) -> None:
        clock, loop = FakeClock(), commands.guardian.loop
        asking = commands.checker("rest()", clock=clock, timeout=5.0)
        watched = loop.spawn(asking.watch(lambda reason, failures: None))
        clock.await_parked(1)
        clock.advance(10.0, parked=1)
        for last in (False, False, True):
            assert eventually(lambda: 1 == len(commands.running()))
            clock.advance(5.0, parked=0 if last else 1)
            if not last:
                assert [] == commands.running()
                clock.advance(25.0, parked=1)
        assert watched.result(TIMEOUT).startswith(
            "3 failed health checks in a row: not done in 5 s and killed"
        )
        assert [] == commands.running()


class TestHeartbeat:
    def watched(self, loop: EventLoopThread, **policy: Any) -> WatchRun:
        clock = FakeClock()
        return WatchRun(loop, checker(HeartbeatProbe(), clock, **policy), clock)

    def test_a_beat_since_the_last_look_is_healthy_and_counts_once(
        self, loop: EventLoopThread
    ) -> None:
        watched = self.watched(loop, interval=30.0, start_grace=30.0)
        watched.beat()
        watched.beat()
        assert [(None, 0)] == watched.after(30.0)
        assert [("the last WATCHDOG=1 was 60 s ago", 1)] == watched.after(30.0)
        watched.beat()
        assert [(None, 0)] == watched.after(30.0)
        watched.ending.cancel()

    def test_one_that_never_beats_has_to_go(self, loop: EventLoopThread) -> None:
        watched = self.watched(loop, interval=30.0, start_grace=30.0, failures=2)
        assert [("no WATCHDOG=1 yet", 1)] == watched.after(30.0)
        assert "2 failed health checks in a row: no WATCHDOG=1 yet" == watched.stop_reason(30.0)

    def test_the_first_look_comes_after_an_interval_though_the_grace_is_shorter(
        self, loop: EventLoopThread
    ) -> None:
        watched = self.watched(loop, interval=30.0, start_grace=10.0, failures=1)
        assert [] == watched.after(29.9)
        assert "1 failed health check: no WATCHDOG=1 yet" == watched.stop_reason(0.1)

    def test_a_child_that_beats_on_its_socket_is_healthy_until_it_is_stopped_still(
        self, tmp_path: Path
    ) -> None:
        clock = FakeClock()
        heard: list[Notice] = []
        code = """
import socket
ours = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
signal.signal(signal.SIGUSR1, lambda *_: ours.sendto(b"WATCHDOG=1", os.environ["NOTIFY_SOCKET"]))
say("up")
rest()
"""
        with running_guardian(cgroups=False) as opened:
            watched = WatchRun(
                opened.loop, checker(HeartbeatProbe(), clock, interval=30.0, failures=2), clock
            )

            def hear(notice: Notice) -> None:
                heard.append(notice)
                watched.checker.probe_watch.beat()

            listening = NotifySocket(tmp_path / "n", hear)
            opened.run_on_loop(listening.open)
            child = opened.spawn(code, env={**ENV, **listening.environment(30.0)})
            child.out.wait_for_text("up")
            for count in (1, 2):
                child.signal(signal.SIGUSR1)
                assert eventually(lambda count=count: count == len(heard))  # type: ignore[misc]
                assert [(None, 0)] == watched.after(30.0)
            child.signal(signal.SIGSTOP)
            child.signal(signal.SIGUSR1)
            assert [("the last WATCHDOG=1 was 60 s ago", 1)] == watched.after(30.0)
            assert (
                "2 failed health checks in a row: the last WATCHDOG=1 was 90 s ago"
                == watched.stop_reason(30.0)
            )
            opened.run_on_loop(listening.close)
        assert {child.pid} == {notice.pid for notice in heard}


class TestStartup:
    """The heartbeat stands for any probe: its answers are at the test's command."""

    def watched(self, loop: EventLoopThread, **policy: Any) -> WatchRun:
        clock = FakeClock()
        whole: dict[str, Any] = {"interval": 30.0, "failures": 2, "startup": 60.0, **policy}
        return WatchRun(loop, checker(HeartbeatProbe(), clock, **whole), clock)

    def test_it_is_asked_at_once_and_often_and_failures_do_not_count(
        self, loop: EventLoopThread
    ) -> None:
        watched = self.watched(loop)
        assert [("no WATCHDOG=1 yet", 0)] == watched.results
        assert [("no WATCHDOG=1 yet", 0)] * 5 == watched.after(5.0)
        watched.ending.cancel()

    def test_once_healthy_it_is_asked_at_the_interval_and_failures_count(
        self, loop: EventLoopThread
    ) -> None:
        watched = self.watched(loop, startup_interval=2.0)
        watched.beat()
        assert [(None, 0)] == watched.after(2.0, parked=1)
        assert [] == watched.after(29.9)
        assert [("the last WATCHDOG=1 was 32 s ago", 1)] == watched.after(0.1)
        assert (
            "2 failed health checks in a row: the last WATCHDOG=1 was 62 s ago"
            == watched.stop_reason(30.0)
        )

    def test_one_that_was_not_healthy_in_its_time_has_to_go(self, loop: EventLoopThread) -> None:
        watched = self.watched(loop)
        watched.after(59.9)
        assert not watched.ending.done()
        assert "not healthy 60 s after its start: no WATCHDOG=1 yet" == watched.stop_reason(0.1)

    def test_the_time_to_start_is_not_waited_for_by_a_question_that_hangs(
        self, loop: EventLoopThread
    ) -> None:
        clock = FakeClock()
        with socket.create_server(("127.0.0.1", 0), backlog=0) as server, socket.socket() as filler:
            filler.connect(server.getsockname())
            more = socket.socket()
            more.setblocking(False)
            more.connect_ex(server.getsockname())
            asking = checker(
                TcpProbe(port=server.getsockname()[1]), clock, startup=3.0, timeout=5.0
            )
            watched = WatchRun(loop, asking, clock)
            assert "not healthy 3 s after its start: no answer yet" == watched.stop_reason(3.0)
            more.close()
        assert [] == watched.results

    def test_a_start_that_asks_for_more_time_gets_it_from_then_on(
        self, loop: EventLoopThread
    ) -> None:
        watched = self.watched(loop)
        watched.after(50.0)
        watched.run_on_loop(lambda: watched.checker.probe_watch.extend_startup(30.0))
        watched.after(29.9)
        assert not watched.ending.done()
        assert "not healthy 80 s after its start: no WATCHDOG=1 yet" == watched.stop_reason(0.1)

    def test_an_extension_never_shortens(self, loop: EventLoopThread) -> None:
        watched = self.watched(loop)
        watched.run_on_loop(lambda: watched.checker.probe_watch.extend_startup(1.0))
        watched.after(59.9)
        assert not watched.ending.done()
        watched.ending.cancel()

    def test_a_start_grace_can_be_extended_too(self, loop: EventLoopThread) -> None:
        clock = FakeClock()
        watched = WatchRun(
            loop, checker(HeartbeatProbe(), clock, interval=5.0, start_grace=10.0), clock
        )
        watched.after(9.0)
        watched.run_on_loop(lambda: watched.checker.probe_watch.extend_startup(20.0))
        assert [] == watched.after(19.9)
        assert [("no WATCHDOG=1 yet", 1)] == watched.after(0.1)
        watched.ending.cancel()

    def test_a_watch_that_is_cancelled_while_it_starts_leaves_no_question_behind(
        self, loop: EventLoopThread
    ) -> None:
        watched = self.watched(loop)
        watched.ending.cancel()
        watched.run_loop()
        watched._clock.await_parked(0)
        assert 1 == len(watched.results)
