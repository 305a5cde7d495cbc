from __future__ import annotations

import array
import os
import select
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from guardian_fixture import TIMEOUT, running_guardian
from leaks import no_descriptor_leaks
from longwatch.errors import UsageError
from longwatch.host.loop import EventLoopThread
from longwatch.supervisor.notify_socket import Notice, NotifySocket
from polling import eventually

NOBODY = 65534
SEND = """
import os, socket, sys
if len(sys.argv) > 2:
    os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
ours = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
try:
    ours.sendto(sys.argv[1].encode(), os.environ["NOTIFY_SOCKET"])
except OSError as error:
    sys.exit(error.errno)
"""
BARRIER = """
import array, os, select, socket
ours = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
theirs, kept = os.pipe()
ours.sendmsg(
    [b"BARRIER=1"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [kept]))], 0,
    os.environ["NOTIFY_SOCKET"]
)
os.close(kept)
os.read(theirs, 1)
print("passed")
"""


class NotifyListener:
    """A notify socket on a loop, for a test that is not on it."""

    def __init__(self, loop: EventLoopThread, path: Path, *, uid: int | None = None) -> None:
        self.notices: list[Notice] = []
        self.socket = NotifySocket(path, self.notices.append, uid=uid)
        self._loop = loop

    def run_on_loop(self, *acts: Callable[[], object]) -> None:
        """Act on the loop, all in one turn of it."""

        async def acted() -> None:
            for act in acts:
                act()

        self._loop.call(acted(), timeout=TIMEOUT)

    def wait_for_notices(self, count: int) -> list[Notice]:
        assert eventually(lambda: count <= len(self.notices)), self.notices
        return self.notices

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], **self.socket.environment(None)}

    def send(self, *words: bytes) -> None:
        """From this very process."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
            for word in words:
                ours.sendto(word, str(self.socket.path))


@pytest.fixture
def loop() -> Iterator[EventLoopThread]:
    with EventLoopThread() as running:
        yield running


@pytest.fixture
def listener(loop: EventLoopThread, tmp_path: Path) -> Iterator[NotifyListener]:
    opened = NotifyListener(loop, tmp_path / "notify")
    opened.run_on_loop(opened.socket.open)
    yield opened
    opened.run_on_loop(opened.socket.close)


def sent_by_python(words: str, environment: dict[str, str], *more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-I", "-S", "-c", SEND, words, *more], env=environment)


def test_what_a_process_says_is_heard_with_its_pid(listener: NotifyListener) -> None:
    sender = sent_by_python("READY=1\nSTATUS=up and running", listener.environment)
    assert 0 == sender.wait(TIMEOUT)
    assert [
        Notice(pid=sender.pid, ready=True, status="up and running")
    ] == listener.wait_for_notices(1)


def test_a_shell_script_can_speak_through_a_command_it_runs(listener: NotifyListener) -> None:
    script = f"{sys.executable} -I -S -c '{SEND}' STOPPING=1; exit 7"
    assert (
        7
        == subprocess.run(
            ["sh", "-c", script], env=listener.environment, timeout=TIMEOUT, check=False
        ).returncode
    )
    assert [True] == [notice.stopping for notice in listener.wait_for_notices(1)]


def test_a_child_of_the_guardian_and_its_own_child_are_heard(tmp_path: Path) -> None:
    code = """
import socket
def tell(words):
    ours = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.sendto(words, os.environ["NOTIFY_SOCKET"])
tell(b"READY=1")
if os.fork() == 0:
    tell(b"WATCHDOG=1")
    os._exit(0)
os.wait()
say("told", os.environ["WATCHDOG_USEC"])
"""
    with running_guardian(cgroups=False) as opened:
        listener = NotifyListener(opened.loop, tmp_path / "notify")
        listener.run_on_loop(listener.socket.open)
        child = opened.spawn(code, env=listener.socket.environment(2.5))
        assert ["2500000"] == child.out.words_after("told")
        ready, beat = listener.wait_for_notices(2)
        child.wait()
        listener.run_on_loop(listener.socket.close)
    assert Notice(pid=child.pid, ready=True) == ready
    assert beat.beat
    assert child.pid != beat.pid


def test_datagrams_are_heard_one_by_one_in_their_order(listener: NotifyListener) -> None:
    listener.send(*[f"STATUS={number}".encode() for number in range(200)])
    assert [str(number) for number in range(200)] == [
        notice.status for notice in listener.wait_for_notices(200)
    ]


@pytest.mark.parametrize(
    "nonsense",
    [b"", b"\xff\x00\xfe", b"X=1", b"MAINPID=1", b"STATUS=" + b"x" * 4090, b"READY=1\n" * 10_000],
)
def test_datagrams_that_are_bad_or_too_long_are_passed_over(
    listener: NotifyListener, nonsense: bytes
) -> None:
    listener.send(nonsense, b"READY=1")
    assert [Notice(pid=os.getpid(), ready=True)] == listener.wait_for_notices(1)


def test_a_datagram_of_4096_bytes_is_taken(listener: NotifyListener) -> None:
    listener.send(b"READY=1\nX=".ljust(4096, b"x"))
    assert [Notice(pid=os.getpid(), ready=True)] == listener.wait_for_notices(1)


def test_descriptors_that_come_along_are_closed_at_once_and_never_ours(
    listener: NotifyListener,
) -> None:
    with no_descriptor_leaks():
        theirs, kept = os.pipe()
        rights = array.array("i", [kept] * 100)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
            for _ in range(20):
                told = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
                ours.sendmsg([b"FDSTORE=1\nWATCHDOG=1"], told, 0, str(listener.socket.path))
        os.close(kept)
        with os.fdopen(theirs, "rb") as pipe:
            assert [pipe] == select.select([pipe], [], [], TIMEOUT)[0]
            assert b"" == pipe.read()
        assert [Notice(pid=os.getpid(), beat=True)] * 20 == listener.wait_for_notices(20)


def test_whoever_waits_at_a_barrier_gets_past_it(listener: NotifyListener) -> None:
    passed = subprocess.run(
        [sys.executable, "-I", "-S", "-c", BARRIER],
        env=listener.environment,
        capture_output=True,
        timeout=TIMEOUT,
        check=True,
    )
    assert b"passed\n" == passed.stdout
    assert [] == listener.notices


def test_a_flood_leaves_the_loop_its_turns(loop: EventLoopThread, tmp_path: Path) -> None:
    """Each word that is heard is said again at once: there is always one more to read."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        heard = 0

        def echo(notice: Notice) -> None:
            nonlocal heard
            heard += 1
            ours.sendto(b"WATCHDOG=1", str(tmp_path / "notify"))

        flooded = NotifySocket(tmp_path / "notify", echo)
        listener = NotifyListener(loop, tmp_path / "unused")
        listener.run_on_loop(
            flooded.open, lambda: ours.sendto(b"WATCHDOG=1", str(tmp_path / "notify"))
        )
        assert eventually(lambda: 1000 < heard)
        listener.run_on_loop(flooded.close)


def test_a_listener_may_close_the_socket(loop: EventLoopThread, tmp_path: Path) -> None:
    heard: list[Notice] = []

    def once(notice: Notice) -> None:
        heard.append(notice)
        single.close()

    single = NotifySocket(tmp_path / "notify", once)
    listener = NotifyListener(loop, tmp_path / "notify")
    listener.run_on_loop(single.open, lambda: listener.send(b"READY=1", b"WATCHDOG=1"))
    assert eventually(lambda: not single.path.exists())
    assert [Notice(pid=os.getpid(), ready=True)] == heard


def test_what_was_queued_before_a_start_can_be_thrown_away(listener: NotifyListener) -> None:
    listener.run_on_loop(
        lambda: listener.send(b"READY=1", b"STATUS=of the last run", b"WATCHDOG=1"),
        listener.socket.drain,
    )
    listener.send(b"STATUS=of this run")
    assert [Notice(pid=os.getpid(), status="of this run")] == listener.wait_for_notices(1)


def test_draining_a_socket_that_is_not_open_is_nothing(
    loop: EventLoopThread, tmp_path: Path
) -> None:
    listener = NotifyListener(loop, tmp_path / "notify")
    listener.run_on_loop(listener.socket.drain)


def test_the_environment_names_the_socket_and_the_watchdog_only_with_an_interval(
    tmp_path: Path,
) -> None:
    path = tmp_path / "notify"
    notify = NotifySocket(path, lambda notice: None)
    assert {"NOTIFY_SOCKET": str(path)} == notify.environment(None)
    assert {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "30000000"} == notify.environment(30.0)
    assert {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "1"} == notify.environment(1e-9)


def test_a_relative_path_is_told_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert {"NOTIFY_SOCKET": str(tmp_path / "n")} == NotifySocket(
        Path("n"), lambda notice: None
    ).environment(None)


def test_the_socket_is_ours_alone_and_goes_away_when_closed(listener: NotifyListener) -> None:
    assert 0o600 == stat.S_IMODE(listener.socket.path.stat().st_mode)
    assert os.getuid() == listener.socket.path.stat().st_uid
    listener.run_on_loop(listener.socket.close)
    assert not listener.socket.path.exists()


def test_open_and_close_are_idempotent_and_it_can_be_opened_again(listener: NotifyListener) -> None:
    with no_descriptor_leaks(allowed=1):  # the socket itself, which is another one now
        listener.run_on_loop(
            listener.socket.open,
            listener.socket.close,
            listener.socket.close,
            listener.socket.open,
            listener.socket.open,
        )
        listener.send(b"READY=1")
        assert [Notice(pid=os.getpid(), ready=True)] == listener.wait_for_notices(1)


def test_a_socket_that_was_left_behind_is_replaced(loop: EventLoopThread, tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as left:
        left.bind(str(path))
    listener = NotifyListener(loop, path)
    listener.run_on_loop(listener.socket.open, lambda: listener.send(b"READY=1"))
    assert [Notice(pid=os.getpid(), ready=True)] == listener.wait_for_notices(1)
    listener.run_on_loop(listener.socket.close)


def test_something_else_at_the_path_is_left_alone_and_told(
    loop: EventLoopThread, tmp_path: Path
) -> None:
    path = tmp_path / "notify"
    path.write_text("mine")
    listener = NotifyListener(loop, path)
    with pytest.raises(
        UsageError, match=f"^the notify socket {path} cannot be created: Address already in use$"
    ):
        listener.run_on_loop(listener.socket.open)
    assert "mine" == path.read_text()


def test_a_directory_that_is_missing_is_told(loop: EventLoopThread, tmp_path: Path) -> None:
    listener = NotifyListener(loop, tmp_path / "no" / "notify")
    with (
        no_descriptor_leaks(),
        pytest.raises(UsageError, match=r"cannot be created: No such file or directory$"),
    ):
        listener.run_on_loop(listener.socket.open)


def test_a_path_of_107_bytes_is_the_longest(loop: EventLoopThread, tmp_path: Path) -> None:
    directory = Path(tempfile.mkdtemp(dir="/tmp"))
    longest = directory / ("x" * (107 - len(os.fsencode(directory)) - 1))
    listener = NotifyListener(loop, longest)
    listener.run_on_loop(listener.socket.open, lambda: listener.send(b"READY=1"))
    assert [Notice(pid=os.getpid(), ready=True)] == listener.wait_for_notices(1)
    listener.run_on_loop(listener.socket.close)
    too_long = NotifyListener(loop, longest.with_name(longest.name + "x"))
    with pytest.raises(UsageError, match="longer than 107 bytes"):
        too_long.run_on_loop(too_long.socket.open)
    directory.rmdir()


@pytest.fixture
def passable() -> Iterator[Path]:
    """A directory that others may pass, with none above it that they may not."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as somebody else")
    directory = Path(tempfile.mkdtemp(dir="/tmp"))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory)


def test_another_user_may_speak_when_the_socket_is_made_for_it(
    loop: EventLoopThread, passable: Path
) -> None:
    listener = NotifyListener(loop, passable / "notify", uid=NOBODY)
    listener.run_on_loop(listener.socket.open)
    sender = sent_by_python("READY=1", listener.environment, str(NOBODY))
    assert 0 == sender.wait(TIMEOUT)
    assert [Notice(pid=sender.pid, ready=True)] == listener.wait_for_notices(1)
    assert (0o600, NOBODY) == (
        stat.S_IMODE(listener.socket.path.stat().st_mode),
        listener.socket.path.stat().st_uid,
    )
    listener.send(b"WATCHDOG=1")  # root may in any case
    assert 2 == len(listener.wait_for_notices(2))
    listener.run_on_loop(listener.socket.close)


@pytest.mark.parametrize("uid", [None, 65533], ids=["made for us", "made for a third"])
def test_another_user_is_refused_when_it_is_not(
    loop: EventLoopThread, passable: Path, uid: int | None
) -> None:
    listener = NotifyListener(loop, passable / "notify", uid=uid)
    listener.run_on_loop(listener.socket.open)
    sender = sent_by_python("READY=1", listener.environment, str(NOBODY))
    assert 13 == sender.wait(TIMEOUT)
    listener.send(b"WATCHDOG=1")
    assert [Notice(pid=os.getpid(), beat=True)] == listener.wait_for_notices(1)
    listener.run_on_loop(listener.socket.close)
