from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from longwatch.core.events.programs import ProgramStarted
from longwatch.core.fake_clock import FakeClock
from longwatch.errors import UsageError
from longwatch.host.nonblocking_writer import NonblockingWriter
from longwatch.observe.event_log import EventLog, LogSink, dropped_lines_record
from longwatch.observe.logfile import LogFile
from small_disk import small_filesystem

LINE = b"x" * 99 + b"\n"
NOBODY = 65534


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_filesystem(tmp_path, size="64k") as place:
        yield place


def _missing(reason: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def event(number: int) -> ProgramStarted:
    return ProgramStarted(program="web", pid=42, command=("serve", "x" * 50), start_number=number)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_the_file_and_its_directories_are_made_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "logs" / "watchdog.log"
    log = LogFile(path)
    log.write(LINE)
    log.close()

    assert LINE == path.read_bytes()
    assert [0o600, 0o700] == [path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777]


def test_a_log_that_was_there_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"before\n")
    log = LogFile(path)
    log.write(b"after\n")
    log.close()

    assert b"before\nafter\n" == path.read_bytes()


def test_a_last_line_that_was_never_finished_is_ended_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b'{"half":')
    log = LogFile(path)
    log.write(b"a\n")
    log.write(b"b\n")
    log.close()

    assert b'{"half":\na\nb\n' == path.read_bytes()


def test_the_log_is_rotated_before_it_grows_too_large_and_the_oldest_file_goes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.log"
    log = LogFile(path, max_bytes=250, keep=2)
    for number in range(9):
        assert log.write(b"%d %s\n" % (number, b"x" * 97))
    log.close()

    contents = {
        file.name: [line[:1] for line in file.read_bytes().splitlines()]
        for file in tmp_path.iterdir()
    }
    assert {"x.log": [b"8"], "x.log.1": [b"6", b"7"], "x.log.2": [b"4", b"5"]} == contents


def test_a_line_larger_than_the_limit_has_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    log = LogFile(path, max_bytes=50, keep=5)
    for letter in (b"a", b"b"):
        log.write(letter * 99 + b"\n")
    log.close()

    assert (b"b" * 99 + b"\n", b"a" * 99 + b"\n") == (
        path.read_bytes(),
        path.with_name("x.log.1").read_bytes(),
    )


def test_with_nothing_to_keep_rotation_starts_an_empty_file(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "x.log", max_bytes=150, keep=0)
    log.write(LINE)
    log.write(b"last\n" + LINE)
    log.close()

    assert [("x.log", b"last\n" + LINE)] == [
        (file.name, file.read_bytes()) for file in tmp_path.iterdir()
    ]


@pytest.mark.parametrize("how", ["deleted", "renamed", "replaced", "directory deleted"])
def test_a_log_taken_away_under_us_is_opened_anew(tmp_path: Path, how: str) -> None:
    path = tmp_path / "logs" / "x.log"
    log = LogFile(path)
    log.write(b"before\n")
    match how:
        case "deleted":
            path.unlink()
        case "renamed":
            path.rename(tmp_path / "elsewhere")
        case "replaced":
            (tmp_path / "other").touch()
            (tmp_path / "other").replace(path)
        case _:
            path.unlink()
            path.parent.rmdir()

    assert log.write(b"after\n")
    assert (b"after\n", 0) == (path.read_bytes(), log.dropped)
    log.close()


def test_a_log_that_was_emptied_in_place_goes_on_from_its_start(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "x.log")
    log.write(LINE)
    os.truncate(tmp_path / "x.log", 0)
    log.write(b"after\n")
    log.close()

    assert b"after\n" == (tmp_path / "x.log").read_bytes()


def test_lines_of_many_threads_stay_whole_over_rotations(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "x.log", max_bytes=5000, keep=100)

    def write(letter: bytes) -> None:
        for _ in range(200):
            log.write(letter * 99 + b"\n")

    threads = [
        threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b", b"c", b"d")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()

    lines = [line for file in tmp_path.iterdir() for line in file.read_bytes().splitlines()]
    assert sorted(letter * 99 for letter in (b"a", b"b", b"c", b"d") for _ in range(200)) == sorted(
        lines
    )


def test_after_closing_lines_are_dropped_and_counted(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "x.log")
    log.close()
    log.close()

    assert (False, 2) == (log.write(LINE * 2), log.dropped)


def test_a_full_disk_drops_whole_lines_and_tells_how_many_once_it_has_room_again(
    small_disk: Path,
) -> None:
    ballast, path = small_disk / "ballast", small_disk / "watchdog.log"
    ballast.write_bytes(b"x" * 40_000)
    clock = FakeClock()
    file = LogFile(path, dropped_line=dropped_lines_record(clock=clock, manager_pid=7))
    log = EventLog([LogSink(writer=file)], clock=clock, manager_pid=7)
    for number in range(500):
        log(event(number))
    lost = file.dropped
    assert 0 < lost < 500
    assert list(range(500 - lost)) == [record["start_number"] for record in records(path)]

    ballast.unlink()
    log(event(500))
    *_, notice, last = records(path)
    assert ("log_lines_dropped", lost) == (notice["event"], notice["lines"])
    assert 500 == last["start_number"]
    assert 500 - lost + 2 == len(records(path))
    file.close()


def test_a_full_disk_takes_the_lines_of_one_write_that_fit(small_disk: Path) -> None:
    log = LogFile(small_disk / "x.log")

    assert not log.write(LINE * 1000)
    content = (small_disk / "x.log").read_bytes()
    assert 0 == len(content) % len(LINE)
    assert 1000 == log.dropped + content.count(b"\n")
    log.close()


def test_a_full_disk_behind_standard_output_breaks_nothing_and_glues_no_lines(
    small_disk: Path,
) -> None:
    ballast, path = small_disk / "ballast", small_disk / "out"
    ballast.write_bytes(b"x" * 40_000)
    with path.open("ab") as out:
        outlet = NonblockingWriter(out.fileno())
        for _ in range(500):
            outlet.write(LINE)
        assert outlet.flush(10)
        ballast.unlink()
        outlet.write(b"last\n")
        assert outlet.close(10)

    lines = path.read_bytes().splitlines(keepends=True)
    assert b"last\n" == lines[-1]
    assert 500 == outlet.dropped + lines.count(LINE)


def test_a_file_system_that_is_read_only_is_wrong_use_with_the_cure(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)

    with pytest.raises(
        UsageError,
        match=r"read-only file system; choose a directory you may write to with --state-dir",
    ):
        LogFile(small_disk / "logs" / "x.log")


def test_a_place_that_cannot_hold_a_log_is_wrong_use_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "fifo")
    reasons = []
    for path in (tmp_path / "file" / "x.log", tmp_path, tmp_path / "fifo", tmp_path / ("n" * 300)):
        with pytest.raises(
            UsageError, match=r"cannot write the log .*; choose .*--state-dir"
        ) as caught:
            LogFile(path)
        reasons.append(
            str(caught.value).removeprefix(f"cannot write the log {path}: ").partition(";")[0]
        )

    assert 2 == UsageError.exit_code
    assert [
        "not a directory",
        "is a directory",
        "not a regular file",
        "file name too long",
    ] == reasons


def test_without_permission_it_is_wrong_use_with_the_cure(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        _missing("needs root to become somebody without permission")
    script = """if True:
        import os, pathlib, sys
        from longwatch.observe.logfile import LogFile
        os.chdir(sys.argv[2])
        os.setuid(int(sys.argv[1]))
        LogFile(pathlib.Path("logs/x.log"))
    """
    tmp_path.chmod(0o755)
    argv = [sys.executable, "-c", script, str(NOBODY), str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    assert "permission denied; choose a directory you may write to with --state-dir" in done.stderr


def test_a_log_that_loses_its_directory_for_good_counts_and_raises_nothing(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "x.log"
    log = LogFile(path)
    path.unlink()
    path.parent.rmdir()
    path.parent.touch()

    assert (False, 1) == (log.write(LINE), log.dropped)
    path.parent.unlink()
    assert log.write(LINE)
    assert LINE == path.read_bytes()
    log.close()


def test_a_notice_that_fails_costs_no_line(tmp_path: Path) -> None:
    def notice(lines: int) -> bytes:
        raise RuntimeError

    path = tmp_path / "logs" / "x.log"
    log = LogFile(path, dropped_line=notice)
    path.unlink()
    path.parent.rmdir()
    path.parent.touch()
    log.write(LINE)
    path.parent.unlink()

    assert log.write(LINE)
    assert LINE == path.read_bytes()
    log.close()


def test_a_symbolic_link_is_not_followed_at_the_start(tmp_path: Path) -> None:
    """Another user may have put it there, and a supervisor of root would write to its target."""
    link = tmp_path / "x.log"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError) as refused:
        LogFile(link)
    assert (
        f"cannot write the log {link}: it is a symbolic link; remove it, or choose another "
        f"directory with --state-dir"
    ) == str(refused.value)
    assert not (tmp_path / "elsewhere").exists()


def test_a_link_that_takes_the_place_of_an_open_log_gets_no_lines_and_is_reported_once(
    tmp_path: Path,
) -> None:
    path, elsewhere, reasons = tmp_path / "x.log", tmp_path / "elsewhere", list[str]()
    log = LogFile(path, on_failed=reasons.append)
    assert log.write(b"first\n")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert [False, False] == [log.write(b"second\n"), log.write(b"third\n")]
    assert (["it is a symbolic link"], 2) == (reasons, log.dropped)
    path.unlink()
    assert log.write(b"fourth\n")
    path.unlink()
    path.symlink_to(elsewhere)
    assert not log.write(b"fifth\n")
    assert 2 == len(reasons)
    log.close()
    assert not log.write(b"sixth\n")
    assert 2 == len(reasons)
    assert b"first\n" == elsewhere.read_bytes()


def test_rotation_moves_links_and_follows_none(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "x.log", tmp_path / "elsewhere"
    elsewhere.write_bytes(b"theirs\n")
    for number in (1, 2):
        path.with_name(f"x.log.{number}").symlink_to(elsewhere)
    log = LogFile(path, max_bytes=10, keep=2)
    for line in (b"first--\n", b"second-\n", b"third--\n"):
        assert log.write(line)
    log.close()
    assert b"theirs\n" == elsewhere.read_bytes()
    assert [b"third--\n", b"second-\n", b"first--\n"] == [
        path.with_name(name).read_bytes() for name in ("x.log", "x.log.1", "x.log.2")
    ]
