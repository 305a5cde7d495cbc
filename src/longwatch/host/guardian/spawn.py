"""From a request to a running child: fork, new session, cgroup, mark, death signal, exec.

Between fork and exec runs plain Python, which is safe because the guardian has one thread. How the exec went comes back through a
pipe that closes itself on success, so the guardian never waits for it.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import NoReturn

from longwatch.host.guardian.cgroups import Cgroup
from longwatch.host.guardian.kernel import die_with_parent
from longwatch.host.guardian.tree import MARK
from longwatch.host.guardian.wire import Message

_SPAWN_FAILED = 127
_STANDARD = range(3)


class Request:
    """What to start: argv, environment, working directory, owner mark, and the descriptors that become 0, 1 and 2."""

    def __init__(self, message: Message, stdio: tuple[int, ...]) -> None:
        self.argv: list[str] = message["argv"]
        self.env: dict[str, str] = {**message["env"], MARK: message["mark"]}
        self.cwd: str | None = message["cwd"]
        self.stdio = stdio


def spawn(request: Request, cgroup: Cgroup | None) -> tuple[int, int]:
    """Fork the child; returns its pid and the read end of the pipe that tells how its exec went."""
    verdict, report = os.pipe()
    guardian = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os.close(verdict)
        os.close(report)
        raise
    if pid == 0:
        _become(request, cgroup, guardian, report)
    os.close(report)
    return pid, verdict


def exec_error(verdict: int) -> tuple[int, str] | None:
    """What the pipe says once it can be read: None after a good exec, else the errno and what could not be done."""
    text = os.read(verdict, 4096).decode(errors="replace")
    if not text:
        return None
    number, _, what = text.partition(" ")
    return int(number), what


def _become(request: Request, cgroup: Cgroup | None, guardian: int, report: int) -> NoReturn:
    """In the child: turn into the program, or say why not. Never returns."""
    doing = "set up"
    try:
        os.setsid()
        if cgroup is not None:
            with suppress(OSError):
                cgroup.enter()
        _default_signals()
        die_with_parent(signal.SIGKILL)
        if os.getppid() != guardian:
            os._exit(_SPAWN_FAILED)
        if request.cwd is not None:
            doing = f"enter {request.cwd!r}"
            os.chdir(request.cwd)
        _take_stdio(request.stdio)
        doing = f"execute {request.argv[0]!r}"
        os.execvpe(request.argv[0], request.argv, request.env)
    except OSError as error:
        os.write(report, f"{error.errno} cannot {doing}: {os.strerror(error.errno or 0)}".encode(errors="replace")[:4096])
    except BaseException as error:  # noqa: BLE001 - whatever it is, this process must not go on as a second guardian
        os.write(report, f"0 cannot {doing}: {error}".encode(errors="replace")[:4096])
    finally:
        os._exit(_SPAWN_FAILED)


def _default_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in range(1, signal.NSIG):
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _take_stdio(stdio: tuple[int, ...]) -> None:
    """Put the descriptors in their places; the high copies keep one from overwriting another."""
    copies = [os.dup(descriptor) if descriptor in _STANDARD else descriptor for descriptor in stdio]
    for place, descriptor in enumerate(copies):
        os.dup2(descriptor, place, inheritable=True)
