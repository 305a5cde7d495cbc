"""Every kind of target keeps the rules of the seam: `check_target` over real processes, and over
containers in memory.
"""

from __future__ import annotations

import itertools
import os
import secrets
import signal
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guardian_fixture import GuardianFixture, command_line
from longwatch.core.clock import SystemClock
from longwatch.core.end_cause import EndCause
from longwatch.core.events.base import Events
from longwatch.errors import SpawnError
from longwatch.host.capture import LineSink
from longwatch.host.loop import EventLoopThread
from longwatch.host.process import KILL_NOW, ProcessEnd, ProcessSpec, StopPolicy
from longwatch.supervisor.containers import container_command
from longwatch.supervisor.containers.container_command import MARK_VARIABLE
from longwatch.supervisor.containers.container_host import ContainerHost
from longwatch.supervisor.containers.container_spec import ContainerSpec
from longwatch.supervisor.containers.container_target import ContainerTarget
from longwatch.supervisor.process_target import ProcessTarget
from longwatch.supervisor.target import LiveTarget, Target
from longwatch.supervisor.target_factory import Streams
from longwatch.testing import FakeRuntime, TargetHarness, check_target, target_check
from longwatch.testing.fake_container import ExecOutcome, ExecResult
from longwatch.testing.target_suite import (
    adopt_checks,
    exec_checks,
    kit,
    life_checks,
    stop_checks,
)
from longwatch.testing.target_suite.harness import (
    HANGING_COMMAND,
    KILLED_COMMAND,
    MISSING_COMMAND,
    PRINT_COMMAND,
    PRINTED_LINES,
    SCRIPT_COMMAND,
    SCRIPT_NAME,
    SCRIPT_TEXT,
    SHELL_SCRIPTS,
    TargetBehaviour,
)

TOKEN_VARIABLE = "LONGWATCH_CHECK"


class ProcessHarness(TargetHarness):
    """Processes of a real guardian. Each has a token in its environment, by which it is found."""

    can_refuse = False

    def __init__(self, guardian: GuardianFixture, directory: Path) -> None:
        self.loop = guardian.loop
        self.clock = guardian.guardian.clock
        self._guardian = guardian.guardian
        self._directory = directory
        self._specs: dict[int, ProcessSpec] = {}
        self._targets: list[Target] = []
        (directory / SCRIPT_NAME).write_text(SCRIPT_TEXT)

    async def make(self, behaviour: TargetBehaviour, output: LineSink) -> Target:
        token = secrets.token_hex(8)
        argv = (
            (str(self._directory / token),)
            if behaviour is TargetBehaviour.CANNOT_START
            else ("sh", "-c", SHELL_SCRIPTS[behaviour])
        )
        return self._make(argv, token, output)

    async def remake(self, target: Target, output: LineSink) -> Target:
        spec = self._specs[id(target)]
        return self._make(spec.argv, spec.env[TOKEN_VARIABLE], output)

    async def kill(self, target: Target) -> None:
        leader = "\0".join(self._specs[id(target)].argv)
        for pid in self._pids(target):
            if leader in command_line(Path(f"/proc/{pid}")):
                kill_process(pid)

    async def count_processes(self, target: Target) -> int:
        return len(self._pids(target))

    async def repair(self, target: Target) -> None:
        write_command(Path(self._specs[id(target)].argv[0]))

    async def clean_up(self) -> None:
        for target in self._targets:
            for pid in self._pids(target):
                kill_process(pid)
        self._targets.clear()

    def _make(self, argv: Sequence[str], token: str, output: LineSink) -> Target:
        spec = ProcessSpec(
            argv=argv,
            env={"PATH": os.defpath, TOKEN_VARIABLE: token},
            cwd=str(self._directory),
            stdout=output,
            stderr=output,
        )
        target = ProcessTarget(spec, guardian=self._guardian)
        self._specs[id(target)] = spec
        self._targets.append(target)
        return target

    def _pids(self, target: Target) -> list[int]:
        """Those with its token and those in their sessions: a process that is just being executed
        has no environment for a moment.
        """
        wanted = f"{TOKEN_VARIABLE}={self._specs[id(target)].env[TOKEN_VARIABLE]}".encode()
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        sessions = {session_of(pid) for pid in pids if wanted in environment(pid)} - {None}
        return [pid for pid in pids if session_of(pid) in sessions]


def write_command(path: Path) -> None:
    path.write_text(f"#!/bin/sh\n{SHELL_SCRIPTS[TargetBehaviour.RUNS]}\n")
    path.chmod(0o755)


def environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def session_of(pid: int) -> int | None:
    """None if it has ended."""
    try:
        state, _, _, session, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in {"Z", "X"} else int(session)


def kill_process(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class FakeContainerHarness(TargetHarness):
    """Containers of a runtime in memory. Every target has a host of its own, with a connection of
    its own, as every supervisor has.
    """

    lives_on = True
    has_runtime = True

    def __init__(self, loop: EventLoopThread, runtime: FakeRuntime) -> None:
        self.loop = loop
        self.clock = SystemClock()
        self.exec_outlives = 0.0 if runtime.is_local else 3.0
        self._runtime = runtime
        self._numbers = itertools.count(1)
        self._specs: dict[int, ContainerSpec] = {}
        self._hosts: dict[int, ContainerHost] = {}
        runtime.add_image("check")

    async def make(self, behaviour: TargetBehaviour, output: LineSink) -> Target:
        name = f"check-{next(self._numbers)}"
        self._write_script(name, behaviour)
        image = f"for-{name}" if behaviour is TargetBehaviour.CANNOT_START else "check"
        return self._make(ContainerSpec(name=name, image=image), output)

    async def remake(self, target: Target, output: LineSink) -> Target:
        await self._hosts.pop(id(target)).close()
        return self._make(self._specs[id(target)], output)

    async def kill(self, target: Target) -> None:
        self._runtime.end(self._specs[id(target)].name, 137)

    async def count_processes(self, target: Target) -> int:
        name = self._specs[id(target)].name
        state = self._runtime.state(name)
        return int(state is not None and state.is_up) + len(self._runtime.live_execs(name))

    async def repair(self, target: Target) -> None:
        self._runtime.add_image(self._specs[id(target)].image)

    async def clean_up(self) -> None:
        await self.reconnect()
        for host in self._hosts.values():
            await host.close()
        self._hosts.clear()
        for name in self._runtime.names():
            self._runtime.operator_remove(name)

    async def cut_off(self) -> None:
        self._runtime.go_down()

    async def reconnect(self) -> None:
        self._runtime.come_back()

    def _make(self, spec: ContainerSpec, output: LineSink) -> Target:
        host = ContainerHost(
            self._runtime.connect,
            owner="check",
            clock=self.clock,
            events=Events(),
            poll_interval=0.2,
        )
        host.open()
        target = ContainerTarget(spec, host=host, streams=Streams(stdout=output))
        self._specs[id(target)], self._hosts[id(target)] = spec, host
        return target

    def _write_script(self, name: str, behaviour: TargetBehaviour) -> None:
        script = self._runtime.script(name)
        script.prints, script.on_exec = ["ready"], play_command
        script.files.add(f"/code/{SCRIPT_NAME}")
        match behaviour:
            case TargetBehaviour.PRINTS:
                script.prints = [*PRINTED_LINES, "ready"]
            case TargetBehaviour.EXITS:
                script.prints, script.exits_at_start = ["last words"], 3
            case TargetBehaviour.REPORTS_SIGNALS:
                script.ignores_term = True
                script.on_signal = lambda signum: self._runtime.write_output(
                    name, f"signal {signum}\n".encode()
                )
            case TargetBehaviour.REFUSED:
                self._runtime.add_foreign(name)
            case _:
                pass


def play_command(
    argv: Sequence[str], cwd: str | None, env: Mapping[str, str]
) -> ExecOutcome | Awaitable[ExecOutcome]:
    """What the commands of the suite do in a container."""
    match tuple(argv):
        case command if command == PRINT_COMMAND:
            return ExecResult(output=b"one\ntwo\nerror\n")
        case command if command == KILLED_COMMAND:
            return 137
        case command if command == MISSING_COMMAND:
            return 127
        case command if command == SCRIPT_COMMAND and cwd == "/code":
            return ExecResult(exit_code=7, output=b"from the script\n")
        case command if command == HANGING_COMMAND:
            return ExecResult(exit_code=hang(), output=b"hanging\n")
        case command:
            raise AssertionError(f"the suite has no command {command} in {cwd}")


async def hang() -> int:
    await SystemClock().sleep(300.0)
    return 0


@pytest.fixture
def loop() -> Iterator[EventLoopThread]:
    with EventLoopThread() as running:
        yield running


def make_exec_processes_killable(runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commands in containers that run nothing found and killed as if they were processes."""

    def marked(pid: int, mark: str) -> list[int]:
        return [each.pid for each in runtime.live_execs() if each.env.get(MARK_VARIABLE) == mark]

    def kill(pids: Sequence[int]) -> None:
        for each in runtime.live_execs():
            if each.pid in pids:
                each.kill()

    monkeypatch.setattr(container_command, "marked_processes", marked)
    monkeypatch.setattr(container_command, "kill_processes", kill)


def test_a_process_of_the_guardian_is_a_target(
    guardian_without_cgroups: GuardianFixture, tmp_path: Path
) -> None:
    check_target(ProcessHarness(guardian_without_cgroups, tmp_path))


def test_a_container_of_a_local_podman_is_a_target(
    loop: EventLoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = FakeRuntime(SystemClock(), is_local=True)
    make_exec_processes_killable(runtime, monkeypatch)
    check_target(FakeContainerHarness(loop, runtime))


def test_a_container_of_a_remote_docker_is_a_target(loop: EventLoopThread) -> None:
    check_target(FakeContainerHarness(loop, FakeRuntime(SystemClock(), docker=True)))


def test_a_container_whose_runtime_sends_no_events_is_a_target(
    loop: EventLoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = FakeRuntime(SystemClock(), is_local=True)
    runtime.drop_events = True
    make_exec_processes_killable(runtime, monkeypatch)
    check_target(FakeContainerHarness(loop, runtime))


class LiveProxy:
    """A life that keeps every rule; a subclass breaks one."""

    def __init__(self, live: LiveTarget) -> None:
        self.live = live

    def __getattr__(self, name: str) -> Any:
        return getattr(self.live, name)


class TargetProxy:
    """A target that keeps every rule; a subclass, or the one of its lives, breaks one."""

    def __init__(self, target: Target, live: type[LiveProxy] = LiveProxy) -> None:
        self.target = target
        self._live = live

    async def start(self) -> Any:
        return self._live(await self.target.start())

    async def adopt(self) -> Any:
        adopted = await self.target.adopt()
        return None if adopted is None else self._live(adopted)

    async def stop_unwatched(self, policy: StopPolicy) -> None:
        await self.target.stop_unwatched(policy)


class BrokenHarness(FakeContainerHarness):
    """Makes targets that break a rule."""

    def __init__(self, loop: EventLoopThread, broken: type[LiveProxy | TargetProxy]) -> None:
        super().__init__(loop, FakeRuntime(SystemClock(), is_local=True))
        self._broken = broken

    def _make(self, spec: ContainerSpec, output: LineSink) -> Target:
        target = super()._make(spec, output)
        broken: Target = (
            self._broken(target)
            if issubclass(self._broken, TargetProxy)
            else TargetProxy(target, self._broken)
        )
        self._specs[id(broken)], self._hosts[id(broken)] = spec, self._hosts.pop(id(target))
        return broken


class TwoSignals(LiveProxy):
    def begin_stop(self, policy: StopPolicy) -> None:
        self.live.signal(policy.signal)
        self.live.begin_stop(policy)


class EndlessGrace(LiveProxy):
    def begin_stop(self, policy: StopPolicy) -> None:
        self.live.begin_stop(replace(policy, grace=60.0))


class ForgetfulWait(LiveProxy):
    waits = 0

    async def wait(self) -> ProcessEnd:
        self.waits += 1
        return replace(await self.live.wait(), lasted=float(self.waits))


class HastyWait(LiveProxy):
    async def wait(self) -> ProcessEnd:
        return ProcessEnd(cause=EndCause.exit(0), lasted=0.0)


class DeadlyDetach(LiveProxy):
    def detach(self) -> bool:
        self.live.begin_stop(KILL_NOW)
        return True


class DeafSignal(LiveProxy):
    def signal(self, signum: int) -> None:
        pass


class FactsWithSets(LiveProxy):
    def facts(self) -> dict[str, Any]:
        return {"ports": {80, 443}}


class InventedExits(LiveProxy):
    async def exec(self, argv: Sequence[str], **options: Any) -> EndCause:
        return EndCause.exit(0)


class AdoptsNothing(TargetProxy):
    async def adopt(self) -> None:
        return None


class StartsToAdopt(TargetProxy):
    async def adopt(self) -> Any:
        return await self.start()


class StrangeError(TargetProxy):
    async def start(self) -> Any:
        try:
            return await super().start()
        except SpawnError as error:
            raise OSError(str(error)) from None


BREAKS = [
    (TwoSignals, stop_checks.a_stop_is_one_signal_and_a_kill_after_the_grace, "its signal once"),
    (EndlessGrace, stop_checks.a_stop_is_one_signal_and_a_kill_after_the_grace, "a stop is over"),
    (ForgetfulWait, life_checks.every_caller_of_wait_gets_the_same_end, "gives the same end"),
    (HastyWait, life_checks.wait_does_not_return_while_it_runs, "not return while it runs"),
    (DeadlyDetach, adopt_checks.detach_leaves_it_running_and_ends_every_wait, "was detached"),
    (DeafSignal, stop_checks.a_signal_is_passed_on_and_it_runs_on, "'signal 1' is in its output"),
    (FactsWithSets, life_checks.facts_are_plain_json, "not JSON serializable"),
    (InventedExits, exec_checks.a_command_ends_with_its_exit_code, "gives the exit code"),
    (
        AdoptsNothing,
        adopt_checks.the_next_supervisor_adopts_the_same_life,
        "finds a target that an earlier",
    ),
    (
        StartsToAdopt,
        adopt_checks.there_is_nothing_to_adopt_before_a_start_and_after_an_end,
        "before a start is None",
    ),
    (StrangeError, life_checks.a_start_that_fails_can_be_tried_again, "raises OSError"),
    (LiveProxy, exec_checks.a_cancelled_command_leaves_no_process, "leaves no process"),
]
"""What is broken, which check finds it, and what that says. The last one: no process of a fake
container can be killed from here.
"""


@pytest.mark.parametrize(("broken", "check", "fault"), BREAKS)
def test_a_target_that_breaks_a_rule_is_found(
    broken: type[LiveProxy | TargetProxy],
    check: target_check.Check,
    fault: str,
    loop: EventLoopThread,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kit, "TIMEOUT", 2.0)
    monkeypatch.setattr(target_check, "_checks", lambda _: [check])
    with pytest.raises(AssertionError, match=fault):
        check_target(BrokenHarness(loop, broken))
