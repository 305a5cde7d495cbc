from __future__ import annotations

import io
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL, SIGUSR2
from tempfile import TemporaryDirectory

import pytest

from leaks import no_leaks
from longwatch.errors import UsageError
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.crash_file import (
    CRASH_DIR_VARIABLE,
    MAX_AGE_SECONDS,
    MAX_FILES,
    MAX_STDERR_BYTES,
    CrashFile,
    crash_directory,
    prune_crash_files,
)
from longwatch.testing import FakeClock
from polling import eventually
from snippet import TIMEOUT, run_snippet

NOW = 1_800_000_000.0
LONG_AGO = NOW - 3600.0


@contextmanager
def opened(directory: Path, name: str = "mine") -> Iterator[CrashFile]:
    file = CrashFile(name, directory=directory, clock=FakeClock(wall=NOW))
    file.open()
    try:
        yield file
    finally:
        file.close()


# --- the file ---


def test_its_name_says_whose_it_is_and_since_when_and_it_is_for_this_user_alone(
    tmp_path: Path,
) -> None:
    umask = os.umask(0)
    try:
        with opened(tmp_path) as file:
            assert re.fullmatch(
                rf"mine-20270115T080000-{os.getpid()}-[0-9a-f]{{6}}\.stacks", file.path.name
            )
            assert (tmp_path, 0o600) == (file.path.parent, stat.S_IMODE(file.path.stat().st_mode))
    finally:
        os.umask(umask)


@pytest.mark.parametrize("name", ["../../etc/x", "a b\n", "", "x" * 300, "𝒜" * 300, "\udcff"])
def test_any_name_makes_a_file_in_the_directory(tmp_path: Path, name: str) -> None:
    with opened(tmp_path, name) as file:
        assert [file.path] == list(tmp_path.iterdir())


def test_one_that_stayed_empty_is_removed(tmp_path: Path) -> None:
    with no_leaks(), opened(tmp_path) as file:
        assert (True, True) == (file.is_open, file.path.exists())
    assert (False, []) == (file.is_open, list(tmp_path.iterdir()))


def test_one_that_was_written_to_is_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as file:
        file.write("one")
        file.write("two\udcff")
    assert "one\ntwo\\udcff\n" == file.path.read_text()


def test_closing_is_idempotent_and_each_opening_makes_a_new_one(tmp_path: Path) -> None:
    file = CrashFile("mine", directory=tmp_path)
    file.close()
    for _ in range(2):
        file.open()
        file.write("something")
        file.close()
        file.close()
    assert 2 == len(list(tmp_path.iterdir()))


def test_a_program_that_is_started_does_not_get_it(tmp_path: Path) -> None:
    with opened(tmp_path) as file:
        looked = subprocess.run(
            ["ls", "-l", "/proc/self/fd"],
            check=True,
            capture_output=True,
            close_fds=False,
            timeout=TIMEOUT,
        )
        assert str(file.path) not in looked.stdout.decode()


# --- what is written ---


def test_a_dump_says_when_who_why_and_what_every_thread_does(tmp_path: Path) -> None:
    may_end, waiting = threading.Event(), threading.Event()

    def stuck_in_here() -> None:
        waiting.set()
        may_end.wait()

    thread = threading.Thread(target=stuck_in_here)
    thread.start()
    assert waiting.wait(TIMEOUT)
    with opened(tmp_path) as file:
        file.dump("loop-0 stalled")
    may_end.set()
    thread.join()
    first, *stacks = file.path.read_text().splitlines()
    assert f"2027-01-15T08:00:00Z pid {os.getpid()}: loop-0 stalled" == first
    assert ["test_a_dump_says", "stuck_in_here"] == [
        word for word in ("test_a_dump_says", "stuck_in_here") if word in str(stacks)
    ]


def fill(file: CrashFile) -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a descriptor is wanted
        os.dup2(full.fileno(), file.fileno)


@pytest.mark.parametrize("spoil", [CrashFile.close, fill], ids=["closed", "disk full"])
def test_what_cannot_be_written_is_not(tmp_path: Path, spoil: Callable[[CrashFile], None]) -> None:
    with no_leaks(), opened(tmp_path) as file:
        spoil(file)
        file.write("x")
        file.dump("y")
        file.copy_to_stderr()


def shown(monkeypatch: pytest.MonkeyPatch, *files: CrashFile) -> bytes:
    """What comes out of stderr, a pipe."""
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb") as reading, os.fdopen(theirs, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        for file in files:
            file.copy_to_stderr()
        monkeypatch.undo()
        stderr.close()
        return reading.read()


def test_the_dump_is_shown_on_stderr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as file:
        file.dump("why")
        whole = file.path.read_bytes()
        assert whole[: MAX_STDERR_BYTES - 1] == shown(monkeypatch, file)[: MAX_STDERR_BYTES - 1]


def test_no_more_is_shown_than_a_pipe_takes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as file:
        file.dump("x" * 2 * MAX_STDERR_BYTES)
        assert file.path.read_bytes()[:4095] + b"\n" == shown(monkeypatch, file)


def test_the_last_dump_is_shown_not_what_was_written_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as file:
        file.dump("asked for by a signal, long ago " * 1000)
        file.dump("the end")
        first = shown(monkeypatch, file).splitlines()[0]
    assert first.endswith(b": the end")


def test_a_full_stderr_takes_nothing_and_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = os.pipe()
    size = os.write(theirs, b"x" * 65536)
    with (
        os.fdopen(ours, "rb") as reading,
        os.fdopen(theirs, "w") as stderr,
        opened(tmp_path) as file,
    ):
        monkeypatch.setattr(sys, "stderr", stderr)
        file.dump("why")
        showing = BackgroundThread(file.copy_to_stderr, name="test")
        showing.start()
        shown_in_time = showing.done.block(TIMEOUT)
        monkeypatch.undo()
        stderr.close()
        assert (True, b"x" * size) == (shown_in_time, reading.read())


@pytest.mark.parametrize(
    "stderr", [None, io.StringIO(), object()], ids=["none", "in memory", "no stream at all"]
)
def test_a_stderr_that_is_none_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stderr: object
) -> None:
    with opened(tmp_path) as file:
        file.dump("why")
        monkeypatch.setattr(sys, "stderr", stderr)
        file.copy_to_stderr()
        monkeypatch.undo()


# --- SIGUSR2 ---

WAITS = """
    import signal, sys
    from pathlib import Path
    from longwatch.host.crash_file import CrashFile

    file = CrashFile("mine", directory=Path({directory!r}))
    file.open()
    file.dump_on_signal()

    def waiting_here():
        print(file.path)
        input()

    waiting_here()
    file.close(signum=signal.SIGUSR2)
    print("closed")
    input()
"""

HOLDS_THE_GIL = """
    import re, threading
    from pathlib import Path
    from longwatch.host.crash_file import CrashFile

    file = CrashFile("mine", directory=Path({directory!r}))
    file.open()
    file.dump_on_signal()

    def backtracking():
        print(file.path)
        re.match("(a+)+b", "a" * 60)

    threading.Thread(target=backtracking).start()
"""


def catches_sigusr2(pid: int) -> bool:
    """As a parent looks before it sends it."""
    [mask] = re.findall(
        r"^SigCgt:\s*([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE
    )
    return bool(int(mask, 16) >> (SIGUSR2 - 1) & 1)


def test_sigusr2_writes_every_stack_and_the_process_goes_on(tmp_path: Path) -> None:
    with run_snippet(WAITS.format(directory=str(tmp_path))) as snippet:
        path = Path(snippet.read_line())
        for times in (1, 2):
            snippet.signal(SIGUSR2)
            assert eventually(lambda: times == path.read_text().count("in waiting_here"))  # noqa: B023 - asked at once
        snippet.send_line()
        assert "closed" == snippet.read_line()


def test_a_parent_sees_that_sigusr2_is_caught_until_the_file_is_closed(tmp_path: Path) -> None:
    with run_snippet(WAITS.format(directory=str(tmp_path))) as snippet:
        pid = int(Path(snippet.read_line()).name.split("-")[2])
        caught = catches_sigusr2(pid)
        snippet.send_line()
        assert "closed" == snippet.read_line()
        assert (True, False) == (caught, catches_sigusr2(pid))
        assert [] == list(tmp_path.iterdir())


def test_sigusr2_works_while_a_thread_holds_the_gil_for_ever(tmp_path: Path) -> None:
    with run_snippet(HOLDS_THE_GIL.format(directory=str(tmp_path))) as snippet:
        path = Path(snippet.read_line())
        snippet.signal(SIGUSR2)
        assert eventually(lambda: "in backtracking" in path.read_text())
        assert "Current thread" in path.read_text()


# --- where they go ---


def test_the_environment_says_where_they_go_and_the_directory_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = tmp_path / "deep" / "crashes"
    monkeypatch.setenv(CRASH_DIR_VARIABLE, str(wanted))
    file = CrashFile("mine")
    file.open()
    file.close()
    assert (wanted, 0o700) == (file.path.parent, stat.S_IMODE(wanted.stat().st_mode))


def test_else_they_go_to_the_runtime_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CRASH_DIR_VARIABLE, raising=False)
    with TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        directory = crash_directory()
        assert (Path(short, f"longwatch-{os.getuid()}", "crashes"), 0o700) == (
            directory,
            stat.S_IMODE(directory.stat().st_mode),
        )


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("/proc/nothing/here", "No such file or directory"),
        ("/dev/null", "File exists"),
        ("/proc", ""),
    ],
)
def test_a_place_that_cannot_be_used_is_told_with_the_cure(
    place: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CRASH_DIR_VARIABLE, place)
    file = CrashFile("mine")
    with pytest.raises(
        UsageError,
        match=rf"^cannot write crash files to {place} \({reason}.*\); set LONGWATCH_CRASH_DIR$",
    ):
        file.open()
    assert not file.is_open
    file.close()


# --- retention ---


def left(directory: Path, name: str, text: str = "stacks", *, at: float = LONG_AGO) -> Path:
    """A file that somebody has left behind."""
    path = directory / name
    path.write_text(text)
    os.utime(path, (at, at))
    return path


def test_files_older_than_a_month_are_removed(tmp_path: Path) -> None:
    left(tmp_path, "old.stacks", at=NOW - MAX_AGE_SECONDS - 1)
    young = left(tmp_path, "young.stacks", at=NOW - MAX_AGE_SECONDS + 1)
    prune_crash_files(tmp_path, now=NOW)
    assert [young] == list(tmp_path.iterdir())


def test_the_hundred_newest_are_kept(tmp_path: Path) -> None:
    files = [
        left(tmp_path, f"{number}.stacks", at=LONG_AGO + number) for number in range(MAX_FILES + 5)
    ]
    prune_crash_files(tmp_path, now=NOW)
    assert (100, set(files[5:])) == (MAX_FILES, set(tmp_path.iterdir()))


def test_empty_ones_are_removed_unless_they_have_just_been_made(tmp_path: Path) -> None:
    left(tmp_path, "mine-20260101T000000-1-abcdef.stacks", "")
    left(tmp_path, "nobodys.stacks", "")
    new = left(tmp_path, "new.stacks", "", at=NOW - 1)
    prune_crash_files(tmp_path, now=NOW)
    assert [new] == list(tmp_path.iterdir())


def test_nothing_else_is_touched(tmp_path: Path) -> None:
    ancient = NOW - 2 * MAX_AGE_SECONDS
    others = {left(tmp_path, name, at=ancient) for name in ("notes", "old.stacks.gz", "stacks")}
    target = left(tmp_path, "target", "", at=ancient)
    (tmp_path / "link.stacks").symlink_to(target)
    (tmp_path / "folder.stacks").mkdir()
    prune_crash_files(tmp_path, now=NOW)
    assert others | {target, tmp_path / "link.stacks", tmp_path / "folder.stacks"} == set(
        tmp_path.iterdir()
    )


def test_a_directory_that_is_gone_is_no_error(tmp_path: Path) -> None:
    prune_crash_files(tmp_path / "gone", now=NOW)


@pytest.mark.parametrize("text", ["", "asked for by a signal"], ids=["empty", "written"])
def test_one_that_a_living_process_has_open_is_kept_whatever_its_number_says(
    tmp_path: Path, text: str
) -> None:
    """In a container on the same volume its number is another process here, or none."""
    with run_snippet(WAITS.format(directory=str(tmp_path))) as snippet:
        path = Path(snippet.read_line())
        path = path.rename(tmp_path / "mine-20260101T000000-999999999-abcdef.stacks")
        left(tmp_path, path.name, text, at=NOW - 2 * MAX_AGE_SECONDS)
        prune_crash_files(tmp_path, now=NOW)
        assert [path] == list(tmp_path.iterdir())


def test_one_that_a_killed_process_left_empty_goes_when_the_next_is_opened(tmp_path: Path) -> None:
    with run_snippet(WAITS.format(directory=str(tmp_path))) as snippet:
        dead = Path(snippet.read_line())
        snippet.signal(SIGKILL)
        assert -SIGKILL == snippet.wait()[0]
    left(tmp_path, dead.name, "")
    with opened(tmp_path) as file:
        assert [file.path] == list(tmp_path.iterdir())
