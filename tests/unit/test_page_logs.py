"""Ends of logs and saved stacks: a bounded part of a regular file, as plain text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from longwatch.page.data import MAX_LINE_BYTES, MAX_TAIL_BYTES, LogSource
from longwatch.page.view import NotFoundError


def source(tmp_path: Path) -> LogSource:
    (tmp_path / "logs").mkdir(exist_ok=True)
    (tmp_path / "crashes").mkdir(exist_ok=True)
    return LogSource(tmp_path)


def test_the_last_lines_come_without_colours_and_with_control_characters_escaped(
    tmp_path: Path,
) -> None:
    logs = source(tmp_path)
    (tmp_path / "logs" / "web.log").write_bytes(
        b"one\n\x1b[31mred\x1b[0m\na\x1b]0;title\x07b\x00\n10%\r100%\n\xff\xfe\nlast"
    )

    assert ["web"] == logs.names()
    end = logs.tail("web", 5)
    assert ["red", "a\\x1b]0;title\\x07b\\x00", "100%", "\\xff\\xfe", "last"] == end.lines
    assert end.cut


def test_of_a_huge_log_the_end_alone_is_read(tmp_path: Path) -> None:
    logs = source(tmp_path)
    path = tmp_path / "logs" / "web.log"
    with path.open("wb") as file:
        file.truncate(1 << 30)  # a gigabyte that takes no room
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + b"line\n" * 10)

    end = logs.tail("web", 3)
    assert ["line"] * 3 == end.lines
    assert (1 << 30) + 51 == end.size


def test_a_line_without_end_is_cut(tmp_path: Path) -> None:
    logs = source(tmp_path)
    (tmp_path / "logs" / "web.log").write_bytes(b"x" * (2 * MAX_TAIL_BYTES))

    [line] = logs.tail("web", 10).lines
    assert "x" * MAX_LINE_BYTES + " …" == line


def test_an_empty_log_has_no_lines(tmp_path: Path) -> None:
    logs = source(tmp_path)
    (tmp_path / "logs" / "web.log").touch()

    assert ([], False) == (logs.tail("web", 10).lines, logs.tail("web", 10).cut)


@pytest.mark.parametrize("name", ["watchdog", "nothing", "../secret", "/etc/passwd", ".", ""])
def test_only_logs_of_programs_are_shown(tmp_path: Path, name: str) -> None:
    logs = source(tmp_path)
    (tmp_path / "secret.log").write_text("secret")
    (tmp_path / "logs" / "watchdog.log").write_text("{}")

    with pytest.raises(NotFoundError):
        logs.tail(name, 10)


def test_links_pipes_and_directories_are_no_logs(tmp_path: Path) -> None:
    logs = source(tmp_path)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "logs" / "link.log").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "logs" / "pipe.log")
    (tmp_path / "logs" / "directory.log").mkdir()

    for name in ("link", "pipe", "directory"):
        with pytest.raises(NotFoundError):
            logs.tail(name, 10)


@pytest.mark.parametrize(
    "name",
    [
        "../logs/web.log",
        "..",
        ".",
        "",
        "a/b",
        "/etc/passwd",
        "link.stacks",
        "x\0y",
        "no.stacks",
        "-rf",
        ".hidden",
        "a" * 300,
    ],
)
def test_only_files_of_the_directory_of_stacks_are_shown(tmp_path: Path, name: str) -> None:
    logs = source(tmp_path)
    (tmp_path / "logs" / "web.log").write_text("log")
    (tmp_path / "crashes" / ".hidden").write_text("hidden")
    (tmp_path / "crashes" / "link.stacks").symlink_to(tmp_path / "logs" / "web.log")

    with pytest.raises(NotFoundError):
        logs.stacks(name)


def test_saved_stacks_are_listed_newest_first_with_the_pids_in_their_names(tmp_path: Path) -> None:
    logs = source(tmp_path)
    names = ["jobs-20260101T000000-12-abc123.stacks", "a-1-20260101T000000-13-abc123.stacks", "x"]
    for moment, name in enumerate([*names, "empty-20260101T000000-14-abc123.stacks"]):
        path = tmp_path / "crashes" / name
        path.write_text("" if "empty" in name else "stacks\n")
        os.utime(path, (moment, moment))

    assert [("x", 0), (names[1], 13), (names[0], 12)] == [
        (each.name, each.pid) for each in logs.stack_files()
    ]
    assert ["stacks"] == logs.stacks(names[0]).lines
