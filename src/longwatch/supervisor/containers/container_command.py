"""Runs a command of a probe in a container, and kills its processes when it ends or times out.

The Engine API cannot kill an exec. So the command runs under `timeout -s KILL` if the image has it.
The command also has a random mark in its environment. If the container's processes are visible on
this host, processes in its cgroup that have the mark are killed afterwards. Reading the cgroup's
list depends on the number of processes in the container, not on the host. If neither is possible, a
command that does not end in time is reported as a leak.
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
"""Seconds that `timeout` in a container waits longer than the prober, which normally kills
first.
"""
_KILL_ROUNDS = 20
_LATE_ROUNDS = 300
_EMPTY_ROUNDS = 10
"""Empty scans in a row before the command counts as gone: a process that execs shows no mark, on a
busy machine for a while.
"""
_KILL_ROUND_SECONDS = 0.05


class ContainerCommand:
    """One command in one container. Used on the event loop."""

    def __init__(self, spec: ContainerSpec, state: ContainerState, host: ContainerHost) -> None:
        self._spec = spec
        self._state = state
        self._host = host
        self._mark = os.urandom(16).hex()
        self._was_found = False
        """Whether a process of the command was seen after it ended or was given up."""

    async def run(
        self, argv: Sequence[str], *, output: LineSink, cwd: str | None, timeout: float
    ) -> int:
        """Run it and return its exit code. Cancelling it kills the processes it started. Raises
        SpawnError or RuntimeUnreachableError.
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
        """Return whether its image has a `timeout` command with `-s KILL`; asked once per image."""
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
        """Kill processes with the mark until none is left; False if they are not visible on this
        host.

        The runtime may start a command after it was given up. So this waits for it a moment, and
        longer in the background.
        """
        # also while the runtime does not answer: the processes are visible without it
        if (
            not self._state.pid
            or await self._kill_marked(rounds=1 if is_over else _KILL_ROUNDS) is None
        ):
            return False
        if not is_over and not self._was_found:
            self._host.run_in_background(self._kill_late())
        return True

    async def _kill_marked(self, *, rounds: int) -> bool | None:
        """Scan up to `rounds` times and kill the processes found until none is left.

        Returns whether any was found; None if the processes are not visible on this host.
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
                await asyncio.sleep(_KILL_ROUND_SECONDS)  # real time: the kernel needs it
        return self._was_found

    async def _kill_late(self) -> None:
        await self._kill_marked(rounds=_LATE_ROUNDS)


class _NoOutput:
    """A sink that discards its output."""

    congested = False

    def write(self, data: bytes) -> bool:
        del data
        return True

    def on_drained(self, callback: Callable[[], None]) -> None:
        callback()

    def give_up(self) -> None:
        """Do nothing: this sink is never congested."""


def marked_processes(pid: int, mark: str, *, proc: Path = Path("/proc")) -> list[int] | None:
    """Return the processes with this mark in the cgroup of `pid`; None if they are not visible on
    this host.
    """
    pids = cgroup_pids(pid, proc=proc)
    if pids is None:
        return None
    wanted = f"{MARK_VARIABLE}={mark}".encode()
    return [each for each in pids if wanted in _environment(each, proc)]


def kill_processes(pids: list[int]) -> None:
    """Send SIGKILL to each process; skip those that are gone."""
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
    """Return the members of its cgroup; None if it is not a process of this host, or shares our
    cgroup.
    """
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
