"""What can be wrong with the file below a mailbox: each time one line that says the cure, and
nothing lost.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longwatch.errors import (
    InvalidParameterError,
    MailboxConnectionError,
    ReceiptHandleExpiredError,
    SchemaTooNewError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreLocationError,
    StoreReadOnlyError,
    StoreUnreachableError,
    UsageError,
)
from longwatch.host.beatpage import BeatPage
from longwatch.mailbox import Mailbox, open_mailbox
from longwatch.store.sqlite.database import SqliteDatabase
from longwatch.store.sqlite.file import network_file_system
from small_disk import fill_disk, mount, small_filesystem
from snippet import run_snippet

HOUR = 3600.0
AnyMailbox = Mailbox[object]
CALLS: dict[str, Callable[[AnyMailbox], object]] = {
    "send": lambda mailbox: mailbox.send("x"),
    "send_many": lambda mailbox: mailbox.send_many(["x", "y"]),
    "receive": lambda mailbox: mailbox.receive(),
    "stats": lambda mailbox: mailbox.stats(),
    "purge": lambda mailbox: mailbox.purge(),
    "pause": lambda mailbox: mailbox.pause(),
    "dead": lambda mailbox: list(mailbox.dead_letters),
    "cancel": lambda mailbox: mailbox.cancel("nothing"),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.db"


@pytest.fixture
def opened() -> Iterator[Callable[..., AnyMailbox]]:
    """Opens mailboxes over files, and closes their stores at the end."""
    databases: list[SqliteDatabase] = []

    def open_one(path: Path, **options: object) -> AnyMailbox:
        databases.append(SqliteDatabase(path, **options))  # type: ignore[arg-type]
        return open_mailbox(databases[-1], "letters")

    yield open_one
    for database in databases:
        database.close()


def fill(path: Path, *bodies: object) -> None:
    """A file with these messages, closed again."""
    database = SqliteDatabase(path)
    open_mailbox(database, "letters").send_many(bodies or ["one", "two"])
    database.close()


def bodies(mailbox: AnyMailbox) -> list[object]:
    return [message.body for message in mailbox.receive(max_messages=1000)]


def error_text(kind: type[StoreError], call: Callable[[], object]) -> str:
    """What a mailbox says about trouble of this kind: one line, with the cure after a semicolon."""
    with pytest.raises(MailboxConnectionError) as caught:
        call()
    assert kind is type(caught.value.__cause__)
    text = str(caught.value)
    assert str(caught.value.__cause__) == text
    assert "\n" not in text
    assert "; " in text
    return text


class TestAPlaceThatCannotBe:
    @every_call
    def test_a_directory_that_is_not_there(
        self,
        tmp_path: Path,
        opened: Callable[..., AnyMailbox],
        call: Callable[[AnyMailbox], object],
    ) -> None:
        mailbox = opened(tmp_path / "nowhere" / "some.db")
        expected = (
            f"{tmp_path}/nowhere/some.db cannot be opened, its directory does not exist; create "
            f"{tmp_path}/nowhere"
        )
        assert expected == error_text(StoreLocationError, lambda: call(mailbox))
        (tmp_path / "nowhere").mkdir()
        call(mailbox)

    def test_a_directory_that_is_a_file(
        self, path: Path, opened: Callable[..., AnyMailbox]
    ) -> None:
        path.touch()
        text = error_text(StoreLocationError, lambda: opened(path / "some.db").send("x"))
        assert (
            f"{path}/some.db cannot be opened, its directory does not exist; create {path}" == text
        )

    @every_call
    def test_a_directory_in_place_of_the_file(
        self,
        tmp_path: Path,
        opened: Callable[..., AnyMailbox],
        call: Callable[[AnyMailbox], object],
    ) -> None:
        mailbox = opened(tmp_path)
        expected = f"{tmp_path} cannot be opened, it is a directory; name a file in it"
        assert [expected] * 2 == [
            error_text(StoreLocationError, lambda: call(mailbox)) for _ in range(2)
        ]

    def test_a_network_file_system(self, tmp_path: Path, opened: Callable[..., AnyMailbox]) -> None:
        mountinfo = tmp_path / "mountinfo"
        mountinfo.write_text(
            f"22 1 254:0 / / rw - ext4 /dev/root rw\n36 22 0:32 / {tmp_path} rw shared:1 - "
            f"nfs4 server:/x rw\n"
        )
        mailbox = opened(tmp_path / "some.db", mountinfo=mountinfo)
        said = (
            "is on a network file system (nfs4), where SQLite's locks do not hold; use a local "
            "disk, or PostgreSQL"
        )
        assert f"{tmp_path}/some.db {said}" == error_text(
            StoreLocationError, lambda: mailbox.send("x")
        )
        assert not (tmp_path / "some.db").exists()


class TestTheKindOfFileSystem:
    @pytest.mark.parametrize(
        "kind",
        [
            "nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "afs", "ceph", "fuse.ceph-fuse",
            "glusterfs", "fuse.glusterfs", "lustre", "gpfs", "beegfs", "juicefs", "fuse.juicefs",
            "gcsfuse", "fuse.gcsfuse", "fuse.s3fs", "fuse.rclone", "fuse.sshfs",
            "fuse.mountpoint-s3", "fuse.blobfuse2", "fuse.grpcfuse", "vboxsf",
        ],
    )  # fmt: skip
    def test_is_a_network_one(self, tmp_path: Path, kind: str) -> None:
        assert kind == self.found(tmp_path, f"22 1 0:1 / / rw - {kind} x rw\n")

    @pytest.mark.parametrize(
        "kind",
        ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "f2fs", "fuse.fuseblk", "fuse.bindfs"],
    )
    def test_is_a_local_one(self, tmp_path: Path, kind: str) -> None:
        assert self.found(tmp_path, f"22 1 0:1 / / rw - {kind} x rw\n") is None

    def test_is_that_of_the_nearest_mount(self, tmp_path: Path) -> None:
        lines = (
            f"22 1 0:1 / / rw - nfs x rw\n23 22 0:2 / {tmp_path} rw - ext4 x rw\n24 22 0:3 / "
            f"{tmp_path}/below rw - nfs x rw\n"
        )
        assert self.found(tmp_path, lines) is None

    def test_is_that_of_the_last_mount_on_a_place(self, tmp_path: Path) -> None:
        lines = f"22 1 0:1 / {tmp_path} rw - ext4 x rw\n23 22 0:2 / {tmp_path} rw - nfs x rw\n"
        assert "nfs" == self.found(tmp_path, lines)

    def test_is_found_below_a_name_with_spaces_and_accents(self, tmp_path: Path) -> None:
        folder = tmp_path / "été à la mer"
        folder.mkdir()
        escaped = str(folder).replace(" ", "\\040")
        assert "nfs" == self.found(folder, f"22 1 0:1 / {escaped} rw - nfs x rw\n")

    def test_is_unknown_where_the_system_does_not_tell(self, tmp_path: Path) -> None:
        assert network_file_system(tmp_path / "x", mountinfo=tmp_path / "nothing") is None

    def test_is_a_local_one_here(self, tmp_path: Path) -> None:
        assert network_file_system(tmp_path / "x") is None

    def found(self, folder: Path, lines: str) -> str | None:
        mountinfo = folder / "mountinfo"
        mountinfo.write_text(lines)
        return network_file_system(folder / "some.db", mountinfo=mountinfo)


class TestAFileThatIsNoStore:
    @every_call
    def test_some_other_file(
        self, path: Path, opened: Callable[..., AnyMailbox], call: Callable[[AnyMailbox], object]
    ) -> None:
        path.write_text("Dear diary, " * 100)
        before = path.read_bytes()
        mailbox = opened(path)
        expected = f"{path} is not a SQLite database; name another file, or move this one aside"
        assert [expected] * 2 == [
            error_text(StoreCorruptError, lambda: call(mailbox)) for _ in range(2)
        ]
        assert before == path.read_bytes()

    def test_an_empty_one_becomes_a_store(
        self, path: Path, opened: Callable[..., AnyMailbox]
    ) -> None:
        path.touch()
        mailbox = opened(path)
        mailbox.send("x")
        assert ["x"] == bodies(mailbox)

    @pytest.mark.parametrize("act", ["send", "receive", "stats"])
    def test_a_damaged_one(self, path: Path, opened: Callable[..., AnyMailbox], act: str) -> None:
        fill(path, *["x" * 1000] * 100)
        data = bytearray(path.read_bytes())
        data[4096:] = b"\xff" * (len(data) - 4096)
        path.write_bytes(data)
        cure = "restore it from a backup, or move it aside to start with a new file"
        expected = f"{path} is damaged; {cure}"
        mailbox = opened(path)
        assert [expected] * 2 == [
            error_text(StoreCorruptError, lambda: CALLS[act](mailbox)) for _ in range(2)
        ]

    def test_one_cut_short(self, path: Path, opened: Callable[..., AnyMailbox]) -> None:
        fill(path, *["x" * 1000] * 100)
        path.write_bytes(path.read_bytes()[:10_000])
        assert "is damaged; restore it from a backup" in error_text(
            StoreCorruptError, lambda: opened(path).receive(max_messages=100)
        )

    @every_call
    def test_one_of_a_newer_version(
        self, path: Path, opened: Callable[..., AnyMailbox], call: Callable[[AnyMailbox], object]
    ) -> None:
        database = SqliteDatabase(path)
        database.write(
            lambda tx: tx.execute(
                "INSERT INTO longwatch_schema (version, name, applied_at) "
                "VALUES (9999, 'of_tomorrow', '')"
            )
        )
        database.close()
        mailbox = opened(path)
        texts = [error_text(SchemaTooNewError, lambda: call(mailbox)) for _ in range(2)]
        assert texts[0] == texts[1]
        assert " was made by a newer Longwatch (schema 9999, " in texts[0]
        assert "; upgrade Longwatch" in texts[0]


LOCKER = """
    import sqlite3
    connection = sqlite3.connect({path!r}, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    print("locked", flush=True)
    input()
    connection.execute("COMMIT")
    print("free", flush=True)
    input()
"""


class TestAFileThatAnotherProgramHasLocked:
    def test_is_a_clear_error_and_works_again_when_it_is_free(
        self, path: Path, opened: Callable[..., AnyMailbox]
    ) -> None:
        mailbox = opened(path, busy_timeout=0.05)
        mailbox.send("before")
        [message] = mailbox.receive()
        with run_snippet(LOCKER.format(path=str(path))) as child:
            assert "locked" == child.read_line()
            expected = (
                f"{path} is locked by another program; nothing was written, end that program, or "
                f"try again"
            )
            acts = (
                lambda: mailbox.send("during"),
                mailbox.purge,
                message.acknowledge,
                lambda: message.extend_visibility(9),
            )
            assert [expected] * 4 == [error_text(StoreBusyError, act) for act in acts]
            assert 1 == mailbox.stats().leased
            child.send_line()
            assert "free" == child.read_line()
            mailbox.send("after")
            message.acknowledge()
        assert ["after"] == bodies(mailbox)

    def test_is_the_same_error_when_the_file_is_new(
        self, path: Path, opened: Callable[..., AnyMailbox]
    ) -> None:
        with run_snippet(LOCKER.format(path=str(path))) as child:
            assert "locked" == child.read_line()
            mailbox = opened(path, busy_timeout=0.05)
            expected = (
                f"{path} is locked by another program; nothing was written, end that program, or "
                f"try again"
            )
            assert [expected] * 2 == [
                error_text(StoreBusyError, lambda: mailbox.send("x")) for _ in range(2)
            ]
            child.send_line()
            assert "free" == child.read_line()
            mailbox.send("after")
        assert ["after"] == bodies(mailbox)

    def test_is_waited_for(self, path: Path, opened: Callable[..., AnyMailbox]) -> None:
        fill(path)
        mailbox = opened(path)
        with run_snippet(LOCKER.format(path=str(path))) as child:
            assert "locked" == child.read_line()
            sending = threading.Thread(target=lambda: mailbox.send("patient"))
            sending.start()
            child.send_line()
            assert "free" == child.read_line()
            sending.join(30)
        assert ["one", "two", "patient"] == bodies(mailbox)


AS_NOBODY = """
    import os
    from pathlib import Path
    from longwatch.errors import MailboxConnectionError
    from longwatch.mailbox import open_mailbox
    from longwatch.store.sqlite.database import SqliteDatabase

    open_mailbox("sqlite:////nowhere", "letters")
    os.environ["XDG_RUNTIME_DIR"] = ""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    mailbox = open_mailbox(SqliteDatabase(Path({path!r})), "letters")
    for act in (lambda: mailbox.send("x"), mailbox.receive, mailbox.stats):
        try:
            print(act())
        except MailboxConnectionError as error:
            print(type(error.__cause__).__name__, error)
"""


class TestAFileThatMayNotBeWritten:
    @pytest.fixture
    def folder(self) -> Iterator[Path]:
        """A directory that nobody but its owner may write to, and everybody can see."""
        made = Path(tempfile.mkdtemp(prefix="longwatch-test-"))
        made.chmod(0o755)
        yield made
        made.chmod(0o700)
        shutil.rmtree(made)

    def answers(self, path: Path) -> list[str]:
        with run_snippet(AS_NOBODY.format(path=str(path))) as child:
            answers = [child.read_line() for _ in range(3)]
            assert (0, "") == child.wait()
        return answers

    def test_read_only_by_its_permissions(self, folder: Path) -> None:
        path = folder / "some.db"
        fill(path)
        path.chmod(0o444)
        expected = (
            f"StoreReadOnlyError {path} is read-only; give this user write permission to the file "
            f"and its directory"
        )
        assert [expected] * 3 == self.answers(path)

    def test_unreadable(self, folder: Path) -> None:
        path = folder / "some.db"
        fill(path)
        path.chmod(0o000)
        expected = (
            f"StoreReadOnlyError {path} is read-only; give this user write permission to the file "
            f"and its directory"
        )
        assert [expected] * 3 == self.answers(path)

    def test_in_a_directory_where_none_can_be_made(self, folder: Path) -> None:
        folder.chmod(0o555)
        path = folder / "some.db"
        expected = (
            f"StoreReadOnlyError {path} cannot be created (Permission denied); give this user "
            f"write permission to its directory"
        )
        assert [expected] * 3 == self.answers(path)

    def test_in_a_directory_where_its_log_cannot_be_made(self, folder: Path) -> None:
        path = folder / "some.db"
        fill(path)
        path.chmod(0o666)
        folder.chmod(0o555)
        expected = (
            f"StoreReadOnlyError {path} is read-only; give this user write permission to the file "
            f"and its directory"
        )
        assert [expected] * 3 == self.answers(path)

    def test_on_a_file_system_that_became_read_only(
        self, small_disk: Path, opened: Callable[..., AnyMailbox]
    ) -> None:
        path = small_disk / "some.db"
        fill(path)
        mount("-o", "remount,ro", str(small_disk))
        expected = (
            f"{path} is read-only; give this user write permission to the file and its directory"
        )
        mailbox = opened(path)
        assert [expected] * 2 == [
            error_text(StoreReadOnlyError, lambda: mailbox.send("x")) for _ in range(2)
        ]
        mount("-o", "remount,rw", str(small_disk))
        assert ["one", "two"] == bodies(mailbox)


@pytest.fixture
def small_disk(tmp_path: Path, opened: Callable[..., AnyMailbox]) -> Iterator[Path]:
    """Unmounted before `opened` closes the stores on it."""
    with small_filesystem(tmp_path) as place:
        yield place


class TestAFullDisk:
    def full(self, path: Path) -> str:
        return f"{path} cannot grow: the disk is full; nothing was written, free some space"

    def test_loses_nothing_and_works_again_once_there_is_space(
        self, small_disk: Path, opened: Callable[..., AnyMailbox]
    ) -> None:
        path = small_disk / "some.db"
        mailbox = opened(path)
        kept = [mailbox.send(f"{number} " + "x" * 10_000) for number in range(20)]
        ballast = fill_disk(small_disk)
        assert self.full(path) == error_text(StoreFullError, lambda: mailbox.send("y" * 100_000))
        assert self.full(path) == error_text(
            StoreFullError, lambda: mailbox.send_many(["y" * 50_000] * 3)
        )
        assert 20 == mailbox.stats().ready
        ballast.unlink()
        kept.append(mailbox.send("after"))
        assert kept == [message.id for message in mailbox.receive(max_messages=100)]

    def test_tells_every_sender(self, small_disk: Path, opened: Callable[..., AnyMailbox]) -> None:
        path = small_disk / "some.db"
        mailbox = opened(path)
        mailbox.send("before")
        ballast = fill_disk(small_disk)
        outcomes: list[str] = []

        def send() -> None:
            outcomes.append(error_text(StoreFullError, lambda: mailbox.send("y" * 100_000)))

        threads = [threading.Thread(target=send) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert [self.full(path)] * 8 == outcomes
        ballast.unlink()
        assert ["before"] == bodies(mailbox)

    def test_a_delivery_that_could_not_be_settled_can_be_once_there_is_space(
        self, small_disk: Path, opened: Callable[..., AnyMailbox]
    ) -> None:
        mailbox = opened(small_disk / "some.db")
        mailbox.send_many(["x"] * 500)
        messages = mailbox.receive(max_messages=500)
        ballast = fill_disk(small_disk)
        error_text(StoreFullError, lambda: mailbox.acknowledge_many(messages))
        assert 500 == mailbox.stats().leased
        ballast.unlink()
        assert {"settled"} == set(mailbox.acknowledge_many(messages))
        assert 0 == mailbox.approximate_count()

    def test_a_new_file_is_told_so_and_made_once_there_is_space(
        self, small_disk: Path, opened: Callable[..., AnyMailbox]
    ) -> None:
        ballast = fill_disk(small_disk)
        mailbox = opened(small_disk / "some.db")
        texts = [error_text(StoreFullError, lambda: mailbox.send("x")) for _ in range(2)]
        assert [self.full(small_disk / "some.db")] * 2 == texts
        ballast.unlink()
        mailbox.send("after")
        assert ["after"] == bodies(mailbox)

    def test_a_file_that_is_there_is_told_so_and_opened_once_there_is_space(
        self, small_disk: Path, opened: Callable[..., AnyMailbox]
    ) -> None:
        path = small_disk / "some.db"
        fill(path)
        ballast = fill_disk(small_disk)
        mailbox = opened(path)
        assert self.full(path) == error_text(StoreFullError, mailbox.stats)
        assert self.full(path) == error_text(StoreFullError, lambda: mailbox.send("x"))
        ballast.unlink()
        assert ["one", "two"] == bodies(mailbox)

    def test_a_beat_page_is_refused_and_leaves_nothing(self, small_disk: Path) -> None:
        """Mapped over a hole it would end the process at its first beat."""
        fill_disk(small_disk)
        with pytest.raises(OSError, match="No space left on device"):
            BeatPage(small_disk / "page", 500)
        assert not (small_disk / "page").exists()


class TestAWallClockThatJumpsAnHour:
    @pytest.fixture
    def database(self, path: Path) -> Iterator[SqliteDatabase]:
        made = SqliteDatabase(path)
        yield made
        made.close()

    @pytest.mark.parametrize("jump", [HOUR, -HOUR])
    def test_ends_no_lease_and_prolongs_none(self, database: SqliteDatabase, jump: float) -> None:
        mailbox: AnyMailbox = open_mailbox(database, "letters")
        mailbox.send("x")
        [message] = mailbox.receive(visibility_timeout=30)
        database.jump.wall = jump
        assert [] == mailbox.receive()
        database.jump.lease = 31
        [again] = mailbox.receive()
        assert (message.id, 2) == (again.id, again.delivery_count)
        with pytest.raises(ReceiptHandleExpiredError):
            message.acknowledge()
        again.acknowledge()

    @pytest.mark.parametrize(("jump", "ready"), [(HOUR, ["x"]), (-HOUR, [])])
    def test_moves_what_is_delayed_by_wall_time(
        self, database: SqliteDatabase, jump: float, ready: list[object]
    ) -> None:
        mailbox: AnyMailbox = open_mailbox(database, "letters")
        mailbox.send("x", delay_seconds=60)
        database.jump.wall = jump
        assert ready == bodies(mailbox)


class TestABody:
    def test_that_is_too_large_is_refused_with_the_bound_and_nothing_is_stored(
        self, path: Path, opened: Callable[..., AnyMailbox]
    ) -> None:
        mailbox = opened(path)
        with pytest.raises(InvalidParameterError) as caught:
            mailbox.send_many(["small", "x" * (1 << 20)])
        expected = (
            "a body of 1048578 bytes is larger than 1048576; store the data elsewhere and send a "
            "reference, or raise max_body_bytes"
        )
        assert expected == str(caught.value)
        assert 0 == mailbox.approximate_count()

    def test_that_cannot_be_read_is_dead_at_once_and_the_others_come(self, path: Path) -> None:
        database = SqliteDatabase(path)
        open_mailbox(database, "letters").send_many(["not a number", 7])
        mailbox = open_mailbox(database, "letters", int)
        assert [7] == [message.body for message in mailbox.receive(max_messages=10)]
        [letter] = mailbox.dead_letters
        assert ("undecodable", b'"not a number"') == (letter.reason, letter.body)
        assert letter.error is not None
        assert "a body cannot be read" in letter.error
        database.close()

    def test_that_is_not_even_text_is_dead_at_once(self, path: Path) -> None:
        database = SqliteDatabase(path)
        mailbox: AnyMailbox = open_mailbox(database, "letters")
        mailbox.send("x")
        database.write(lambda tx: tx.execute("UPDATE longwatch_messages SET body = x'fffe00'"))
        assert [] == mailbox.receive()
        assert ["undecodable"] == [letter.reason for letter in mailbox.dead_letters]
        database.close()


class TestAUrl:
    @pytest.mark.parametrize(
        ("url", "hint"),
        [
            ("sqllite:///some.db", "did you mean sqlite://?"),
            ("sqlite3:///some.db", "did you mean sqlite://?"),
            ("memry://", "did you mean memory://?"),
        ],
    )
    def test_of_an_unknown_scheme_gets_the_nearest_one(self, url: str, hint: str) -> None:
        with pytest.raises(UsageError) as caught:
            open_mailbox(url, "letters")
        assert f"no store is known for {url!r}; {hint}" == str(caught.value)

    def test_of_a_scheme_like_nothing_we_know_gets_the_list(self) -> None:
        with pytest.raises(
            UsageError,
            match=r"^no store is known for 'ftp://x'; use one of memory://, postgresql://, "
            r"redis://, redis\+sentinel://, rediss://, rediss\+sentinel://, sqlite://",
        ):
            open_mailbox("ftp://x", "letters")

    @pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite://some.db"])
    def test_without_a_file_is_told_how_to_name_one(self, url: str) -> None:
        with pytest.raises(UsageError) as caught:
            open_mailbox(url, "letters")
        assert (
            f"{url!r} names no file; write sqlite:///relative.db or sqlite:////absolute/path.db"
            == str(caught.value)
        )

    def test_of_a_file_opens_nothing_yet(self, tmp_path: Path) -> None:
        open_mailbox(f"sqlite:///{tmp_path}/some.db", "letters")
        assert [] == list(tmp_path.iterdir())


class TestAFileThatIsTakenAway:
    @pytest.mark.parametrize("replaced", [False, True])
    def test_is_told_once_and_then_opened_anew(
        self, tmp_path: Path, opened: Callable[..., AnyMailbox], *, replaced: bool
    ) -> None:
        path = tmp_path / "some.db"
        mailbox = opened(path)
        opened(tmp_path / "other.db").send("of another mailbox's file")
        mailbox.send("before")
        for part in tmp_path.glob("some.db*"):
            part.unlink()
        if replaced:
            other = "INSERT INTO longwatch_mailboxes (name) VALUES ('first')"
            SqliteDatabase(tmp_path / "new.db").write(lambda tx: tx.execute(other))
            (tmp_path / "new.db").rename(path)
        assert "was removed or replaced; nothing was done" in error_text(
            StoreUnreachableError, lambda: mailbox.send("lost?")
        )
        mailbox.send("after")
        assert ["after"] == [message.body for message in opened(path).receive(max_messages=10)]


def test_a_mailbox_whose_row_somebody_removed_is_counted_as_a_new_one(
    path: Path, opened: Callable[..., AnyMailbox]
) -> None:
    mailbox = opened(path)
    mailbox.stats()
    other = SqliteDatabase(path)
    other.write(lambda tx: tx.execute("DELETE FROM longwatch_mailboxes"))
    other.close()
    assert 0 == mailbox.stats().ready
    mailbox.send("x")
    assert 1 == mailbox.stats().ready
