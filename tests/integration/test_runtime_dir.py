"""The per-user directory for sockets: what is refused, and what works without it."""

from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from longwatch.core.clock import Wakeup
from longwatch.errors import UsageError
from longwatch.host.crash_file import CRASH_DIR_VARIABLE, CrashFile
from longwatch.host.runtime_dir import private_file_directory, runtime_directory
from longwatch.mailbox import open_mailbox
from longwatch.store.notify.listener import warn_of_polling
from longwatch.store.notify.local import LocalNotifier
from longwatch.store.sqlite.database import SqliteDatabase
from polling import eventually
from snippet import run_snippet

NOBODY = 65534
SET_ANOTHER = "set XDG_RUNTIME_DIR to a directory of your own"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")

Spoil = Callable[[Path], object]


def a_file(root: Path) -> None:
    root.rmdir()
    root.touch()


def a_link(root: Path) -> None:
    real = root.with_name("elsewhere")
    root.rename(real)
    root.symlink_to(real)


def open_to_others(root: Path) -> None:
    root.chmod(0o770)


def of_another_user(root: Path) -> None:
    os.chown(root, NOBODY, NOBODY)


SPOILT = [
    pytest.param(a_file, "is not a directory; remove it", id="file"),
    pytest.param(a_link, "is a symbolic link; remove it", id="link"),
    pytest.param(
        open_to_others, "is open to other users (mode 770); `chmod 700` it", id="mode too wide"
    ),
    pytest.param(
        of_another_user,
        f"belongs to user {NOBODY}, not to user 0; have it removed",
        marks=needs_root,
        id="another user",
    ),
]


@pytest.fixture(autouse=True)
def runtime_root(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runtime directory of this test alone."""
    base = tmp_path_factory.mktemp("r")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    root = base / f"longwatch-{os.geteuid()}"
    root.mkdir(0o700)
    warn_of_polling.cache_clear()
    return root


@pytest.mark.parametrize(("spoil", "problem"), SPOILT)
def test_a_directory_that_cannot_be_trusted_is_refused_with_the_cure(
    runtime_root: Path, spoil: Spoil, problem: str
) -> None:
    spoil(runtime_root)
    with pytest.raises(UsageError) as refused:
        runtime_directory()
    assert f"{runtime_root} {problem}, or {SET_ANOTHER}" == str(refused.value)


def test_a_directory_that_is_not_writable_is_refused_with_the_cure() -> None:
    code = f"""
        import os, tempfile
        from longwatch.errors import UsageError
        from longwatch.host.runtime_dir import runtime_directory
        if os.geteuid() == 0:
            os.setuid({NOBODY})
        with tempfile.TemporaryDirectory(dir="/tmp") as base:
            os.environ["XDG_RUNTIME_DIR"] = base
            os.mkdir(f"{{base}}/longwatch-{{os.geteuid()}}", 0o500)
            try:
                runtime_directory()
            except UsageError as error:
                print(str(error).partition(" ")[2], flush=True)
    """
    with run_snippet(code) as child:
        assert f"is not writable (mode 500); `chmod 700` it, or {SET_ANOTHER}" == child.read_line()
        assert (0, "") == child.wait()


@needs_root
def test_a_runtime_directory_left_from_another_user_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As below `sudo`, which may keep XDG_RUNTIME_DIR: its owner could replace our directory."""
    with TemporaryDirectory(dir="/tmp") as base, TemporaryDirectory(dir="/tmp") as temporary:
        os.chown(base, NOBODY, NOBODY)
        monkeypatch.setenv("XDG_RUNTIME_DIR", base)
        monkeypatch.setattr("tempfile.tempdir", temporary)
        assert Path(temporary) / f"longwatch-{os.geteuid()}" == runtime_directory()


@pytest.mark.parametrize(("spoil", "problem"), SPOILT)
def test_messages_are_sent_and_received_without_it_with_one_warning(
    runtime_root: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    spoil: Spoil,
    problem: str,
) -> None:
    """A waiting receiver finds the messages of another process by polling."""
    spoil(runtime_root)
    url = f"sqlite:///{tmp_path}/some.db"
    code = f"""
        from longwatch.mailbox import open_mailbox
        print("ready", flush=True)
        input()
        open_mailbox({url!r}, "letters").send("hello")
    """
    with SqliteDatabase(tmp_path / "some.db") as database, run_snippet(code) as sender:
        mailbox = open_mailbox(database, "letters")
        assert [] == mailbox.receive(wait_time_seconds=0.01)
        mailbox.send("first")
        [first] = mailbox.receive(wait_time_seconds=30)
        assert "ready" == sender.read_line()
        sender.send_line()
        [second] = mailbox.receive(wait_time_seconds=30)
        assert ["first", "hello"] == [first.body, second.body]
        exit_code, complaint = sender.wait()
    [warning] = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert "longwatch.store" == warning.name
    assert (
        f"messages of other processes are found by polling, once every 1 s: "
        f"{runtime_root} {problem}, or {SET_ANOTHER}"
    ) == warning.getMessage()
    assert (0, f"{warning.getMessage()}\n") == (exit_code, complaint)


def test_a_directory_that_was_repaired_is_used_again(runtime_root: Path, tmp_path: Path) -> None:
    runtime_root.chmod(0o770)
    sender, listener = (LocalNotifier(tmp_path / "some.db", wake_interval=0.01) for _ in range(2))
    listener.listen("letters", Wakeup())
    sender.notify(["letters"])
    assert [] == list(runtime_root.iterdir())
    runtime_root.chmod(0o700)
    assert eventually(Path(listener.socket_path).is_socket)
    listener.close()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        peer.bind(listener.socket_path)
        peer.settimeout(30)
        sender.notify(["letters"])
        assert b"letters" == peer.recv(100)
    sender.close()


def test_a_file_under_a_random_name_goes_to_the_temporary_directory_without_it(
    runtime_root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Crash files and beat pages: a loop runs, whatever became of the directory."""
    assert runtime_root == private_file_directory()
    runtime_root.chmod(0o770)
    monkeypatch.delenv(CRASH_DIR_VARIABLE, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert tmp_path == private_file_directory()
    file = CrashFile("mine")
    file.open()
    assert (tmp_path, 0o600) == (file.path.parent, stat.S_IMODE(file.path.stat().st_mode))
    file.close()


@needs_root
def test_crash_files_of_other_users_are_not_pruned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(CRASH_DIR_VARIABLE, str(tmp_path))
    theirs, mine = tmp_path / "theirs.stacks", tmp_path / "mine.stacks"
    for old in (theirs, mine):
        old.write_text("stacks")
        os.utime(old, (0, 0))
    os.chown(theirs, NOBODY, NOBODY)
    file = CrashFile("new")
    file.open()
    file.close()
    assert (True, False) == (theirs.exists(), mine.exists())
