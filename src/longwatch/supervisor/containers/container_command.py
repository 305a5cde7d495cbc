"""Runs a command of a probe in a container, and leaves nothing of it behind.

The Engine API cannot kill an exec. So the command runs under `timeout -s KILL` where the image has
that, and it carries a random mark in its environment: what has the mark in the container's cgroup
afterwards is killed, where its processes are processes of this host. Reading the cgroup's list
costs as much as the container has processes, not as much as the host has. Where neither can be
done, a command that does not end in time is reported as a leak.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from longwatch.core.events.programs import ProbeProcessLeaked
from longwatch.errors import RuntimeRefusedError, RuntimeUnreachableError, SpawnError
from longwatch.host.capture import LineSink
from longwatch.supervisor.containers.container_host import ContainerHost
from longwatch.supervisor.containers.container_spec import ContainerSpec
from longwatch.supervisor.containers.runtime import ContainerRuntime, ContainerState

MARK_VARIABLE = "LONGWATCH_OWNER"
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_FIRST_SERVER_ERROR = 500
_TIMEOUT_MARGIN = 2.0
"""Seconds that `timeout` in a container waits longer than the prober, which kills first."""
_KILL_ROUNDS = 20
_LATE_ROUNDS = 300
_EMPTY_ROUNDS = 10
"""How often nothing has to be found before nothing is left: a process that execs shows no mark, and
on a busy machine it may stay there for a while.
"""
_KILL_ROUND_SECONDS = 0.05


class ContainerCommand:
    """One command in one container. Used on the loop."""

    def __init__(self, spec: ContainerSpec, state: ContainerState, host: ContainerHost) -> None:
        self._spec = spec
        self._state = state
        self._host = host
        self._mark = os.urandom(16).hex()
        self._was_found = False
        """Whether a process of the command was seen after it was over or given up."""

    async def run(
        self, argv: Sequence[str], *, output: LineSink, cwd: str | None, timeout: float
    ) -> int:
        """Run it and return its exit code. Cancelling it kills what it started. Raises SpawnError,
        RuntimeUnreachableError.
        """
        runtime = self._host.connected
        limited = await self._has_timeout(runtime)
        seconds = str(math.ceil(timeout + _TIMEOUT_MARGIN))
        prefix = ("timeout", "-s", "KILL", seconds) if limited else ()
        env = {MARK_VARIABLE: self._mark}
        is_over = False
        try:
            end = await runtime.exec(
                self._state.id, (*prefix, *argv), cwd=cwd, env=env, output=output
            )
            is_over = True
        except RuntimeRefusedError as error:
            is_over = True
            if error.status >= _FIRST_SERVER_ERROR:  # a fault of the runtime, not of the container
                raise RuntimeUnreachableError(str(error)) from None
            raise SpawnError(str(error)) from None
        finally:
            killed = runtime.is_local and await self._kill_leftovers(is_over=is_over)
            if not killed and not (is_over or limited):
                self._host.events.emit(
                    ProbeProcessLeaked(program=self._spec.name, command=tuple(argv))
                )
        return end.exit_code

    async def _has_timeout(self, runtime: ContainerRuntime) -> bool:
        """Whether its image has a `timeout` that knows how to kill; asked once an image."""
        known, image = self._host.has_timeout, self._spec.image
        if image not in known:
            argv = ("timeout", "-s", "KILL", "5", "sh", "-c", "exit 0")
            try:
                end = await runtime.exec(
                    self._state.id,
                    argv,
                    cwd=None,
                    env={MARK_VARIABLE: self._mark},
                    output=_NoOutput(),
                )
            except RuntimeRefusedError:
                return False
            known[image] = end.exit_code == 0
        return known[image]

    async def _kill_leftovers(self, *, is_over: bool) -> bool:
        """Kill what has the mark, until nothing has; False if that cannot be seen from here. The
        runtime may only now start a command that was given up: that is waited for, at most a
        moment here and longer in the background.
        """
        # also while the runtime does not answer: the processes are seen without it
        if (
            not self._state.pid
            or await self._kill_marked(rounds=1 if is_over else _KILL_ROUNDS) is None
        ):
            return False
        if not is_over and not self._was_found:
            self._host.run_in_background(self._kill_late())
        return True

    async def _kill_marked(self, *, rounds: int) -> bool | None:
        """Kill until nothing is left of what was found, looking so often for the first; None if
        nothing can be seen.
        """
        left = rounds
        while left > 0:
            found = marked_processes(self._state.pid, self._mark)
            if found is None:
                return None
            if found:
                self._was_found = True
                kill_processes(found)
                left = _EMPTY_ROUNDS
            else:
                left -= 1
            if left:
                await asyncio.sleep(_KILL_ROUND_SECONDS)  # real time: the kernel is waited for
        return self._was_found

    async def _kill_late(self) -> None:
        await self._kill_marked(rounds=_LATE_ROUNDS)


class _NoOutput:
    """A sink for output that is of no use."""

    congested = False

    def write(self, data: bytes) -> bool:
        del data
        return True

    def on_drained(self, callback: Callable[[], None]) -> None:
        callback()

    def give_up(self) -> None:
        """Nothing ever holds it up."""


def marked_processes(pid: int, mark: str, *, proc: Path = Path("/proc")) -> list[int] | None:
    """The processes with this mark in the cgroup of that process; None if they cannot be seen
    from here.
    """
    pids = cgroup_pids(pid, proc=proc)
    if pids is None:
        return None
    wanted = f"{MARK_VARIABLE}={mark}".encode()
    return [each for each in pids if wanted in _environment(each, proc)]


def kill_processes(pids: list[int]) -> None:
    """SIGKILL to each; one that is gone is passed over."""
    for pid in pids:
        with suppress(OSError):
            descriptor = os.pidfd_open(pid)
            try:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            finally:
                os.close(descriptor)


def _environment(pid: int, proc: Path) -> list[bytes]:
    try:
        return (proc / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def cgroup_pids(pid: int, *, proc: Path = Path("/proc")) -> list[int] | None:
    """The members of its cgroup; None if it is not a process of this host, or shares our cgroup."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
        own = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if line in own or path == "/":
            continue
        members = _CGROUP_ROOT / controllers.partition(",")[0] / path.lstrip("/") / "cgroup.procs"
        with suppress(OSError, ValueError):
            return [int(member) for member in members.read_text().split()]
    return None
