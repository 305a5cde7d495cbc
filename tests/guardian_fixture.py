"""A guardian at work, and children for it whose every process can be found again: each bears a
token in its command line.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from longwatch.core.clock import Clock
from longwatch.core.events.base import Events
from longwatch.host.guardian.cgroups import Cgroups
from longwatch.host.guardian_client import GuardianClient
from longwatch.host.loop import EventLoopThread
from longwatch.host.process import Child, ProcessEnd, ProcessSpec, StopPolicy
from longwatch.testing import RecordingObserver

TIMEOUT = 30.0

PRELUDE = """
import os, signal, sys

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def rest():
    signal.alarm(120)  # a test that went wrong leaves nothing for good
    while True:
        signal.pause()

def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

def orphan(act):
    '''Run it in a grandchild with a session of its own, whose parent is gone when this returns.'''
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        act()
        os._exit(0)
    os.waitpid(pid, 0)

def nameless():
    '''Like rest, after an exec that kept nothing of the environment.'''
    code = "import signal; signal.signal(15, signal.SIG_IGN); signal.alarm(120); \
        print('nameless', flush=True)"
    code += "\\nwhile 1: signal.pause()"
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", code, *sys.argv[1:]], {})

def hop(*, setsid, hops=20_000):
    '''Fork and exit, again and again: one process that never stays; the population never grows and
    the hops are counted.'''
    for _ in range(hops):
        if setsid:
            os.setsid()
        if os.fork():
            os._exit(0)
    os._exit(0)

def hoppers(count, *, setsid):
    for _ in range(min(count, 20)):
        if os.fork() == 0:
            hop(setsid=setsid)
"""


class LineSink:
    """A sink that keeps everything, and lets a test wait for a text."""

    congested = False

    def __init__(self) -> None:
        self.data = b""
        self._changed = threading.Condition()

    def write(self, data: bytes) -> bool:
        with self._changed:
            self.data += data
            self._changed.notify_all()
        return True

    def on_drained(self, callback: Callable[[], None]) -> None:
        callback()

    def give_up(self) -> None:
        self.congested = False

    def wait_for_text(self, text: str) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: text.encode() in self.data, TIMEOUT):
                raise AssertionError(f"{text!r} was not said; this was: {self.data[-2000:]!r}")

    def words_after(self, text: str) -> list[str]:
        """The words behind this one in the first line that begins with it."""
        self.wait_for_text(f"{text} ")
        return next(
            line.split()[1:]
            for line in self.data.decode().splitlines()
            if line.startswith(f"{text} ")
        )


class SyncChild:
    """A child, for a test that is not on the loop."""

    def __init__(self, fixture: GuardianFixture, child: Child, out: LineSink, token: str) -> None:
        self._fixture = fixture
        self.child = child
        self.out = out
        self.token = token

    @property
    def pid(self) -> int:
        return self.child.pid

    def wait(self) -> ProcessEnd:
        return self._fixture.loop.call(self.child.wait(), timeout=TIMEOUT)

    def stop(self, policy: StopPolicy) -> ProcessEnd:
        return self._fixture.loop.call(self.child.stop(policy), timeout=TIMEOUT)

    def start_stop(self, policy: StopPolicy) -> Future[ProcessEnd]:
        return self._fixture.loop.spawn(self.child.stop(policy))

    def signal(self, signum: int, *, group: bool = True) -> None:
        self._fixture.run_on_loop(lambda: self.child.signal(signum, group=group))

    def kill(self) -> ProcessEnd:
        self._fixture.run_on_loop(self.child.kill)
        return self.wait()

    def survivors(self) -> list[int]:
        return pids_with_token(self.token)


class GuardianFixture:
    """A started guardian and what is needed to talk to it from a test."""

    def __init__(self, guardian: GuardianClient, observer: RecordingObserver) -> None:
        self.guardian = guardian
        self.loop = guardian.loop
        self.observer = observer
        self.loop_errors: list[str] = []
        self.tokens: list[str] = []
        self.loop.loop().set_exception_handler(
            lambda _, context: self.loop_errors.append(str(context))
        )

    def spawn(self, code: str, *arguments: str, **spec: Any) -> SyncChild:
        """Start a small Python program that knows the words of PRELUDE; its standard output is
        kept unless told otherwise.
        """
        token = f"token-{secrets.token_hex(8)}"
        self.tokens.append(token)
        argv = [sys.executable, "-I", "-S", "-c", PRELUDE + dedent(code), token, *arguments]
        return self.start(argv, token=token, **spec)

    def start(self, argv: list[str], *, token: str = "-", **spec: Any) -> SyncChild:
        out = LineSink()
        whole = {"env": {"PATH": os.defpath}, "stdout": out, "stderr": 2, **spec}
        child = self.loop.call(
            self.guardian.spawn(ProcessSpec(argv=argv, **whole)), timeout=TIMEOUT
        )
        return SyncChild(self, child, out, token)

    def run_on_loop(self, work: Callable[[], object]) -> None:
        """Act on the loop."""

        async def acted() -> None:
            work()

        self.loop.call(acted(), timeout=TIMEOUT)

    @property
    def pid(self) -> int:
        assert self.guardian.pid is not None
        return self.guardian.pid


@contextmanager
def running_guardian(
    *, cgroups: bool, clock: Clock | None = None, on_lost: Callable[[], None] = lambda: None
) -> Iterator[GuardianFixture]:
    """A guardian for one test. All it has started must be gone in the end, and is by force if
    not; nothing was complained of.
    """
    observer = RecordingObserver()
    with EventLoopThread() as loop:
        guardian = GuardianClient(
            loop, clock=clock, events=Events(observer), cgroups=cgroups, on_lost=on_lost
        )
        with guardian:
            opened = GuardianFixture(guardian, observer)
            try:
                yield opened
            finally:
                guardian.stop()
                left = [pid for token in opened.tokens for pid in pids_with_token(token)]
                _kill_all(left)
    assert [] == left
    assert [] == opened.loop_errors


def _kill_all(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def pids_with_token(token: str) -> list[int]:
    """The living processes that have this token in their command line; zombies have none."""
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and token in command_line(entry)
    ]


def command_line(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_text(errors="replace")
    except OSError:
        return ""


def proc_state(pid: int) -> str:
    """The letter of /proc for it: R, S, T, Z, …; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def is_gone(pid: int) -> bool:
    return proc_state(pid) in {"", "Z", "X"}


def require_cgroups() -> None:
    """Go on only where a guardian can make cgroups."""
    found = Cgroups.open(secrets.token_hex(8))
    if found is not None:
        found.remove()
    elif os.environ.get("CI"):
        pytest.fail("no cgroup v2 can be made here", pytrace=False)
    else:
        pytest.skip("no cgroup v2 can be made here")


def cgroup_folders(host_pid: int) -> set[Path]:
    """The cgroups made for that host, and those inside."""
    found = (
        Path(folder) for folder, _, _ in os.walk("/sys/fs/cgroup")
    )  # which passes over what others remove meanwhile
    return {
        folder
        for folder in found
        if any(part.startswith(f"longwatch-{host_pid}-") for part in folder.parts)
    }
