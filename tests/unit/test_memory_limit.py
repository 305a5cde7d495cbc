from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from longwatch.host.guardian.cgroups import Cgroup, Cgroups
from longwatch.host.guardian.main import GuardianProcess
from longwatch.host.guardian.spawn import ChildSetup, SpawnRequest
from longwatch.host.guardian.tree import ProcessTree, likely_out_of_memory
from longwatch.host.guardian.wire import ControlMessage

MEBIBYTE = 1 << 20
KILLED = int(signal.SIGKILL)
ABORTED = int(signal.SIGABRT)
FAILED = 1 << 8


class FakeCgroup:
    """A folder with the files of a cgroup that has a memory controller, and one of a tree inside
    it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = root / "1"
        self.tree.mkdir()
        (root / "cgroup.subtree_control").touch()
        for name in ("memory.max", "memory.swap.max", "memory.oom.group", "cgroup.procs"):
            (self.tree / name).touch()
        self.count(0)
        self.cgroup = Cgroup(str(self.tree))

    def count(self, kills: int) -> None:
        """So many of it were killed for want of memory."""
        (self.tree / "memory.events").write_text(
            f"low 0\nhigh 0\nmax 9\noom 3\noom_kill {kills}\noom_group_kill 0\n"
        )

    def written(self) -> dict[str, str]:
        names = ("memory.max", "memory.swap.max", "memory.oom.group")
        return {
            name: (self.tree / name).read_text() for name in names if (self.tree / name).exists()
        }

    def cgroups(self) -> Cgroups:
        return Cgroups(Cgroup(str(self.root)), -1)


@pytest.fixture
def fake_cgroup(tmp_path: Path) -> FakeCgroup:
    return FakeCgroup(tmp_path)


@pytest.fixture
def guardian(fake_cgroup: FakeCgroup) -> Iterator[GuardianProcess]:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        yield GuardianProcess(ours, 1, fake_cgroup.cgroups())


def request(memory: int | None) -> SpawnRequest:
    message: ControlMessage = {
        "argv": ["true"],
        "env": {},
        "cwd": None,
        "mark": "m",
        "umask": None,
        "identity": None,
    }
    return SpawnRequest(
        {**message, "limits": {"memory": memory, "open_files": None, "nice": None}}, ()
    )


# --- a made-up cgroup -----------------------------------------------------------------------------


def test_in_a_made_up_cgroup_memory_is_limited_without_swap_and_the_tree_dies_as_one(
    fake_cgroup: FakeCgroup,
) -> None:
    assert fake_cgroup.cgroups().limit_memory(fake_cgroup.cgroup, 5 * MEBIBYTE)
    assert "+memory" == (fake_cgroup.root / "cgroup.subtree_control").read_text()
    assert {
        "memory.max": "5242880",
        "memory.swap.max": "0",
        "memory.oom.group": "1",
    } == fake_cgroup.written()


def test_in_a_made_up_cgroup_without_swap_accounting_memory_is_limited_all_the_same(
    fake_cgroup: FakeCgroup,
) -> None:
    (fake_cgroup.tree / "memory.swap.max").unlink()
    assert fake_cgroup.cgroups().limit_memory(fake_cgroup.cgroup, MEBIBYTE)
    assert {"memory.max": "1048576", "memory.oom.group": "1"} == fake_cgroup.written()


@pytest.mark.parametrize("missing", ["cgroup.subtree_control", "1/memory.max"])
def test_in_a_made_up_cgroup_without_a_memory_controller_nothing_is_limited(
    fake_cgroup: FakeCgroup, missing: str
) -> None:
    (fake_cgroup.root / missing).unlink()
    assert not fake_cgroup.cgroups().limit_memory(fake_cgroup.cgroup, MEBIBYTE)
    assert {"", "0"} >= set(fake_cgroup.written().values())


def test_the_controller_of_a_made_up_cgroup_is_asked_for_once(fake_cgroup: FakeCgroup) -> None:
    cgroups = fake_cgroup.cgroups()
    control = fake_cgroup.root / "cgroup.subtree_control"
    assert cgroups.limit_memory(fake_cgroup.cgroup, MEBIBYTE)
    control.unlink()
    assert cgroups.limit_memory(fake_cgroup.cgroup, MEBIBYTE)


def test_a_made_up_cgroup_tells_whether_somebody_was_killed_for_memory(
    fake_cgroup: FakeCgroup,
) -> None:
    told = [fake_cgroup.cgroup.out_of_memory]
    fake_cgroup.count(1)
    told.append(fake_cgroup.cgroup.out_of_memory)
    (fake_cgroup.tree / "memory.events").unlink()
    assert [False, True, False] == [*told, fake_cgroup.cgroup.out_of_memory]


@pytest.mark.parametrize(("status", "expected"), [(KILLED, True), (FAILED, True), (0, False)])
def test_with_a_made_up_cgroup_its_count_decides_however_much_was_used(
    fake_cgroup: FakeCgroup, guardian: GuardianProcess, status: int, *, expected: bool
) -> None:
    tree, asked = ProcessTree(1, "m", fake_cgroup.cgroup), request(MEBIBYTE)
    guardian._limit_memory(asked, tree)
    assert asked.memory_by_cgroup
    assert not tree.ran_out_of_memory(status, 100 * MEBIBYTE)
    fake_cgroup.count(2)
    assert expected == tree.ran_out_of_memory(status, 0)


def test_where_a_made_up_cgroup_has_no_memory_controller_data_is_limited(
    fake_cgroup: FakeCgroup, guardian: GuardianProcess
) -> None:
    (fake_cgroup.root / "cgroup.subtree_control").unlink()
    tree, asked = ProcessTree(1, "m", fake_cgroup.cgroup), request(MEBIBYTE)
    guardian._limit_memory(asked, tree)
    assert (False, MEBIBYTE) == (asked.memory_by_cgroup, tree.data_limit)


def test_without_a_limit_a_made_up_cgroup_is_left_as_it_is(
    fake_cgroup: FakeCgroup, guardian: GuardianProcess
) -> None:
    tree, asked = ProcessTree(1, "m", fake_cgroup.cgroup), request(None)
    guardian._limit_memory(asked, tree)
    assert (False, None) == (asked.memory_by_cgroup, tree.data_limit)
    assert {""} == set(fake_cgroup.written().values())


def test_one_that_cannot_enter_a_made_up_cgroup_goes_on_unless_that_limits_its_memory(
    fake_cgroup: FakeCgroup,
) -> None:
    (fake_cgroup.tree / "cgroup.procs").unlink()
    asked = request(MEBIBYTE)
    child = ChildSetup(asked, fake_cgroup.cgroup, os.getpid())
    child._enter(fake_cgroup.cgroup)
    asked.memory_by_cgroup = True
    with pytest.raises(FileNotFoundError):
        child._enter(fake_cgroup.cgroup)
    assert "enter its cgroup" == child.step


# --- what an end tells where data is limited ------------------------------------------------------


@pytest.mark.parametrize(
    "status", [FAILED, 137 << 8, 255 << 8, ABORTED, int(signal.SIGSEGV), ABORTED | 0x80]
)
def test_a_failure_or_a_crash_with_most_of_its_memory_used_is_for_want_of_it(status: int) -> None:
    assert likely_out_of_memory(status, 80 * MEBIBYTE, 100 * MEBIBYTE)
    assert not likely_out_of_memory(status, 79 * MEBIBYTE, 100 * MEBIBYTE)


@pytest.mark.parametrize(
    "status", [0, KILLED, int(signal.SIGTERM), int(signal.SIGINT), int(signal.SIGHUP)]
)
def test_a_good_end_or_a_signal_from_outside_is_not_for_want_of_memory(status: int) -> None:
    assert not likely_out_of_memory(status, 100 * MEBIBYTE, 100 * MEBIBYTE)
