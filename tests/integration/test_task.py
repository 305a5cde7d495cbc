"""Tasks: real commands below a real guardian. Deadlines are on a fake clock."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from guardian_fixture import (
    PRELUDE,
    TIMEOUT,
    GuardianFixture,
    LineSink,
    is_gone,
    pids_with_token,
    require_cgroups,
    running_guardian,
)
from longwatch.core.clock import Clock
from longwatch.errors import GuardianLostError, SpawnError
from longwatch.host import task as task_module
from longwatch.host.process import Child, ProcessSpec, StopPolicy
from longwatch.host.task import ChildSpawner, OutputFile, Task, TaskEnd, TaskEndReason, TaskSpec
from longwatch.host.writer_thread import WriterThread
from longwatch.testing import FakeClock
from polling import eventually

MEBIBYTE = 1 << 20


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=[True, False], ids=["cgroups", "marks"])
def guardian(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[GuardianFixture]:
    if request.param:
        require_cgroups()
    with running_guardian(cgroups=request.param, clock=clock) as opened:
        yield opened


class CountingTask(Task):
    """A task that counts how often progress was reported."""

    progress = 0

    def report_progress(self) -> None:
        super().report_progress()
        self.progress += 1


class RunningTask:
    """A task that runs on the loop of a guardian, for a test that is not on the loop."""

    def __init__(  # noqa: PLR0913 - each has its default
        self,
        guardian: GuardianFixture,
        code: str,
        *,
        out: Any = None,
        on_spawned: Callable[[Child], None] = lambda _: None,
        spawner: ChildSpawner | None = None,
        argv: list[str] | None = None,
        cwd: str | None = None,
        **spec: Any,
    ) -> None:
        self._guardian = guardian
        self.token = f"token-{secrets.token_hex(8)}"
        guardian.tokens.append(self.token)
        self.out = LineSink() if out is None else out
        self.chunks = 0
        process = ProcessSpec(
            argv=argv or [sys.executable, "-I", "-S", "-c", PRELUDE + dedent(code), self.token],
            env={"PATH": os.defpath},
            cwd=cwd,
            stdout=self.out,
            stderr=self.out,
            on_output=self._count_chunk,
        )
        clock: Clock = guardian.guardian.clock
        self.child: Child | None = None
        self.task = CountingTask(
            TaskSpec(
                **{"timeout": None, "stop": StopPolicy(grace=5.0), **spec, "process": process}
            ),
            clock=clock,
            on_spawned=lambda child: self._remember(child, on_spawned),
        )
        self._spawner = spawner or guardian.guardian
        self._future: Future[TaskEnd] | None = None

    def _remember(self, child: Child, then: Callable[[Child], None]) -> None:
        self.child = child
        then(child)

    def _count_chunk(self) -> None:
        self.chunks += 1

    def start(self, word: str = "") -> RunningTask:
        """Run it; returns when it has written this."""
        self._future = self._guardian.loop.spawn(self.task.run(self._spawner))
        if word:
            self.out.wait_for_text(word)
            # the first output may come before the report of the spawn
            assert eventually(lambda: self.child is not None)
        return self

    def end(self) -> TaskEnd:
        if self._future is None:
            self.start()
        assert self._future is not None
        return self._future.result(TIMEOUT)

    def abort(self) -> None:
        """Cancel the coroutine itself, as the end of its loop does."""
        assert self._future is not None
        self._future.cancel()
        with pytest.raises(CancelledError):
            self._future.result(TIMEOUT)

    def is_running(self) -> bool:
        assert self._future is not None
        return not self._future.done()

    def signal(self, signum: int) -> None:
        assert self.child is not None
        child = self.child
        self._guardian.run_on_loop(lambda: child.signal(signum, group=False))

    @property
    def left(self) -> list[int]:
        return pids_with_token(self.token)


def summary(end: TaskEnd) -> tuple[TaskEndReason, str, int]:
    """Who ended it, how the leader ended, and how many processes survived."""
    return end.reason, str(end.process.cause), end.process.survivors


# --- a command that ends by itself ----------------------------------------------------------------


def test_a_command_that_exits_at_once_has_ended_with_its_code(guardian: GuardianFixture) -> None:
    running = RunningTask(guardian, "say('all of it'); sys.exit(3)", timeout=300.0)
    assert (TaskEndReason.ENDED, "exit 3", 0) == summary(running.end())
    assert b"all of it\n" == running.out.data


def test_what_a_leader_leaves_behind_is_killed_and_it_has_ended_by_itself(
    guardian: GuardianFixture,
) -> None:
    running = RunningTask(guardian, "deaf(); orphan(rest); os.fork() or rest(); os._exit(0)")
    end = running.end()
    assert (TaskEndReason.ENDED, "exit 0", 0) == summary(end)
    assert end.process.killed >= 1
    assert [] == running.left


def test_a_process_outside_of_the_tree_that_holds_a_pipe_delays_nothing(
    guardian: GuardianFixture,
) -> None:
    """The task ends while the other end of its output pipe stays open."""
    running = RunningTask(guardian, "say('begun'); rest()").start("begun")
    assert running.child is not None
    with open(f"/proc/{running.child.pid}/fd/1", "wb", buffering=0) as held:  # noqa: PTH123 - a pipe
        running.signal(signal.SIGKILL)
        assert (TaskEndReason.ENDED, "signal 9", 0) == summary(running.end())
        with pytest.raises(BrokenPipeError):
            held.write(b"late\n")
    assert b"begun\n" == running.out.data


# --- deadlines ------------------------------------------------------------------------------------


def test_a_command_that_hangs_is_ended_at_its_timeout_and_not_before(
    guardian: GuardianFixture, clock: FakeClock
) -> None:
    running = RunningTask(guardian, "say('begun'); rest()", timeout=300.0).start("begun")
    clock.await_parked(1)
    clock.advance(299.0)
    assert running.is_running()
    clock.advance(1.0, parked=0)
    assert (TaskEndReason.TIMEOUT, "signal 15", 0) == summary(running.end())
    assert [] == running.left


def test_a_command_that_ends_well_when_it_is_stopped_has_timed_out_all_the_same(
    guardian: GuardianFixture, clock: FakeClock
) -> None:
    code = "signal.signal(15, lambda *_: sys.exit(0)); say('begun'); rest()"
    running = RunningTask(guardian, code, timeout=300.0).start("begun")
    clock.await_parked(1)
    clock.advance(300.0, parked=0)
    assert (TaskEndReason.TIMEOUT, "exit 0", 0) == summary(running.end())


@pytest.mark.parametrize(
    "tree",
    [
        "say('begun'); rest()",
        "os.fork() or rest(); say('begun'); rest()",
        "orphan(lambda: (say('begun'), rest())); rest()",
        "orphan(lambda: orphan(lambda: (say('begun'), rest()))); os.fork(); rest()",
    ],
    ids=["alone", "fork", "double-fork", "many"],
)
def test_a_tree_that_ignores_sigterm_is_killed_after_its_grace(
    guardian: GuardianFixture, clock: FakeClock, tree: str
) -> None:
    running = RunningTask(guardian, f"deaf(); {tree}", timeout=300.0).start("begun")
    clock.await_parked(1)
    clock.advance(300.0, parked=1)
    clock.advance(4.9)
    assert running.is_running()
    assert running.left
    clock.advance(0.1, parked=0)
    assert (TaskEndReason.TIMEOUT, "signal 9", 0) == summary(running.end())
    assert [] == running.left


def test_bytes_without_the_end_of_a_line_are_progress_and_silence_is_a_stall(
    guardian: GuardianFixture, clock: FakeClock
) -> None:
    code = "signal.signal(10, lambda *_: os.write(1, b'.')); say('begun'); rest()"
    running = RunningTask(guardian, code, timeout=300.0, progress_timeout=10.0).start("begun")
    clock.await_parked(1)
    for dots in range(1, 4):
        clock.advance(9.0)
        before = running.task.progress
        running.signal(signal.SIGUSR1)
        assert eventually(lambda: running.task.progress > before), dots  # noqa: B023 - now
    clock.advance(9.0)
    assert running.is_running()
    clock.advance(1.0, parked=0)
    assert (TaskEndReason.STALLED, "signal 15", 0) == summary(running.end())
    assert b"begun\n...\n" == running.out.data
    assert (4, 4) == (running.chunks, running.task.progress)


def test_progress_does_not_move_the_timeout(guardian: GuardianFixture, clock: FakeClock) -> None:
    code = "say('begun'); rest()"
    running = RunningTask(guardian, code, timeout=15.0, progress_timeout=10.0).start("begun")
    clock.await_parked(1)
    clock.advance(9.0)
    running.task.report_progress()
    clock.advance(5.0)
    assert running.is_running()
    clock.advance(1.0, parked=0)
    assert TaskEndReason.TIMEOUT is running.end().reason


# --- cancel ---------------------------------------------------------------------------------------


def test_a_task_that_is_cancelled_before_its_run_starts_nothing(guardian: GuardianFixture) -> None:
    running = RunningTask(guardian, "rest()")
    running.task.cancel("shutdown")
    end = running.end()
    assert (TaskEndReason.CANCELLED, "shutdown") == (end.reason, end.cancel_reason)
    assert (None, None) == (end.process.pid, running.child)


def test_a_task_that_is_cancelled_while_it_is_spawned_is_stopped(guardian: GuardianFixture) -> None:
    class CancelsMeanwhile:
        async def spawn(self, spec: ProcessSpec) -> Child:
            running.task.cancel("too late")
            return await guardian.guardian.spawn(spec)

    running = RunningTask(guardian, "rest()", spawner=CancelsMeanwhile())
    end = running.end()
    assert (TaskEndReason.CANCELLED, "too late") == (end.reason, end.cancel_reason)
    assert running.child is not None
    assert running.child.pid == end.process.pid
    assert [] == running.left


def test_a_running_task_is_cancelled_from_another_thread(guardian: GuardianFixture) -> None:
    running = RunningTask(guardian, "say('begun'); rest()", timeout=300.0).start("begun")
    running.task.cancel("asked to")
    end = running.end()
    assert (TaskEndReason.CANCELLED, "signal 15", 0) == summary(end)
    assert "asked to" == end.cancel_reason


def test_a_second_cancel_sends_no_second_signal_and_keeps_the_reason_but_hastens(
    guardian: GuardianFixture, clock: FakeClock
) -> None:
    code = "signal.signal(15, lambda *_: say('TERM')); say('begun'); rest()"
    running = RunningTask(guardian, code).start("begun")
    running.task.cancel("first", grace=100.0)
    running.out.wait_for_text("TERM")
    clock.await_parked(1)
    running.task.cancel("second")
    clock.await_parked(2)
    running.task.cancel("third", grace=1.0)
    clock.await_parked(3)
    clock.advance(1.0, parked=0)
    end = running.end()
    assert (TaskEndReason.CANCELLED, "signal 9", 0) == summary(end)
    assert "first" == end.cancel_reason
    assert b"begun\nTERM\n" == running.out.data


def test_a_cancel_after_the_timeout_shortens_the_grace_and_not_the_reason(
    guardian: GuardianFixture, clock: FakeClock
) -> None:
    running = RunningTask(guardian, "deaf(); say('begun'); rest()", timeout=300.0).start("begun")
    clock.await_parked(1)
    clock.advance(300.0, parked=1)
    running.task.cancel("now", grace=0.0)
    end = running.end()
    assert (TaskEndReason.TIMEOUT, "signal 9", 0) == summary(end)
    assert "" == end.cancel_reason


def test_a_cancel_after_the_end_changes_nothing(guardian: GuardianFixture) -> None:
    running = RunningTask(guardian, "pass")
    assert TaskEndReason.ENDED is running.end().reason
    running.task.cancel("late")
    running.task.cancel("later", grace=0.0)


def test_a_leader_that_ended_before_the_cancel_has_ended_by_itself(clock: FakeClock) -> None:
    """What is left of the tree is still being killed when the cancel comes."""

    class SilentGuardian:
        """Spawns nothing and keeps the orders that it gets."""

        def __init__(self) -> None:
            self.orders: list[str] = []

        async def spawn(self, _spec: ProcessSpec) -> Child:
            self.child = Child(1, "mark", self, clock)
            self.child.handle_message({"event": "spawned", "id": 1, "pid": 7})
            return self.child

        def send(self, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
            del descriptors
            self.orders.append(message["op"])

        def abort(self) -> None:
            raise AssertionError("given up")

    async def turn_until(condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110 - nothing is set that it could wait for
            await asyncio.sleep(0)

    async def cancel_late() -> TaskEnd:
        guardian = SilentGuardian()
        spec = TaskSpec(
            process=ProcessSpec(argv=["x"], env={}), timeout=None, stop=StopPolicy(grace=5.0)
        )
        task = Task(spec, clock=clock, on_spawned=lambda _: None)
        running = asyncio.ensure_future(task.run(guardian))
        await turn_until(lambda: hasattr(guardian, "child"))
        guardian.child.handle_message(
            {"event": "ended", "id": 1, "status": 0, "cpu": 0.0, "max_rss": 0}
        )
        await turn_until(lambda: "kill" in guardian.orders)
        task.cancel("late")
        await turn_until(lambda: "signal_rest" in guardian.orders)
        guardian.child.handle_message({"event": "cleared", "id": 1, "killed": 2, "survivors": 0})
        return await running

    end = asyncio.run(asyncio.wait_for(cancel_late(), TIMEOUT))
    assert (TaskEndReason.ENDED, "exit 0", 0) == summary(end)
    assert "" == end.cancel_reason


def test_the_end_of_the_coroutine_kills_the_tree(guardian: GuardianFixture) -> None:
    running = RunningTask(guardian, "deaf(); orphan(rest); say('begun'); rest()").start("begun")
    running.abort()
    assert eventually(lambda: not running.left)


# --- starts that fail -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec", [{"argv": ["/no/such/program"]}, {"cwd": "/no/such/directory"}], ids=["argv", "cwd"]
)
def test_a_command_that_cannot_be_spawned_raises(
    guardian: GuardianFixture, spec: dict[str, Any]
) -> None:
    with pytest.raises(SpawnError) as raised:
        RunningTask(guardian, "", timeout=1.0, **spec).end()
    assert errno.ENOENT == raised.value.errno


def test_a_program_that_does_not_start_in_time_is_given_up(
    guardian: GuardianFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stuck:
        cancelled = threading.Event()

        async def spawn(self, _spec: ProcessSpec) -> Child:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self.cancelled.set()
            raise AssertionError

    monkeypatch.setattr(task_module, "SPAWN_TIMEOUT", 0.05)
    spawner = Stuck()
    with pytest.raises(SpawnError, match="did not start within") as raised:
        RunningTask(guardian, "", spawner=spawner).end()
    assert errno.ETIMEDOUT == raised.value.errno
    assert spawner.cancelled.wait(TIMEOUT)


def test_an_error_of_on_spawned_kills_the_tree_and_comes_out(guardian: GuardianFixture) -> None:
    def fail(_child: Child) -> None:
        raise LookupError("not recorded")

    running = RunningTask(guardian, "deaf(); rest()", on_spawned=fail)
    with pytest.raises(LookupError, match="not recorded"):
        running.end()
    assert [] == running.left


def test_the_loss_of_the_guardian_comes_out_and_nothing_is_left(clock: FakeClock) -> None:
    with running_guardian(cgroups=False, clock=clock) as guardian:
        running = RunningTask(guardian, "deaf(); say('begun'); rest()", timeout=9.0).start("begun")
        os.kill(guardian.pid, signal.SIGKILL)
        with pytest.raises(GuardianLostError):
            running.end()
        assert running.child is not None
        assert is_gone(running.child.pid)


# --- output ---------------------------------------------------------------------------------------

FLOOD = """
block = (b"x" * 99 + b"\\n") * 10_000
for _ in range(200):
    view = memoryview(block)
    while view:
        view = view[os.write(1, view):]
say("the end")
"""


def peak_memory() -> int:
    """The most that this process has ever used, in bytes."""
    [line] = [
        line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line
    ]
    return int(line.split()[1]) << 10


def test_a_flood_fills_neither_disk_nor_memory_and_the_loop_turns(
    guardian_without_cgroups: GuardianFixture, tmp_path: Path
) -> None:
    """200 MB of output: the file keeps the end within its bound."""
    guardian, path, turns = guardian_without_cgroups, tmp_path / "stdout.log", 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    out, before = OutputFile(path, max_bytes=MEBIBYTE), peak_memory()
    turning = guardian.loop.spawn(turn())
    try:
        running = RunningTask(guardian, FLOOD, out=out, timeout=None)
        assert (TaskEndReason.ENDED, "exit 0", 0) == summary(running.end())
    finally:
        turning.cancel()
    assert peak_memory() - before < 64 * MEBIBYTE
    assert turns > 100
    assert out.close(TIMEOUT)
    assert (200_000_008, 0) == (out.total_bytes, out.dropped)
    assert out.tail.endswith(b"xxx\nthe end\n")
    kept = path.read_bytes()
    assert MEBIBYTE // 2 - 200 <= len(kept) <= MEBIBYTE
    assert kept.endswith(b"x" * 99 + b"\nthe end\n")
    notice, _, rest = kept.partition(b"\n")
    assert b"[the first %d bytes are not kept]" % (200_000_008 - len(rest)) == notice
    assert 0o600 == path.stat().st_mode & 0o777


def test_a_disk_that_does_not_answer_blocks_neither_the_command_nor_the_loop(
    guardian_without_cgroups: GuardianFixture, tmp_path: Path
) -> None:
    """The command waits for the disk for a while, then its lines are dropped. Its tail is kept."""
    released = threading.Event()

    class StuckWriter:
        def serve(self) -> bool:
            released.wait(TIMEOUT)
            return False

    thread = WriterThread("stuck")
    with thread.changed:
        thread.schedule(StuckWriter())
    out = OutputFile(tmp_path / "stdout.log", max_bytes=MEBIBYTE, thread=thread)
    try:
        running = RunningTask(
            guardian_without_cgroups, FLOOD.replace("(200)", "(8)"), out=out, timeout=None
        )
        assert (TaskEndReason.ENDED, "exit 0", 0) == summary(running.end())
        assert out.dropped > 0
        assert out.tail.endswith(b"xxx\nthe end\n")
        assert not out.close(0.05)
    finally:
        released.set()


def test_an_endless_line_is_cut(guardian_without_cgroups: GuardianFixture, tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    out = OutputFile(path, max_bytes=MEBIBYTE)
    code = FLOOD.replace("\\n", "x").replace("(200)", "(20)")
    assert "exit 0" == str(RunningTask(guardian_without_cgroups, code, out=out).end().process.cause)
    assert out.close(TIMEOUT)
    assert b"x" * (64 * 1024) + b" [line cut]\n" == path.read_bytes()
