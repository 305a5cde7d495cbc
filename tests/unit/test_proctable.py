from __future__ import annotations

import os
from pathlib import Path

import pytest

from fake_proc import BARE, DYING, EXECUTING, KERNEL, NO_ARGUMENTS, OWN_PID, FakeProc
from longwatch.host.guardian.proctable import Process, ProcTable, descendants
from longwatch.host.guardian.tree import kill_processes


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeProc:
    monkeypatch.setattr(os, "getpid", lambda: OWN_PID)
    return FakeProc(tmp_path / "proc")


def environment(proc: FakeProc, key: int) -> list[bytes] | None:
    process = proc.table().get(key)
    assert process is not None
    return proc.table().environment(process)


def test_a_process_is_read_whatever_its_name_is(proc: FakeProc) -> None:
    proc.add(200)
    assert Process(
        key=200, pid=200, parent=OWN_PID, group=7, session=8, start=4711
    ) == proc.table().get(200)


@pytest.mark.parametrize("state", ["Z", "X"])
def test_who_has_ended_is_not_there(proc: FakeProc, state: str) -> None:
    proc.add(200, state=state)
    assert None is proc.table().get(200)
    assert [OWN_PID] == list(proc.table().read())


def test_who_is_gone_is_not_there(proc: FakeProc) -> None:
    assert None is proc.table().get(999)


def test_an_environment_is_read_entry_by_entry(proc: FakeProc) -> None:
    proc.add(200)
    proc.write_environment(200, "A=1", "LONGWATCH_OWNER=abc", "LONGWATCH_OWNER2=x")
    assert [b"A=1", b"LONGWATCH_OWNER=abc", b"LONGWATCH_OWNER2=x", b""] == environment(proc, 200)


@pytest.mark.parametrize(
    "memory",
    [EXECUTING, NO_ARGUMENTS, DYING, {}],
    ids=["executing", "laid out", "dying", "just executed"],
)
def test_an_environment_that_is_out_of_sight_is_not_taken_for_none(
    proc: FakeProc, memory: dict[str, int]
) -> None:
    proc.add(200, memory)
    assert None is environment(proc, 200)


@pytest.mark.parametrize("memory", [BARE, KERNEL], ids=["bare", "kernel thread"])
def test_who_has_no_environment_has_none(proc: FakeProc, memory: dict[str, int]) -> None:
    proc.add(200, memory)
    assert [] == environment(proc, 200)


def test_who_ended_while_it_was_looked_at_has_none(proc: FakeProc) -> None:
    proc.add(200, EXECUTING)
    process = proc.table().get(200)
    assert process is not None
    proc.remove(200)
    assert [] == proc.table().environment(process)


def test_with_the_outer_numbers_in_proc_each_process_has_both(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 2)
    for numbers in ((OWN_PID, 2), (200, 3), (300, 4, 1), (400,)):
        if numbers[0] != OWN_PID:
            proc.add(numbers[0])
        proc.write_namespaced_pids(numbers[0], *numbers)
    table = proc.table()
    assert [(100, 2), (200, 3), (300, 4)] == sorted(
        (process.key, process.pid) for process in table.read().values()
    )
    assert Process(key=300, pid=4, parent=OWN_PID, group=4, session=4, start=4711) == table.get(300)


def test_descendants_are_those_below_and_nobody_else(proc: FakeProc) -> None:
    for key, parent in ((200, OWN_PID), (201, 200), (202, 201), (300, 1), (301, 300)):
        proc.add(key, parent=parent)
    assert [200, 201, 202] == [process.key for process in descendants(proc.table().read(), OWN_PID)]


def test_a_strike_goes_to_every_group_but_our_own_in_which_a_child_may_still_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    struck: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda group, signum: struck.append((group, signum)))
    monkeypatch.setattr(os, "getpgrp", lambda: 77)
    quiet = ProcTable()
    monkeypatch.setattr(
        quiet, "signal", lambda process, signum: struck.append((process.pid, signum))
    )
    kill_processes(
        quiet,
        [
            Process(key=pid, pid=pid, parent=1, group=group, session=1, start=1)
            for pid, group in ((5, 77), (6, 66), (7, 66), (8, 0))
        ],
    )
    assert {(66, 9), (5, 9), (6, 9), (7, 9), (8, 9)} == set(struck)


def test_the_usage_of_a_process_includes_children_that_it_waited_for(proc: FakeProc) -> None:
    proc.add(200)
    fields = (proc.root / "200" / "stat").read_text().rpartition(") ")
    words = fields[2].split()
    words[11:15], words[21] = ["1", "20", "300", "4000"], "77"
    (proc.root / "200" / "stat").write_text(f"{fields[0]}) {' '.join(words)}\n")

    assert (4321, 77) == proc.table().usage(200)
    assert proc.table().usage(999) is None
