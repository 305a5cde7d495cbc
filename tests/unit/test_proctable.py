from __future__ import annotations

import os
from pathlib import Path

import pytest

from longwatch.host.guardian.proctable import Process, ProcTable, descendants

ME = 100
EXECUTING = {"code": 0, "begin": 0, "end": 0}
LAID_OUT = {"code": 0, "begin": 5000, "end": 5000}
BARE = {"begin": 5000, "end": 5000}
DYING = {"memory": 0, "code": 0, "begin": 0, "end": 0}
KERNEL = {**DYING, "flags": 0x00200040}


class Proc:
    """A made-up /proc."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        (root / "self").symlink_to(str(ME))
        self.add(ME, parent=1, pids=[ME])

    def add(
        self, key: int, memory: dict[str, int] | None = None, *, parent: int = ME, state: str = "S", pids: list[int] | None = None
    ) -> None:
        place = {"flags": 0x400000, "memory": 9000, "code": 1, "begin": 5000, "end": 5100, **(memory or {})}
        fields = [0] * 50
        fields[1:4] = parent, 7, 8
        fields[6], fields[19], fields[20] = place["flags"], 4711, place["memory"]
        fields[23], fields[47], fields[48] = place["code"], place["begin"], place["end"]
        folder = self.root / str(key)
        folder.mkdir()
        (folder / "stat").write_text(f"{key} (a) odd) name) {state} {' '.join(map(str, fields[1:]))}\n")
        (folder / "environ").write_bytes(b"")
        numbers = "\t".join(map(str, pids or [key]))
        (folder / "status").write_text(f"Name:\tx\nNSpid:\t{numbers}\nNSpgid:\t{numbers}\nNSsid:\t{numbers}\n")

    def write_environment(self, key: int, *entries: str) -> None:
        (self.root / str(key) / "environ").write_bytes(b"".join(entry.encode() + b"\0" for entry in entries))

    def table(self) -> ProcTable:
        return ProcTable(str(self.root))


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    monkeypatch.setattr(os, "getpid", lambda: ME)
    return Proc(tmp_path / "proc")


def environment(proc: Proc, key: int) -> list[bytes] | None:
    process = proc.table().one(key)
    assert process is not None
    return proc.table().environment(process)


def test_a_process_is_read_whatever_its_name_is(proc: Proc) -> None:
    proc.add(200)
    assert Process(key=200, pid=200, parent=ME, group=7, session=8, start=4711) == proc.table().one(200)


@pytest.mark.parametrize("state", ["Z", "X"])
def test_who_has_ended_is_not_there(proc: Proc, state: str) -> None:
    proc.add(200, state=state)
    assert None is proc.table().one(200)
    assert [ME] == list(proc.table().read())


def test_who_is_gone_is_not_there(proc: Proc) -> None:
    assert None is proc.table().one(999)


def test_an_environment_is_read_entry_by_entry(proc: Proc) -> None:
    proc.add(200)
    proc.write_environment(200, "A=1", "LONGWATCH_OWNER=abc", "LONGWATCH_OWNER2=x")
    assert [b"A=1", b"LONGWATCH_OWNER=abc", b"LONGWATCH_OWNER2=x", b""] == environment(proc, 200)


@pytest.mark.parametrize("memory", [EXECUTING, LAID_OUT, DYING, {}], ids=["executing", "laid out", "dying", "just executed"])
def test_an_environment_that_is_out_of_sight_is_not_taken_for_none(proc: Proc, memory: dict[str, int]) -> None:
    proc.add(200, memory)
    assert None is environment(proc, 200)


@pytest.mark.parametrize("memory", [BARE, KERNEL], ids=["bare", "kernel thread"])
def test_who_has_no_environment_has_none(proc: Proc, memory: dict[str, int]) -> None:
    proc.add(200, memory)
    assert [] == environment(proc, 200)


def test_who_ended_while_it_was_looked_at_has_none(proc: Proc) -> None:
    proc.add(200, EXECUTING)
    process = proc.table().one(200)
    assert process is not None
    for file in (proc.root / "200").iterdir():
        file.unlink()
    assert [] == proc.table().environment(process)


def test_with_the_outer_numbers_in_proc_each_process_has_both(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 2)
    (proc.root / str(ME) / "status").write_text("NSpid:\t100\t2\nNSpgid:\t100\t2\nNSsid:\t100\t2\n")
    proc.add(200, pids=[200, 3])
    proc.add(300, pids=[300, 4, 1])
    proc.add(400, pids=[400])
    table = proc.table()
    assert [(100, 2), (200, 3), (300, 4)] == sorted((process.key, process.pid) for process in table.read().values())
    assert Process(key=300, pid=4, parent=ME, group=4, session=4, start=4711) == table.one(300)


def test_descendants_are_those_below_and_nobody_else(proc: Proc) -> None:
    for key, parent in ((200, ME), (201, 200), (202, 201), (300, 1), (301, 300)):
        proc.add(key, parent=parent)
    assert [200, 201, 202] == [process.key for process in descendants(proc.table().read(), ME)]
