from __future__ import annotations

import gc
import os

import psutil
import pytest

from chaos_plan import ChaosPlan
from guardian_fixture import GuardianFixture, cgroup_folders, require_cgroups, running_guardian
from longwatch.host.process import StopPolicy
from polling import eventually

MEBIBYTE = 1 << 20
WARM_UP = 60
CYCLES_PER_SECOND = 60
"""Measured cycles for each chaos second: 240 in `make test`, 3,600 in `make chaos`."""


@pytest.mark.chaos
@pytest.mark.parametrize("cgroups", [True, False], ids=["cgroups", "marks"])
def test_many_starts_and_stops_leave_descriptors_and_memory_flat_and_no_process_behind(
    chaos: ChaosPlan, *, cgroups: bool
) -> None:
    if cgroups:
        require_cgroups()
    with running_guardian(cgroups=cgroups) as home:
        cycle(home, WARM_UP)
        descriptors, memory = measured(home)
        folders = len(cgroup_folders(os.getpid()))
        cycle(home, int(CYCLES_PER_SECOND * chaos.seconds))
        assert eventually(
            lambda: max(growths(descriptors, measured(home)[0])) <= 0
        )  # others of this process may close some
        _, memory_after = measured(home)
        assert [3 * MEBIBYTE > growth for growth in growths(memory, memory_after)] == [
            True,
            True,
        ], growths(memory, memory_after)
        assert [] == [process.pid for process in psutil.Process(home.pid).children(recursive=True)]
        assert {} == home.guardian._children
        assert folders == len(cgroup_folders(os.getpid()))


def cycle(guardian: GuardianFixture, times: int) -> None:
    """Start and stop a child so often, in every way: obeying, ending by itself, leaving somebody
    behind.
    """
    for number in range(times):
        match number % 3:
            case 0:
                assert "signal 15" == str(
                    guardian.start(["sleep", "100"]).stop(StopPolicy(grace=60.0)).cause
                )
            case 1:
                assert "exit 3" == str(
                    guardian.start(["sh", "-c", "echo hello; exit 3"]).wait().cause
                )
            case _:
                assert 1 == guardian.start(["sh", "-c", "sleep 100 & exec true"]).wait().killed


def measured(guardian: GuardianFixture) -> tuple[list[int], list[int]]:
    """Open descriptors and resident memory of host and guardian."""
    gc.collect()
    processes = [psutil.Process(), psutil.Process(guardian.pid)]
    return [process.num_fds() for process in processes], [
        process.memory_info().rss for process in processes
    ]


def growths(before: list[int], after: list[int]) -> list[int]:
    return [later - earlier for earlier, later in zip(before, after, strict=True)]
