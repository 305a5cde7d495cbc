"""Places where no SQLite file can be, told before SQLite opens them: one line with the cure, and
nothing is made.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from longwatch.app.mailboxes import existing_store, migrate_store, opened_store, require_schema
from longwatch.errors import (
    StoreError,
    StoreLocationError,
    StoreReadOnlyError,
    StoreUnreachableError,
    UsageError,
)
from longwatch.mailbox import open_mailbox
from longwatch.store.sqlite.database import SqliteDatabase
from longwatch.store.sqlite.errors import translate_errors
from longwatch.store.sqlite.file import MAX_PATH_BYTES, prepare_file, require_usable_path
from small_disk import small_filesystem


def loop(folder: Path) -> Path:
    (folder / "one").symlink_to("two")
    (folder / "two").symlink_to("one")
    return folder / "one"


def dangling(folder: Path) -> Path:
    (folder / "link").symlink_to("nothing")
    return folder / "link"


def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "fifo")
    return folder / "fifo"


def path_of(length: int, folder: Path) -> Path:
    """A path of so many bytes below the folder, its directories made."""
    while length - len(str(folder)) > 202:
        folder /= "d" * 100
    folder.mkdir(parents=True, exist_ok=True)
    return folder / ("f" * (length - len(str(folder)) - 1))


BAD_PATHS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "loop": (loop, "cannot be opened (Too many levels of symbolic links); name another file"),
    "dangling": (dangling, "cannot be opened (it is a link to a missing file); name another file"),
    "long name": (
        lambda folder: folder / ("x" * 300),
        "cannot be opened (File name too long); name another file",
    ),
    "long path": (
        lambda folder: path_of(MAX_PATH_BYTES + 1, folder),
        (
            f"cannot be opened, its path has {MAX_PATH_BYTES + 1} bytes; use a path of at most "
            f"{MAX_PATH_BYTES}"
        ),
    ),
    "fifo": (fifo, "cannot be opened, it is not a regular file; name another"),
    "device": (
        lambda _: Path("/dev/null"),
        "cannot be opened, it is not a regular file; name another",
    ),
    "directory": (lambda folder: folder, "cannot be opened, it is a directory; name a file in it"),
}
every_bad_path = pytest.mark.parametrize(("made", "told"), BAD_PATHS.values(), ids=BAD_PATHS)


def send(url: str) -> None:
    with opened_store(url) as store:
        open_mailbox(store, "jobs").send(1)


def look(url: str) -> None:
    with existing_store(url):
        pass


def status(url: str) -> None:
    with opened_store(url) as store:
        require_schema(store)


def migrate(url: str) -> None:
    with opened_store(url) as store:
        migrate_store(store)


every_command = pytest.mark.parametrize("command", [send, look, status, migrate])


@every_bad_path
@every_command
def test_every_command_says_why_it_cannot_be_there(
    tmp_path: Path, made: Callable[[Path], Path], told: str, command: Callable[[str], None]
) -> None:
    path = made(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreLocationError) as caught:
        command(f"sqlite:///{path}")
    assert (2, f"{path} {told}") == (caught.value.exit_code, str(caught.value))
    assert before == sorted(tmp_path.rglob("*"))


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreLocationError, match=r"cannot be opened \(.*\); name another file$"):
        prepare_file(tmp_path / name)


def test_the_longest_path_is_the_longest_that_sqlite_opens(tmp_path: Path) -> None:
    path = path_of(MAX_PATH_BYTES, tmp_path)
    with SqliteDatabase(path) as database:
        open_mailbox(database, "jobs").send(1)
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        sqlite3.connect(path_of(MAX_PATH_BYTES + 1, tmp_path))


def test_a_link_to_a_file_is_as_good_as_the_file(tmp_path: Path) -> None:
    (tmp_path / "real.db").touch()
    (tmp_path / "link.db").symlink_to("real.db")
    require_usable_path(tmp_path / "link.db")


def test_a_place_that_may_not_be_looked_at_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(
        StoreReadOnlyError, match="give this user permission to enter its directory"
    ):
        require_usable_path(tmp_path / "some.db")


# --- read-only ---


def read_only(
    path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[[str], None]
) -> StoreError:
    """What a command says where nothing may be written any more: SQLite can make no files beside
    its own, and says no more.
    """
    send(f"sqlite:///{path}")

    def cannot_open(*_: Any, **__: Any) -> None:
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise error

    monkeypatch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)
    monkeypatch.setattr(sqlite3, "connect", cannot_open)
    with pytest.raises(StoreError) as caught:
        command(f"sqlite:///{path}")
    return caught.value


@every_command
def test_every_command_says_the_same_of_a_read_only_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[[str], None]
) -> None:
    path = tmp_path / "some.db"
    error = read_only(path, monkeypatch, command)
    expected = f"{path} is read-only; give this user write permission to the file and its directory"
    assert (StoreReadOnlyError, 2, expected) == (type(error), error.exit_code, str(error))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_filesystem(tmp_path) as place:
        yield place


@every_command
def test_every_command_says_the_same_on_a_file_system_that_became_read_only(
    disk: Path, command: Callable[[str], None]
) -> None:
    path = disk / "some.db"
    send(f"sqlite:///{path}")
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    with pytest.raises(StoreReadOnlyError) as caught:
        command(f"sqlite:///{path}")
    assert (
        f"{path} is read-only; give this user write permission to the file and its directory"
        == str(caught.value)
    )


@pytest.mark.parametrize("there", [True, False])
def test_what_cannot_be_opened_for_another_reason_stays_that(
    tmp_path: Path, *, there: bool
) -> None:
    path = tmp_path / "some.db"
    if there:
        path.touch()
    with (
        pytest.raises(StoreUnreachableError, match="cannot be opened; check"),
        translate_errors(path),
    ):
        sqlite3.connect(tmp_path / "nowhere" / "some.db")


# --- transactions ---


async def sends_async(tx: Any) -> None:
    tx.execute("INSERT INTO longwatch_mailboxes (name) VALUES ('async')")


def sends_lazily(tx: Any) -> Any:
    yield tx.execute("INSERT INTO longwatch_mailboxes (name) VALUES ('lazy')")


async def sends_async_lazily(tx: Any) -> Any:
    yield tx.execute("INSERT INTO longwatch_mailboxes (name) VALUES ('both')")


def begun_by(tx: Any) -> Any:
    tx.execute("INSERT INTO longwatch_mailboxes (name) VALUES ('begun')")
    return sends_async(tx)


@pytest.mark.parametrize(
    "work", [sends_async, sends_lazily, sends_async_lazily, begun_by, partial(sends_async)]
)
def test_work_that_would_run_after_the_commit_is_refused_and_nothing_is_written(
    tmp_path: Path, work: Callable[..., Any]
) -> None:
    with SqliteDatabase(tmp_path / "some.db") as database:
        with pytest.raises(UsageError, match="transact\\(\\) expects a plain function"):
            database.transact(work)
        assert [(0,)] == database.read(
            lambda tx: tx.rows("SELECT count(*) FROM longwatch_mailboxes")
        )
        assert 7 == database.transact(lambda _: 7)
