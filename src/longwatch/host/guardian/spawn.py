"""Starts a child: fork, new session, cgroup, limits, user, death signal, exec.

Plain Python runs between fork and exec. This is safe because the guardian has one thread. A pipe
that closes on a successful exec carries the result, so the guardian never waits for it.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import warnings  # noqa: F401 - `os.execvpe` imports it; importing it here saves that in every child
from contextlib import suppress
from functools import cache

from longwatch.host.guardian.cgroups import Cgroup
from longwatch.host.guardian.kernel import die_with_parent
from longwatch.host.guardian.tree import OWNER_VARIABLE
from longwatch.host.guardian.wire import ControlMessage

_SPAWN_FAILED = 127
_STDIO_DESCRIPTORS = range(3)


class SpawnRequest:
    """A child to start: argv, environment, directory, mark, limits, user, stdio descriptors."""

    def __init__(self, message: ControlMessage, stdio: tuple[int, ...]) -> None:
        self.argv: list[str] = message["argv"]
        self.env: dict[str, str] = {**message["env"], OWNER_VARIABLE: message["mark"]}
        self.cwd: str | None = message["cwd"]
        self.umask: int | None = message["umask"]
        self.identity: ControlMessage | None = message["identity"]
        self.memory: int | None = message["limits"]["memory"]
        self.open_files: int | None = message["limits"]["open_files"]
        self.nice: int | None = message["limits"]["nice"]
        self.memory_by_cgroup = False
        """Whether its cgroup limits its memory. Then it must be in the cgroup, and needs no other
        limit.
        """
        self.stdio = stdio


def spawn(request: SpawnRequest, cgroup: Cgroup | None) -> tuple[int, int]:
    """Fork the child; return its pid and the read end of the pipe with the result of its exec."""
    exec_pipe, error_pipe = os.pipe()
    guardian = os.getpid()
    _non_default_signals()
    try:
        pid, inside = _fork(cgroup)
    except OSError:
        os.close(exec_pipe)
        os.close(error_pipe)
        raise
    if pid == 0:
        ChildSetup(request, None if inside else cgroup, guardian).run(error_pipe)
    os.close(error_pipe)
    return pid, exec_pipe


def _fork(cgroup: Cgroup | None) -> tuple[int, bool]:
    """Fork; return the pid, and whether the child is already in the cgroup."""
    if cgroup is not None:
        with suppress(OSError):
            pid = cgroup.fork()
            if pid is not None:
                return pid, True
    return os.fork(), False


def read_exec_error(exec_pipe: int) -> tuple[int, str] | None:
    """Read the exec pipe: None after a successful exec, else the errno and the error text."""
    text = os.read(exec_pipe, 4096).decode(errors="replace")
    if not text:
        return None
    number, _, what = text.partition(" ")
    return int(number), what


class ChildSetup:
    """Runs the steps between fork and exec in the forked child.

    `step` names the current step, for the error if it fails.
    """

    def __init__(self, request: SpawnRequest, cgroup: Cgroup | None, guardian: int) -> None:
        self.request = request
        self.cgroup = cgroup
        self.guardian = guardian
        self.step = "set up"

    def run(self, error_pipe: int) -> None:
        """Execute the program, or report the error and exit. Never returns."""
        try:
            self._detach_from_guardian()
            self._apply_limits()
            self._switch_user()
            self._die_with_guardian()
            self._set_up_files()
            self._execute()
        except OSError as error:
            self._report(error_pipe, error.errno or 0, error.strerror)
        except BaseException as error:  # noqa: BLE001 - after any error this process must exit, not become a second guardian
            self._report(error_pipe, 0, str(error) or type(error).__name__)
        finally:
            os._exit(_SPAWN_FAILED)

    def _report(self, error_pipe: int, number: int, reason: str | None) -> None:
        os.write(
            error_pipe, f"{number} cannot {self.step}: {reason}".encode(errors="replace")[:4096]
        )

    def _detach_from_guardian(self) -> None:
        os.setsid()
        if self.cgroup is not None:
            self._enter(self.cgroup)
        _reset_signals()

    def _enter(self, cgroup: Cgroup) -> None:
        try:
            cgroup.enter()
        except OSError:
            if self.request.memory_by_cgroup:
                self.step = "enter its cgroup"
                raise

    def _apply_limits(self) -> None:
        """Apply the limits that may need privileges, before the user changes."""
        if (count := self.request.open_files) is not None:
            self.step = f"allow it {count} open files"
            _limit_open_files(count)
        if (nice := self.request.nice) is not None:
            self.step = f"set its nice value to {nice}"
            os.setpriority(os.PRIO_PROCESS, 0, nice)

    def _switch_user(self) -> None:
        user = self.request.identity
        if user is None or os.geteuid() == user["uid"] != 0:
            return
        self.step = f"become user {user['name']!r}"
        os.setgroups(user["groups"])
        os.setgid(user["gid"])
        os.setuid(user["uid"])

    def _die_with_guardian(self) -> None:
        """Set the death signal. This comes after the change of user, which clears it."""
        self.step = "set up"
        die_with_parent(signal.SIGKILL)
        if os.getppid() != self.guardian:
            os._exit(_SPAWN_FAILED)

    def _set_up_files(self) -> None:
        if self.request.umask is not None:
            os.umask(self.request.umask)
        if self.request.cwd is not None:
            self.step = f"enter {self.request.cwd!r}"
            os.chdir(self.request.cwd)
        _install_stdio(self.request.stdio)

    def _execute(self) -> None:
        """Execute the program.

        The data limit is set last: this process may already use more than the limit.
        """
        self.step = f"execute {self.request.argv[0]!r}"
        if self.request.memory is not None and not self.request.memory_by_cgroup:
            _limit_data(self.request.memory)
        os.execvpe(self.request.argv[0], self.request.argv, self.request.env)


@cache
def _non_default_signals() -> list[int]:
    """Return the signals that are not at their default here.

    Cached: checking all signals takes a third of the time from fork to exec.
    """
    return [
        number for number in signal.valid_signals() if signal.getsignal(number) != signal.SIG_DFL
    ]


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in _non_default_signals():
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _install_stdio(stdio: tuple[int, ...]) -> None:
    """Install the descriptors as 0, 1 and 2; copies keep one from overwriting another."""
    copies = [
        os.dup(descriptor) if descriptor in _STDIO_DESCRIPTORS else descriptor
        for descriptor in stdio
    ]
    for place, descriptor in enumerate(copies):
        os.dup2(descriptor, place, inheritable=True)


def _limit_open_files(count: int) -> None:
    """Limit the open descriptors; raises PermissionError if the hard limit is lower."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))
    except ValueError:
        raise PermissionError(errno.EPERM, f"no more than {most} are allowed here") from None


def _limit_data(amount: int) -> None:
    """Limit the bytes of data of each process.

    The address space stays unlimited: some runtimes reserve gigabytes of it without using them.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (amount, amount))
