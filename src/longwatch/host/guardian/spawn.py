"""From a request to a running child: fork, new session, cgroup, limits, user, death signal, exec.

Between fork and exec runs plain Python, which is safe because the guardian has one thread. How the
exec went comes back through a pipe that closes itself on success, so the guardian never waits for
it.
"""

from __future__ import annotations

import os
import signal
import warnings  # noqa: F401 - `os.execvpe` imports it: better once here than in every child
from contextlib import suppress
from functools import cache

from longwatch.host.guardian.cgroups import Cgroup
from longwatch.host.guardian.kernel import die_with_parent
from longwatch.host.guardian.limits import limit_data, limit_open_files
from longwatch.host.guardian.tree import MARK
from longwatch.host.guardian.wire import Message

_SPAWN_FAILED = 127
_STANDARD = range(3)


class Request:
    """What to start: argv, environment, working directory, owner mark, limits, user, and the
    descriptors that become 0, 1 and 2.
    """

    def __init__(self, message: Message, stdio: tuple[int, ...]) -> None:
        self.argv: list[str] = message["argv"]
        self.env: dict[str, str] = {**message["env"], MARK: message["mark"]}
        self.cwd: str | None = message["cwd"]
        self.umask: int | None = message["umask"]
        self.identity: Message | None = message["identity"]
        self.memory: int | None = message["limits"]["memory"]
        self.open_files: int | None = message["limits"]["open_files"]
        self.nice: int | None = message["limits"]["nice"]
        self.caged = False
        """Whether its memory is limited by its cgroup: then it has to be in it, and needs no
        other limit.
        """
        self.stdio = stdio


def spawn(request: Request, cgroup: Cgroup | None) -> tuple[int, int]:
    """Fork the child; returns its pid and the read end of the pipe that tells how its exec went."""
    verdict, report = os.pipe()
    guardian = os.getpid()
    _changed_signals()
    try:
        pid, inside = _fork(cgroup)
    except OSError:
        os.close(verdict)
        os.close(report)
        raise
    if pid == 0:
        Becoming(request, None if inside else cgroup, guardian).run(report)
    os.close(report)
    return pid, verdict


def _fork(cgroup: Cgroup | None) -> tuple[int, bool]:
    """Fork, and whether the child is in the cgroup already."""
    if cgroup is not None:
        with suppress(OSError):
            pid = cgroup.fork()
            if pid is not None:
                return pid, True
    return os.fork(), False


def exec_error(verdict: int) -> tuple[int, str] | None:
    """What the pipe says once it can be read: None after a good exec, else the errno and what
    could not be done.
    """
    text = os.read(verdict, 4096).decode(errors="replace")
    if not text:
        return None
    number, _, what = text.partition(" ")
    return int(number), what


class Becoming:
    """The forked child on its way to its program, step by step; `doing` says what could not be
    done if the present one fails.
    """

    def __init__(self, request: Request, cgroup: Cgroup | None, guardian: int) -> None:
        self.request = request
        self.cgroup = cgroup
        self.guardian = guardian
        self.doing = "set up"

    def run(self, report: int) -> None:
        """Turn into the program, or say why not. Never returns."""
        try:
            self._part_from_guardian()
            self._take_limits()
            self._take_identity()
            self._die_with_guardian()
            self._take_place()
            self._execute()
        except OSError as error:
            self._report(report, error.errno or 0, error.strerror)
        except BaseException as error:  # noqa: BLE001 - whatever it is, this process must not go on as a second guardian
            self._report(report, 0, str(error) or type(error).__name__)
        finally:
            os._exit(_SPAWN_FAILED)

    def _report(self, report: int, number: int, reason: str | None) -> None:
        os.write(report, f"{number} cannot {self.doing}: {reason}".encode(errors="replace")[:4096])

    def _part_from_guardian(self) -> None:
        os.setsid()
        if self.cgroup is not None:
            self._enter(self.cgroup)
        _default_signals()

    def _enter(self, cgroup: Cgroup) -> None:
        try:
            cgroup.enter()
        except OSError:
            if self.request.caged:
                self.doing = "enter its cgroup"
                raise

    def _take_limits(self) -> None:
        """Those that may need privileges, which the next step may give up."""
        if (count := self.request.open_files) is not None:
            self.doing = f"allow it {count} open files"
            limit_open_files(count)
        if (nice := self.request.nice) is not None:
            self.doing = f"set its nice value to {nice}"
            os.setpriority(os.PRIO_PROCESS, 0, nice)

    def _take_identity(self) -> None:
        user = self.request.identity
        if user is None or os.geteuid() == user["uid"] != 0:
            return
        self.doing = f"become user {user['name']!r}"
        os.setgroups(user["groups"])
        os.setgid(user["gid"])
        os.setuid(user["uid"])

    def _die_with_guardian(self) -> None:
        """Only now: the kernel forgets it when the user changes."""
        self.doing = "set up"
        die_with_parent(signal.SIGKILL)
        if os.getppid() != self.guardian:
            os._exit(_SPAWN_FAILED)

    def _take_place(self) -> None:
        if self.request.umask is not None:
            os.umask(self.request.umask)
        if self.request.cwd is not None:
            self.doing = f"enter {self.request.cwd!r}"
            os.chdir(self.request.cwd)
        _take_stdio(self.request.stdio)

    def _execute(self) -> None:
        """The limit on data comes last: what runs here may have more of it already."""
        self.doing = f"execute {self.request.argv[0]!r}"
        if self.request.memory is not None and not self.request.caged:
            limit_data(self.request.memory)
        os.execvpe(self.request.argv[0], self.request.argv, self.request.env)


@cache
def _changed_signals() -> list[int]:
    """Those that are not at their default here. Found out once: to go through all of them is a
    third of a child's way to exec.
    """
    return [
        number for number in signal.valid_signals() if signal.getsignal(number) != signal.SIG_DFL
    ]


def _default_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in _changed_signals():
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _take_stdio(stdio: tuple[int, ...]) -> None:
    """Put the descriptors in their places; the high copies keep one from overwriting another."""
    copies = [os.dup(descriptor) if descriptor in _STANDARD else descriptor for descriptor in stdio]
    for place, descriptor in enumerate(copies):
        os.dup2(descriptor, place, inheritable=True)
