from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from fake_proc import BARE, EXECUTING, OWN_PID, FakeProc
from longwatch.host.guardian.cgroups import Cgroup
from longwatch.host.guardian.main import GuardianProcess
from longwatch.host.guardian.tree import ProcessTree, TreeScanner


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeProc:
    monkeypatch.setattr(os, "getpid", lambda: OWN_PID)
    return FakeProc(tmp_path / "proc")


def found(proc: FakeProc, *trees: ProcessTree) -> list[set[int]]:
    """Whom one scan finds of each tree."""
    members = TreeScanner(proc.table()).members(trees)
    return [{process.pid for process in members[tree]} for tree in trees]


def tree(number: int, *, leader: int, alive: bool = True) -> ProcessTree:
    return ProcessTree(number, f"mark{number}", leader=leader, leader_alive=alive)


def add_marked_orphan(proc: FakeProc, pid: int, number: int, *, session: int = 8) -> None:
    """An orphan with the mark of that tree."""
    proc.add(pid, session=session)
    proc.write_environment(pid, "A=1", f"LONGWATCH_OWNER=mark{number}")


def test_a_process_belongs_to_the_leader_above_it(proc: FakeProc) -> None:
    for pid, parent in ((10, OWN_PID), (11, 10), (12, 11), (20, OWN_PID), (21, 20)):
        proc.add(pid, parent=parent)
    assert [{10, 11, 12}, {20, 21}] == found(proc, tree(1, leader=10), tree(2, leader=20))


def test_a_process_that_is_not_below_us_belongs_to_nobody(proc: FakeProc) -> None:
    proc.add(10)
    proc.add(30, parent=1, session=10)
    proc.write_environment(30, "LONGWATCH_OWNER=mark1")
    assert [{10}] == found(proc, tree(1, leader=10))


def test_an_orphan_belongs_to_the_tree_in_whose_session_it_is(proc: FakeProc) -> None:
    for pid in (10, 20):
        proc.add(pid)
    proc.add(11, BARE, session=10)
    proc.add(21, BARE, session=20)
    assert [{10, 11}, {20, 21}] == found(proc, tree(1, leader=10), tree(2, leader=20))


def test_an_orphan_in_a_session_of_its_own_belongs_to_the_tree_whose_mark_it_bears(
    proc: FakeProc,
) -> None:
    for pid in (10, 20):
        proc.add(pid)
    add_marked_orphan(proc, 11, 1)
    add_marked_orphan(proc, 21, 2)
    proc.add(22, parent=21)
    assert [{10, 11}, {20, 21, 22}] == found(proc, tree(1, leader=10), tree(2, leader=20))


def test_a_stranger_belongs_to_the_only_tree_and_to_none_of_several(proc: FakeProc) -> None:
    for pid in (10, 20):
        proc.add(pid)
    proc.add(11, BARE)
    assert [{10}, {20}] == found(proc, tree(1, leader=10), tree(2, leader=20))
    proc.remove(20)
    assert [{10, 11}] == found(proc, tree(1, leader=10))


def test_the_cgroup_has_the_first_word(proc: FakeProc, tmp_path: Path) -> None:
    for pid in (10, 20):
        proc.add(pid)
    add_marked_orphan(proc, 11, 2, session=20)
    cage = tmp_path / "cage"
    (cage / "inner").mkdir(parents=True)
    (cage / "cgroup.procs").write_text("10\n")
    (cage / "inner" / "cgroup.procs").write_text("11\n0\n")
    first = tree(1, leader=10)
    first.cgroup = Cgroup(str(cage))
    assert [{10, 11}, {20}] == found(proc, first, tree(2, leader=20))


def test_the_number_of_a_leader_that_has_ended_may_be_somebody_elses(proc: FakeProc) -> None:
    proc.add(20)
    proc.add(10, parent=20)
    assert [set(), {10, 20}] == found(proc, tree(1, leader=10, alive=False), tree(2, leader=20))


def test_a_session_keeps_its_meaning_while_somebody_is_in_it_though_its_leader_has_ended(
    proc: FakeProc,
) -> None:
    proc.add(20)
    proc.add(11, BARE, session=10)
    first, second = tree(1, leader=10, alive=False), tree(2, leader=20)
    for _ in range(2):
        assert [{11}, {20}] == found(proc, first, second)


def test_a_session_that_was_found_empty_has_lost_its_meaning(proc: FakeProc) -> None:
    proc.add(20)
    first, second = tree(1, leader=10, alive=False), tree(2, leader=20)
    assert [set(), {20}] == found(proc, first, second)
    add_marked_orphan(proc, 10, 2, session=10)
    assert [set(), {10, 20}] == found(proc, first, second)


def test_somebody_whose_mark_cannot_be_read_now_is_remembered_as_unclear(proc: FakeProc) -> None:
    for pid in (10, 20):
        proc.add(pid)
    forest = TreeScanner(proc.table())
    trees = [tree(1, leader=10), tree(2, leader=20)]
    forest.members(trees)
    assert not forest.environment_unreadable
    proc.add(30, EXECUTING)
    forest.members(trees)
    assert forest.environment_unreadable


def test_a_hunt_meets_among_our_children_whom_no_scan_has_shown_and_spares_other_trees(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in (10, 20):
        proc.add(pid)
    add_marked_orphan(proc, 11, 1)
    add_marked_orphan(proc, 21, 2)
    children = proc.root / str(OWN_PID) / "task" / str(OWN_PID)
    children.mkdir(parents=True)
    (children / "children").write_text("11 21 30 ")
    table = proc.table()
    struck: set[int] = set()
    monkeypatch.setattr(table, "read", dict)
    monkeypatch.setattr(table, "signal", lambda process, _: struck.add(process.pid))
    monkeypatch.setattr(os, "killpg", lambda *_: None)
    doomed, spared = tree(1, leader=10), tree(2, leader=20)
    TreeScanner(table).kill_orphans([doomed], [doomed, spared])
    assert {11} == struck
    assert {(11, 4711)} == doomed.killed


@pytest.mark.parametrize(
    ("alive", "group", "told"),
    [(True, True, ["group"]), (True, False, ["leader"]), (False, True, []), (False, False, [])],
)
def test_a_number_that_may_be_somebody_elses_by_now_is_not_signalled(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch, *, alive: bool, group: bool, told: list[str]
) -> None:
    signalled: list[str] = []
    monkeypatch.setattr(os, "killpg", lambda *_: signalled.append("group"))
    monkeypatch.setattr(os, "kill", lambda *_: signalled.append("leader"))
    with socket.socket() as control:
        guardian = GuardianProcess(control, 1, None)
        guardian.scanner = TreeScanner(proc.table())
        guardian.trees[1] = tree(1, leader=10, alive=alive)
        guardian._on_signal({"id": 1, "signal": 15, "group": group}, ())
    assert told == signalled


def test_what_a_leader_left_in_its_group_is_still_signalled(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    signalled: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda number, signum: signalled.append((number, signum)))
    proc.add(11)  # made up with group 7
    with socket.socket() as control:
        guardian = GuardianProcess(control, 1, None)
        guardian.scanner = TreeScanner(proc.table())
        guardian.trees[1] = tree(1, leader=7, alive=False)
        guardian._on_signal({"id": 1, "signal": 15, "group": True}, ())
    assert [(7, 15)] == signalled
