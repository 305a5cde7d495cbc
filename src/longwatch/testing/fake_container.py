"""One container of a `FakeRuntime`: its script, its state, its output, its commands."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from longwatch.core.clock import Clock
from longwatch.host.capture import LineSink
from longwatch.host.loop import wait_until_done
from longwatch.supervisor.containers.container_spec import ContainerSpec
from longwatch.supervisor.containers.runtime import ContainerState, ContainerStatus

T = TypeVar("T")

KILLED = 128 + signal.SIGKILL
_NOT_FOUND = 127
_EXIT_COMMAND = re.compile(r"sh -c exit (\d+)")
_TICK = 1e-6
"""The least seconds between two starts of a container."""
_ENDING_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """The result of a command in a container: it prints, then it exits. With an awaitable exit code
    the command runs until that is set, or hangs.
    """

    exit_code: int | Awaitable[int] = 0
    output: bytes = b""


ExecOutcome = int | ExecResult
ExecHandler = Callable[
    [Sequence[str], str | None, Mapping[str, str]], ExecOutcome | Awaitable[ExecOutcome]
]
"""A function that is called with the argv, the directory and the environment of a command."""


def command_not_found(
    argv: Sequence[str], cwd: str | None, env: Mapping[str, str]
) -> ExecOutcome | Awaitable[ExecOutcome]:
    """Report that the image has no such command."""
    del cwd, env
    return ExecResult(exit_code=_NOT_FOUND, output=f"{argv[0]}: not found\n".encode())


@dataclass(slots=True, kw_only=True)
class ContainerScript:
    """How the containers of one name behave. It outlives them, and a change applies from its next
    use.

    By default a container runs until SIGTERM, SIGINT, SIGQUIT or SIGKILL ends it with 128 + n.
    """

    prints: Sequence[str] = ()
    """The lines that it prints at every start."""
    exits_at_start: int | None = None
    """The code with which it exits after it has started and printed; None: it runs."""
    ignores_term: bool = False
    """Whether only SIGKILL ends it."""
    term_exit_code: int = 128 + signal.SIGTERM
    on_signal: Callable[[int], None] | None = None
    """Called with every signal but SIGKILL, before the signal has its effect."""
    on_exec: ExecHandler = command_not_found
    files: set[str] = field(default_factory=set)
    """Absolute paths of the files in it."""
    has_shell: bool = True
    """Whether the image has `sh` and `timeout`. The fake then simulates `sh -c 'exit N'` and
    `timeout -s KILL SECONDS COMMAND…`, and calls `on_exec` only with COMMAND.
    """
    pid: int | None = None
    """The pid of a real process that stands for it; None: a pid that no process can have."""
    address: str = "127.0.0.1"
    """Its address in the runtime's network while it runs."""
    create_gate: asyncio.Event | None = None
    """A slow pull: `create` waits for this event."""
    start_gate: asyncio.Event | None = None
    """A slow start: it runs only after this event, whether or not its caller still waits."""

    def exit_code_on(self, signum: int) -> int | None:
        """Return the code with which it exits on this signal; None if it runs on."""
        if signum == signal.SIGKILL:
            return KILLED
        if self.ignores_term or signum not in _ENDING_SIGNALS:
            return None
        return self.term_exit_code if signum == signal.SIGTERM else 128 + signum


@dataclass(frozen=True, slots=True)
class _StreamEnd:
    error: Exception | None


class FakeStream(Generic[T]):
    """A stream of items for one reader. Used only on the event loop."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[T | _StreamEnd] = asyncio.Queue()
        self._ended = False

    def put(self, item: T) -> None:
        """Add an item. Does nothing after the stream has ended."""
        if not self._ended:
            self._items.put_nowait(item)

    def end(self, error: Exception | None = None) -> None:
        """End the stream after the earlier items, with an error if one is given. Idempotent."""
        if not self._ended:
            self._ended = True
            self._items.put_nowait(_StreamEnd(error))

    def __aiter__(self) -> FakeStream[T]:
        return self

    async def __anext__(self) -> T:
        item = await self._items.get()
        if not isinstance(item, _StreamEnd):
            return item
        self._items.put_nowait(item)
        raise item.error or StopAsyncIteration


class FakeExec:
    """A command that runs in a container, in its own task, so it goes on when its caller
    disconnects. It ends by itself, by `timeout`, by `kill` or with its container.
    """

    def __init__(  # noqa: PLR0913 - a command and its environment, each by name
        self,
        argv: Sequence[str],
        script: ContainerScript,
        *,
        pid: int,
        cwd: str | None,
        env: Mapping[str, str],
        output: LineSink,
        clock: Clock,
    ) -> None:
        self.argv = tuple(argv)
        self.pid = pid
        self.cwd = cwd
        self.env = dict(env)
        self._script = script
        self._output: LineSink | None = output
        self._clock = clock
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._running = asyncio.ensure_future(self._run())
        self._running.add_done_callback(self._finish)

    def __repr__(self) -> str:
        return f"<FakeExec {' '.join(self.argv)}>"

    def hang_up(self) -> None:
        """Discard its output from now on."""
        self._output = None

    def kill(self) -> None:
        """Send SIGKILL to the command and to every process that it started."""
        self._running.cancel()

    def _finish(self, running: asyncio.Task[int]) -> None:
        if running.cancelled():
            self.ended.set_result(KILLED)
        elif (error := running.exception()) is not None:
            self.ended.set_exception(error)
        else:
            self.ended.set_result(running.result())

    async def _run(self) -> int:
        if self._script.has_shell and self.argv[0] == "timeout":
            return await self._run_timeout()
        return await self._run_command(self.argv)

    async def _run_timeout(self) -> int:
        option, signal_name, seconds, *command = self.argv[1:]
        if (option, signal_name) != ("-s", "KILL"):
            raise ValueError(f"expected `timeout -s KILL SECONDS COMMAND`, got {self.argv}")
        running = asyncio.ensure_future(self._run_command(command))
        try:
            in_time = await wait_until_done(running, float(seconds), self._clock)
            return await running if in_time else KILLED
        finally:
            running.cancel()

    async def _run_command(self, argv: Sequence[str]) -> int:
        if self._script.has_shell and (done := _EXIT_COMMAND.fullmatch(" ".join(argv))):
            return int(done[1])
        outcome = self._script.on_exec(argv, self.cwd, self.env)
        outcome = await outcome if isinstance(outcome, Awaitable) else outcome
        result = ExecResult(exit_code=outcome) if isinstance(outcome, int) else outcome
        if result.output and self._output is not None:
            self._output.write(result.output)
        code = result.exit_code
        return code if isinstance(code, int) else await code


class FakeContainer:
    """A container: its state, its output and its commands. Its runtime emits the events."""

    def __init__(
        self,
        spec: ContainerSpec,
        *,
        container_id: str,
        labels: Mapping[str, str],
        script: ContainerScript,
        clock: Clock,
    ) -> None:
        self.id = container_id
        self.name = spec.name
        self.spec = spec
        self.labels = dict(labels)
        self.script = script
        self.status = ContainerStatus.STOPPED
        self.restart_policy = "no"
        self.execs: list[FakeExec] = []
        self._clock = clock
        self._pid = 0
        self._exit_code = 0
        self._out_of_memory = False
        self._started_at = self._finished_at = 0.0
        self._log: list[tuple[float, bytes]] = []
        self._readers: list[FakeStream[bytes]] = []

    @property
    def is_up(self) -> bool:
        return self.status is not ContainerStatus.STOPPED

    def run(self, pid: int) -> None:
        """Start the container, and print the lines of its script."""
        self.status = ContainerStatus.RUNNING
        self._pid, self._exit_code, self._out_of_memory = pid, 0, False
        self._started_at, self._finished_at = self._next_moment(), 0.0
        for line in self.script.prints:
            self.write(f"{line}\n".encode())

    def _next_moment(self) -> float:
        """Return the current time, but later than the previous run even if the clock stood still.
        Two runs differ by their start times, so a reader of the second gets no line of the first.
        """
        last_line = self._log[-1][0] if self._log else 0.0
        return max(self._clock.wall(), max(last_line, self._started_at) + _TICK)

    def end(self, exit_code: int, *, out_of_memory: bool = False) -> None:
        """End the container and its commands, and complete its logs."""
        self.status = ContainerStatus.STOPPED
        self._pid, self._exit_code, self._out_of_memory = 0, exit_code, out_of_memory
        self._finished_at = self._clock.wall()
        for command in self.execs:
            command.kill()
        for reader in self._readers:
            reader.end()
        self._readers.clear()

    def write(self, data: bytes) -> None:
        """Print data as the container's output."""
        self._log.append((max(self._clock.wall(), self._started_at), data))
        for reader in self._readers:
            reader.put(data)

    def read_log(self, reader: FakeStream[bytes], since: float) -> None:
        """Send the reader the output since that wall time, and all output until the container
        stops.
        """
        for written_at, data in self._log:
            if written_at >= since:
                reader.put(data)
        if self.is_up:
            self._readers.append(reader)
        else:
            reader.end()

    def start_exec(
        self,
        argv: Sequence[str],
        *,
        pid: int,
        cwd: str | None,
        env: Mapping[str, str],
        output: LineSink,
    ) -> FakeExec:
        """Run a command in the container."""
        command = FakeExec(
            argv, self.script, pid=pid, cwd=cwd, env=env, output=output, clock=self._clock
        )
        self.execs.append(command)
        command.ended.add_done_callback(lambda _: self.execs.remove(command))
        return command

    def summary(self) -> ContainerState:
        """Return the state that a list of containers shows."""
        return ContainerState(
            id=self.id, name=self.name, status=self.status, labels=dict(self.labels)
        )

    def state(self) -> ContainerState:
        """Return the state that an inspection shows."""
        has_address = self.is_up and self.spec.network != "none"
        return ContainerState(
            id=self.id,
            name=self.name,
            status=self.status,
            labels=dict(self.labels),
            pid=self._pid,
            exit_code=self._exit_code,
            out_of_memory=self._out_of_memory,
            started_at=self._started_at,
            finished_at=self._finished_at,
            image=self.spec.image,
            restart_policy=self.restart_policy,
            address=self.script.address if has_address else "",
            published_ports={
                port.container_port: (port.host, port.host_port) for port in self.spec.ports
            },
        )
