"""OutputFile: a bounded file that keeps the end of what is written."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.host.task import OutputFile, OutputTail

TIMEOUT = 30.0


def lines_of(lengths: list[int]) -> list[bytes]:
    return [f"{number}:".encode() + b"x" * length for number, length in enumerate(lengths)]


@given(
    blocks=st.lists(st.lists(st.integers(0, 400), min_size=1, max_size=20), max_size=40),
    max_bytes=st.integers(600, 4096),  # a line has room
)
def test_the_file_is_the_end_of_the_output_and_says_what_is_missing(
    blocks: list[list[int]], max_bytes: int
) -> None:
    """At every bound, for every sequence of blocks: kept and missing bytes are all bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "out")
        out, all_of_it = OutputFile(path, max_bytes=max_bytes), b""
        for block in blocks:
            data = b"".join(line + b"\n" for line in lines_of(block))
            assert out.write(data)
            all_of_it += data
        assert out.close(TIMEOUT)
        kept = path.read_bytes()
    assert len(kept) <= max_bytes
    assert (len(all_of_it), 0) == (out.total_bytes, out.dropped)
    if len(all_of_it) <= max_bytes:
        assert all_of_it == kept
        return
    notice, _, rest = kept.partition(b"\n")
    assert all_of_it.endswith(rest)
    assert len(rest) > min(max_bytes // 2 - 128 - 500, max_bytes // 8)
    assert b"[the first %d bytes are not kept]" % (len(all_of_it) - len(rest)) == notice
    assert all_of_it[: -len(rest)].endswith(b"\n")


def test_a_full_disk_costs_lines_and_leaves_no_torn_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    out = OutputFile(path, max_bytes=1024)
    out.write(b"before\n")
    assert out._writer.flush(TIMEOUT)
    write = os.pwrite

    def refuse(fd: int, data: bytes, offset: int) -> int:
        if data == b"old\n":
            raise OSError(errno.ENOSPC, "no space")
        return write(fd, data[:4] if data == b"no fold\n" else data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        out.write(b"no fold\n")
        assert out._writer.flush(TIMEOUT)
    out.write(b"after\n")
    assert out.close(TIMEOUT)
    assert b"before\nafter\n" == path.read_bytes()
    assert 1 == out.dropped


def test_a_file_that_is_there_is_replaced_and_belongs_to_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("of another run\n")
    path.chmod(0o644)
    out = OutputFile(path, max_bytes=1024)
    out.write(b"of this one\n")
    assert out.close(TIMEOUT)
    assert out.close(TIMEOUT)
    assert not out.write(b"late\n")
    assert (b"of this one\n", 0o600) == (path.read_bytes(), path.stat().st_mode & 0o777)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        OutputFile(tmp_path / "out", max_bytes=1024)
    assert not (tmp_path / "elsewhere").exists()


def test_a_bound_without_room_for_lines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 512, got 100"):
        OutputFile(tmp_path / "out", max_bytes=100)
    assert not (tmp_path / "out").exists()


def test_a_tail_keeps_the_last_bytes() -> None:
    tail = OutputTail(10)
    for number in range(20):
        assert tail.write(f"{number}\n".encode())
    assert b"6\n17\n18\n19\n"[-10:] == tail.data
    tail.write(b"x" * 100)
    assert b"x" * 10 == tail.data
