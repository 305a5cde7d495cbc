from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leaks import no_leaks
from longwatch.core.clock import SystemClock, Wakeup
from longwatch.core.fake_clock import FakeClock
from longwatch.errors import StoreClosedError, StoreUnreachableError
from longwatch.host.runtime_dir import runtime_directory
from longwatch.mailbox import open_mailbox
from longwatch.store.notify.local import (
    MAX_DATAGRAM_BYTES,
    LocalNotifier,
    PeerSockets,
)
from longwatch.store.sqlite.database import SqliteDatabase
from polling import eventually
from snippet import run_snippet

NEVER = 10_000.0
TIMEOUT = 30.0

LISTENER = """
    import os
    from pathlib import Path
    from longwatch.core.clock import SystemClock, Wakeup
    from longwatch.store.notify.local import LocalNotifier

    wakeups, wakeup = LocalNotifier(Path({path!r}), wake_interval=10_000.0), Wakeup()
    wakeups.listen("letters", wakeup)
    print(wakeups.socket_path, flush=True)
    print("heard" if SystemClock().wait(wakeup, 30) else "nothing", flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def runtime_root(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runtime directory of this test alone."""
    base = tmp_path_factory.mktemp("r")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    return base / f"longwatch-{os.getuid()}"


@pytest.fixture
def wakeups(tmp_path: Path) -> Iterator[Callable[..., LocalNotifier]]:
    """Makes notifiers over one file that wake nobody without a notification, unless asked to."""
    made: list[LocalNotifier] = []

    def make(name: str = "some.db", *, wake_interval: float = NEVER) -> LocalNotifier:
        made.append(LocalNotifier(tmp_path / name, wake_interval=wake_interval))
        return made[-1]

    yield make
    for each in made:
        each.close()


def was_notified(wakeup: Wakeup) -> bool:
    return SystemClock().wait(wakeup, TIMEOUT)


class TestANotification:
    def test_wakes_who_listens_to_that_channel_and_nobody_else(
        self, wakeups: Callable[..., LocalNotifier]
    ) -> None:
        hints, here, elsewhere = wakeups(), Wakeup(), Wakeup()
        hints.listen("here", here)
        hints.listen("elsewhere", elsewhere)
        hints.notify(["here"])
        assert (True, False) == (here.is_set(), elsewhere.is_set())

    def test_reaches_another_process(
        self, wakeups: Callable[..., LocalNotifier], tmp_path: Path
    ) -> None:
        with run_snippet(LISTENER.format(path=str(tmp_path / "some.db"))) as child:
            assert child.read_line()
            wakeups().notify(["letters"])
            assert "heard" == child.read_line()

    def test_reaches_another_database_over_the_same_file_in_this_process(
        self, tmp_path: Path
    ) -> None:
        sender, receiver = (SqliteDatabase(tmp_path / "some.db") for _ in range(2))
        wakeup = Wakeup()
        receiver.write(lambda _: None)
        assert receiver._handle is not None
        receiver._handle.notifier.listener.wake_interval = NEVER
        receiver.listen("letters", wakeup)
        sender.write(lambda tx: tx.notify("letters"))
        assert was_notified(wakeup)
        sender.close()
        receiver.close()

    def test_wakes_a_receive_in_another_process(self, tmp_path: Path) -> None:
        code = f"""
            from longwatch.mailbox import open_mailbox
            mailbox = open_mailbox("sqlite:///{tmp_path}/some.db", "letters")
            mailbox.stats()
            print("ready", flush=True)
            [message] = mailbox.receive(wait_time_seconds=30)
            print(message.body, flush=True)
        """
        with run_snippet(code) as child:
            assert "ready" == child.read_line()
            database = SqliteDatabase(tmp_path / "some.db")
            open_mailbox(database, "letters").send("hello")
            assert "hello" == child.read_line()
            assert (0, "") == child.wait()
            database.close()

    def test_of_another_file_is_not_heard(self, wakeups: Callable[..., LocalNotifier]) -> None:
        wakeup, last = Wakeup(), Wakeup()
        listener = wakeups()
        listener.listen("letters", wakeup)
        listener.listen("last", last)
        wakeups("other.db").notify(["letters"])
        wakeups().notify(["last"])
        assert was_notified(last)
        assert not wakeup.is_set()

    def test_reaches_a_listener_that_came_just_after_the_last_one(
        self, wakeups: Callable[..., LocalNotifier]
    ) -> None:
        """The list of listeners is kept for a while, and no newcomer may be missed for it."""
        sender = wakeups()
        for _ in range(50):
            sender.notify(["letters"])
            wakeup = Wakeup()
            listener = wakeups()
            listener.listen("letters", wakeup)
            sender.notify(["letters"])
            assert was_notified(wakeup)
            listener.close()

    def test_of_more_than_fits_wakes_everybody(self, wakeups: Callable[..., LocalNotifier]) -> None:
        wakeup = Wakeup()
        wakeups().listen("letters", wakeup)
        wakeups().notify([f"channel-{number:0100}" for number in range(MAX_DATAGRAM_BYTES // 100)])
        assert was_notified(wakeup)

    def test_does_not_block_on_a_listener_that_does_not_listen(
        self, wakeups: Callable[..., LocalNotifier], runtime_root: Path
    ) -> None:
        sender = wakeups()
        deaf = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        deaf.bind(
            str(
                Path(sender.socket_path).with_name(
                    Path(sender.socket_path).name.split("-")[0] + "-deaf"
                )
            )
        )
        for _ in range(2000):
            sender.notify(["letters"])
        deaf.close()

    def test_removes_the_socket_of_a_listener_that_died(
        self, wakeups: Callable[..., LocalNotifier], tmp_path: Path
    ) -> None:
        with run_snippet(LISTENER.format(path=str(tmp_path / "some.db"))) as child:
            socket_of_the_dead = Path(child.read_line())
        assert socket_of_the_dead.exists()
        wakeups().notify(["letters"])
        assert not socket_of_the_dead.exists()

    def test_goes_nowhere_when_the_directory_is_gone(
        self, wakeups: Callable[..., LocalNotifier], runtime_root: Path
    ) -> None:
        sender = wakeups()
        runtime_root.rmdir()
        sender.notify(["letters"])


class TestTheNet:
    def test_wakes_a_listener_whose_hint_got_lost(
        self, wakeups: Callable[..., LocalNotifier]
    ) -> None:
        wakeup = Wakeup()
        wakeups(wake_interval=0.01).listen("letters", wakeup)
        assert was_notified(wakeup)

    def test_is_below_a_busy_line_too(self, wakeups: Callable[..., LocalNotifier]) -> None:
        """Hints for one channel that come all the time do not keep the net from the others."""
        quiet, over = Wakeup(), threading.Event()
        wakeups(wake_interval=0.05).listen("quiet", quiet)
        sender = wakeups()

        def chatter() -> None:
            while not over.is_set():
                sender.notify(["busy"])

        thread = threading.Thread(target=chatter)
        thread.start()
        assert was_notified(quiet)
        over.set()
        thread.join()


class TestListening:
    def test_ends_with_what_listen_returned(self, wakeups: Callable[..., LocalNotifier]) -> None:
        hints, wakeup = wakeups(), Wakeup()
        hints.listen("letters", wakeup)()
        hints.notify(["letters"])
        assert not wakeup.is_set()
        assert 0 == len(hints.listener.subscriptions)

    def test_leaves_no_thread_no_descriptor_and_no_socket_after_close(
        self, tmp_path: Path, runtime_root: Path
    ) -> None:
        with no_leaks():
            hints = LocalNotifier(tmp_path / "some.db")
            hints.listen("letters", Wakeup())
            assert 1 == len(list(runtime_root.iterdir()))
            hints.close()
            hints.close()
        assert [] == list(runtime_root.iterdir())

    def test_is_refused_after_close(self, wakeups: Callable[..., LocalNotifier]) -> None:
        hints = wakeups()
        hints.close()
        with pytest.raises(StoreClosedError, match="open it again"):
            hints.listen("letters", Wakeup())

    def test_may_be_closed_by_who_is_woken(self, wakeups: Callable[..., LocalNotifier]) -> None:
        hints, wakeup, closed = wakeups(), Wakeup(), threading.Event()
        wakeup.subscribe(hints.close)
        wakeup.subscribe(closed.set)
        hints.listen("letters", wakeup)
        wakeups().notify(["letters"])
        assert closed.wait(TIMEOUT)

    def test_begins_with_the_first_listener(
        self, wakeups: Callable[..., LocalNotifier], runtime_root: Path
    ) -> None:
        hints, before = wakeups(), set(threading.enumerate())
        hints.notify(["letters"])
        assert (set(), []) == (set(threading.enumerate()) - before, list(runtime_root.iterdir()))

    def test_goes_on_in_the_parent_and_begins_anew_in_a_forked_child(self, tmp_path: Path) -> None:
        code = f"""
            import os
            from pathlib import Path
            from longwatch.core.clock import SystemClock, Wakeup
            from longwatch.store.sqlite.database import SqliteDatabase

            database = SqliteDatabase(Path({str(tmp_path / "some.db")!r}))
            mine = Wakeup()
            database.write(lambda tx: None)
            database._handle.notifier.listener.wake_interval = 10_000.0
            database.listen("to-parent", mine)
            here, there = os.pipe()
            if (pid := os.fork()) == 0:
                wakeup = Wakeup()
                database.listen("to-child", wakeup)
                os.write(there, b"ready")
                heard = SystemClock().wait(wakeup, 30)
                database.write(lambda tx: tx.notify("to-parent"))
                os._exit(0 if heard else 1)
            os.read(here, 5)
            database.write(lambda tx: tx.notify("to-child"))
            print(os.waitpid(pid, 0)[1], SystemClock().wait(mine, 30), flush=True)
        """
        with run_snippet(code) as child:
            assert "0 True" == child.read_line()
            assert 0 == child.wait()[0]


class TestTheDirectory:
    def test_is_this_user_s_alone(
        self, wakeups: Callable[..., LocalNotifier], runtime_root: Path
    ) -> None:
        wakeups().listen("letters", Wakeup())
        [socket_of_mine] = runtime_root.iterdir()
        assert (0o40700, 0o140600) == (runtime_root.stat().st_mode, socket_of_mine.stat().st_mode)

    def test_is_below_the_temporary_one_when_none_is_set(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        monkeypatch.setattr("tempfile.tempdir", "/tmp")
        assert Path("/tmp") / f"longwatch-{os.getuid()}" == runtime_directory()

    def test_is_below_the_temporary_one_when_that_set_is_not_there(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "nowhere"))
        monkeypatch.setattr("tempfile.tempdir", "/tmp")
        assert Path("/tmp") / f"longwatch-{os.getuid()}" == runtime_directory()

    @pytest.mark.parametrize("variable", ["XDG_RUNTIME_DIR", "TMPDIR"])
    def test_is_short_enough_for_a_socket_however_long_its_base(
        self, tmp_path: Path, variable: str
    ) -> None:
        base = tmp_path / ("long" * 20) / ("longer" * 20)
        base.mkdir(parents=True)
        code = f"""
            import os
            os.environ.pop("XDG_RUNTIME_DIR", None)
            os.environ[{variable!r}] = {str(base)!r}
            from pathlib import Path
            from longwatch.core.clock import Wakeup
            from longwatch.store.notify.local import LocalNotifier
            notifier = LocalNotifier(Path("some.db"))
            notifier.listen("letters", Wakeup())
            path = notifier.socket_path
            print(len(os.fsencode(path)) < 108, os.path.exists(path), flush=True)
            notifier.close()
        """
        with run_snippet(code) as child:
            assert "True True" == child.read_line()
            assert (0, "") == child.wait()


class TestTheSocketOfADeadProcess:
    """A process that starts to listen removes it, of whichever database."""

    @staticmethod
    def leave(path: Path) -> Path:
        """A socket that no process has open."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as left:
            left.bind(str(path))
        return path

    def test_is_removed_and_those_of_living_ones_stay(
        self, wakeups: Callable[..., LocalNotifier], runtime_root: Path
    ) -> None:
        wakeups("living.db").listen("letters", Wakeup())
        [living] = runtime_root.iterdir()
        dead = self.leave(runtime_root / "0123456789ab-01234567")
        other = self.leave(runtime_root / "of-another-kind")
        listener = wakeups()
        listener.listen("letters", Wakeup())
        assert {living, other, Path(listener.socket_path)} == set(runtime_root.iterdir())
        assert not dead.exists()

    def test_is_not_taken_for_one_that_is_just_being_made(
        self, wakeups: Callable[..., LocalNotifier], runtime_root: Path
    ) -> None:
        """A socket has its final name only once it is bound; before, its age decides."""
        runtime_root.mkdir(0o700)
        fresh = self.leave(runtime_root / "0123456789ab-01234567.new")
        old = self.leave(runtime_root / "0123456789ab-76543210.new")
        os.utime(old, (0, 0))
        wakeups().listen("letters", Wakeup())
        assert (True, False) == (fresh.exists(), old.exists())

    def test_under_its_first_name_is_no_peer(self, tmp_path: Path) -> None:
        (tmp_path / "x-1").touch()
        (tmp_path / "x-2.new").touch()
        assert [str(tmp_path / "x-1")] == PeerSockets(tmp_path, "x-").paths()


def test_a_listener_whose_socket_was_removed_binds_another(
    wakeups: Callable[..., LocalNotifier], runtime_root: Path
) -> None:
    listener = wakeups(wake_interval=0.01)
    listener.listen("letters", Wakeup())
    shutil.rmtree(runtime_root)
    assert eventually(Path(listener.socket_path).is_socket)


class TestTheListOfPeers:
    """It is read again only when the directory has changed: announcing to nobody is cheap."""

    @pytest.fixture
    def listings(self, monkeypatch: pytest.MonkeyPatch) -> list[object]:
        seen: list[object] = []
        scandir = os.scandir

        def listed(runtime_root: Path) -> object:
            seen.append(runtime_root)
            return scandir(runtime_root)

        monkeypatch.setattr(os, "scandir", listed)
        return seen

    def test_is_read_once_while_nothing_changes(
        self, tmp_path: Path, listings: list[object]
    ) -> None:
        clock = FakeClock()
        found = PeerSockets(tmp_path, "x-", now=clock.monotonic)
        found.paths()
        clock.advance(1)
        found.paths()
        for _ in range(100):
            assert [] == found.paths()
        assert 2 == len(listings)

    def test_is_read_again_when_somebody_comes_or_goes(self, tmp_path: Path) -> None:
        clock = FakeClock()
        found = PeerSockets(tmp_path, "x-", now=clock.monotonic)
        found.paths()
        clock.advance(1)
        found.paths()
        (tmp_path / "x-1").touch()
        (tmp_path / "y-1").touch()
        os.utime(tmp_path, ns=(1, 1))
        assert [str(tmp_path / "x-1")] == found.paths()
        (tmp_path / "x-1").unlink()
        os.utime(tmp_path, ns=(2, 2))
        assert [] == found.paths()

    def test_does_not_trust_a_time_of_change_that_is_fresh(self, tmp_path: Path) -> None:
        """Two changes within a tick of the kernel bear the same time."""
        os.utime(tmp_path, ns=(1, 1))
        found = PeerSockets(tmp_path, "x-", now=FakeClock().monotonic)
        assert [] == found.paths()
        (tmp_path / "x-1").touch()
        os.utime(tmp_path, ns=(1, 1))
        assert [str(tmp_path / "x-1")] == found.paths()


def test_a_listener_without_a_thread_is_a_clear_error(
    runtime_root: Path, monkeypatch: pytest.MonkeyPatch, wakeups: Callable[..., LocalNotifier]
) -> None:
    def refuse(_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    hints = wakeups()
    monkeypatch.setattr("longwatch.host.background_thread.BackgroundThread.start", refuse)
    refused = pytest.raises(
        StoreUnreachableError,
        match=r"^the listener thread cannot start \(can't start new thread\); try again$",
    )
    with no_leaks(), refused:
        hints.listen("letters", Wakeup())
    assert [] == list(runtime_root.iterdir())
