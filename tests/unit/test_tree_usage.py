"""What process trees use, by a /proc that the test makes up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fake_proc import OWN_PID, FakeProc
from longwatch.host import tree_usage
from longwatch.host.guardian.tree import ProcessTree, TreeScanner
from longwatch.host.tree_usage import TreeUsage, own_usage, sum_usage, tree_usages, usage_facts

GUARDIAN = 150
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeProc:
    """A guardian below the process that looks."""
    monkeypatch.setattr(os, "getpid", lambda: OWN_PID)
    fake = FakeProc(tmp_path / "proc")
    monkeypatch.setattr(tree_usage, "TreeScanner", lambda: TreeScanner(fake.table()))
    fake.add(GUARDIAN)
    return fake


def use(proc: FakeProc, key: int, *, ticks: int, pages: int) -> None:
    path = proc.root / str(key) / "stat"
    head, _, rest = path.read_text().rpartition(") ")
    fields = rest.split()
    fields[11], fields[21] = str(ticks), str(pages)
    path.write_text(f"{head}) {' '.join(fields)}\n")


def test_a_tree_uses_what_all_its_processes_use(proc: FakeProc) -> None:
    """A child, and one that has left its parent and its session and bears the mark."""
    proc.add(200, parent=GUARDIAN, session=200)
    proc.add(201, parent=200, session=200)
    proc.add(202, parent=GUARDIAN, session=202)
    proc.write_environment(202, "LONGWATCH_OWNER=web")
    proc.add(300, parent=GUARDIAN, session=300)
    for key in (200, 201, 202, 300):
        use(proc, key, ticks=key, pages=key)
    trees = [ProcessTree(1, "web", leader=200), ProcessTree(2, "job", leader=300)]

    assert {
        200: TreeUsage(processes=3, cpu_seconds=603 / TICK, memory_bytes=603 * PAGE),
        300: TreeUsage(processes=1, cpu_seconds=300 / TICK, memory_bytes=300 * PAGE),
    } == tree_usages(trees, guardian=GUARDIAN)


def test_the_guardian_itself_is_no_part_of_the_only_tree(proc: FakeProc) -> None:
    proc.add(200, parent=GUARDIAN, session=200)

    [usage] = tree_usages([ProcessTree(1, "web", leader=200)], guardian=GUARDIAN).values()

    assert 1 == usage.processes


def test_without_its_guardian_a_tree_has_no_processes(proc: FakeProc) -> None:
    proc.add(200, parent=GUARDIAN, session=200)
    proc.add(160, parent=1)

    [usage] = tree_usages([ProcessTree(1, "web", leader=200)], guardian=160).values()

    assert 0 == usage.processes


def test_the_own_usage_is_that_of_everything_below(proc: FakeProc) -> None:
    proc.add(200, parent=GUARDIAN)
    for key in (OWN_PID, GUARDIAN, 200):
        use(proc, key, ticks=10, pages=1)

    expected = TreeUsage(processes=3, cpu_seconds=30 / TICK, memory_bytes=3 * PAGE)
    assert expected == own_usage(proc.table())


def test_a_process_that_is_gone_counts_for_nothing(proc: FakeProc) -> None:
    assert 0 == sum_usage([999], proc.table()).processes


def test_what_cannot_be_seen_is_null_in_json() -> None:
    assert {"processes": None, "cpu_seconds": None, "memory_bytes": None} == usage_facts(None)
