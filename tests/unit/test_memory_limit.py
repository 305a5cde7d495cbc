from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from longwatch.host.guardian.cgroups import Cgroup, Cgroups
from longwatch.host.guardian.limits import ran_out
from longwatch.host.guardian.main import Guardian
from longwatch.host.guardian.spawn import Becoming, Request
from longwatch.host.guardian.tree import Tree
from longwatch.host.guardian.wire import Message

MEBIBYTE = 1 << 20
KILLED = int(signal.SIGKILL)
ABORTED = int(signal.SIGABRT)
FAILED = 1 << 8


class MadeUp:
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
def made_up(tmp_path: Path) -> MadeUp:
    return MadeUp(tmp_path)


@pytest.fixture
def guardian(made_up: MadeUp) -> Iterator[Guardian]:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        yield Guardian(ours, 1, made_up.cgroups())


def request(memory: int | None) -> Request:
    message: Message = {
        "argv": ["true"],
        "env": {},
        "cwd": None,
        "mark": "m",
        "umask": None,
        "identity": None,
    }
    return Request({**message, "limits": {"memory": memory, "open_files": None, "nice": None}}, ())


# --- a made-up cgroup -----------------------------------------------------------------------------


def test_in_a_made_up_cgroup_memory_is_limited_without_swap_and_the_tree_dies_as_one(
    made_up: MadeUp,
) -> None:
    assert made_up.cgroups().limit_memory(made_up.cgroup, 5 * MEBIBYTE)
    assert "+memory" == (made_up.root / "cgroup.subtree_control").read_text()
    assert {
        "memory.max": "5242880",
        "memory.swap.max": "0",
        "memory.oom.group": "1",
    } == made_up.written()


def test_in_a_made_up_cgroup_without_swap_accounting_memory_is_limited_all_the_same(
    made_up: MadeUp,
) -> None:
    (made_up.tree / "memory.swap.max").unlink()
    assert made_up.cgroups().limit_memory(made_up.cgroup, MEBIBYTE)
    assert {"memory.max": "1048576", "memory.oom.group": "1"} == made_up.written()


@pytest.mark.parametrize("missing", ["cgroup.subtree_control", "1/memory.max"])
def test_in_a_made_up_cgroup_without_a_memory_controller_nothing_is_limited(
    made_up: MadeUp, missing: str
) -> None:
    (made_up.root / missing).unlink()
    assert not made_up.cgroups().limit_memory(made_up.cgroup, MEBIBYTE)
    assert {"", "0"} >= set(made_up.written().values())


def test_the_controller_of_a_made_up_cgroup_is_asked_for_once(made_up: MadeUp) -> None:
    cgroups = made_up.cgroups()
    control = made_up.root / "cgroup.subtree_control"
    assert cgroups.limit_memory(made_up.cgroup, MEBIBYTE)
    control.unlink()
    assert cgroups.limit_memory(made_up.cgroup, MEBIBYTE)


def test_a_made_up_cgroup_tells_whether_somebody_was_killed_for_memory(made_up: MadeUp) -> None:
    told = [made_up.cgroup.out_of_memory]
    made_up.count(1)
    told.append(made_up.cgroup.out_of_memory)
    (made_up.tree / "memory.events").unlink()
    assert [False, True, False] == [*told, made_up.cgroup.out_of_memory]


@pytest.mark.parametrize(("status", "expected"), [(KILLED, True), (FAILED, True), (0, False)])
def test_with_a_made_up_cgroup_its_count_decides_however_much_was_used(
    made_up: MadeUp, guardian: Guardian, status: int, *, expected: bool
) -> None:
    tree, asked = Tree(1, "m", made_up.cgroup), request(MEBIBYTE)
    guardian._limit_memory(asked, tree)
    assert asked.caged
    assert not tree.ran_out_of_memory(status, 100 * MEBIBYTE)
    made_up.count(2)
    assert expected == tree.ran_out_of_memory(status, 0)


def test_where_a_made_up_cgroup_has_no_memory_controller_data_is_limited(
    made_up: MadeUp, guardian: Guardian
) -> None:
    (made_up.root / "cgroup.subtree_control").unlink()
    tree, asked = Tree(1, "m", made_up.cgroup), request(MEBIBYTE)
    guardian._limit_memory(asked, tree)
    assert (False, MEBIBYTE) == (asked.caged, tree.data_limit)


def test_without_a_limit_a_made_up_cgroup_is_left_as_it_is(
    made_up: MadeUp, guardian: Guardian
) -> None:
    tree, asked = Tree(1, "m", made_up.cgroup), request(None)
    guardian._limit_memory(asked, tree)
    assert (False, None) == (asked.caged, tree.data_limit)
    assert {""} == set(made_up.written().values())


def test_one_that_cannot_enter_a_made_up_cgroup_goes_on_unless_that_limits_its_memory(
    made_up: MadeUp,
) -> None:
    (made_up.tree / "cgroup.procs").unlink()
    asked = request(MEBIBYTE)
    child = Becoming(asked, made_up.cgroup, os.getpid())
    child._enter(made_up.cgroup)
    asked.caged = True
    with pytest.raises(FileNotFoundError):
        child._enter(made_up.cgroup)
    assert "enter its cgroup" == child.doing


# --- what an end tells where data is limited ------------------------------------------------------


@pytest.mark.parametrize(
    "status", [FAILED, 137 << 8, 255 << 8, ABORTED, int(signal.SIGSEGV), ABORTED | 0x80]
)
def test_a_failure_or_a_crash_with_most_of_its_memory_used_is_for_want_of_it(status: int) -> None:
    assert ran_out(status, 80 * MEBIBYTE, 100 * MEBIBYTE)
    assert not ran_out(status, 79 * MEBIBYTE, 100 * MEBIBYTE)


@pytest.mark.parametrize(
    "status", [0, KILLED, int(signal.SIGTERM), int(signal.SIGINT), int(signal.SIGHUP)]
)
def test_a_good_end_or_a_signal_from_outside_is_not_for_want_of_memory(status: int) -> None:
    assert not ran_out(status, 100 * MEBIBYTE, 100 * MEBIBYTE)
