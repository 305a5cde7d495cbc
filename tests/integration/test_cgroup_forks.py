"""Children that are born in their cgroup."""

from __future__ import annotations

import errno
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator

import pytest

from guardian_fixture import TIMEOUT, require_cgroups
from longwatch.host.guardian import cgroups
from longwatch.host.guardian.cgroups import Cgroup, Cgroups
from longwatch.host.guardian.spawn import SpawnRequest, read_exec_error, spawn

FORK = """
import os, sys
from longwatch.host.guardian.cgroups import Cgroup
out, come = os.pipe()
pid = Cgroup(sys.argv[1]).fork()
if pid == 0:
    os.write(come, open("/proc/self/cgroup", "rb").read())
    os._exit(7)
print(os.read(out, 4096).decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
"""A process of its own, as the guardian is: no thread of another part is in it."""


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    require_cgroups()
    # inside a locked root: every guardian that starts removes those without a lock
    root = Cgroups.open(f"test-{secrets.token_hex(4)}")
    assert root is not None
    made = root.make("forks")
    assert made is not None
    yield made
    made.kill()
    root.remove()


def test_a_forked_child_is_in_its_cgroup_from_the_first_moment(cgroup: Cgroup) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, cgroup.path],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=True,
    )
    lines = done.stdout.split()
    assert "7" == lines[-1]
    assert [cgroup.path.rpartition("/")[2]] == [
        line.rpartition("/")[2] for line in lines if line.startswith("0::")
    ]


def test_where_the_kernel_cannot_fork_into_a_cgroup_the_child_enters_it(
    cgroup: Cgroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(cgroups, "fork_into", unknown)
    null = os.open(os.devnull, os.O_RDWR)
    limits = {"memory": None, "open_files": None, "nice": None}
    what = {
        "argv": ["sleep", "1000"],
        "env": dict(os.environ),
        "cwd": None,
        "umask": None,
        "identity": None,
        "mark": "x",
    }
    pid, verdict = spawn(SpawnRequest({**what, "limits": limits}, (null, null, null)), cgroup)
    assert read_exec_error(verdict) is None
    os.close(verdict)
    os.close(null)
    assert {pid} == cgroup.pids()
    cgroup.kill()
    os.waitpid(pid, 0)


def test_processes_in_cgroups_made_inside_are_found(cgroup: Cgroup) -> None:
    inner = Cgroup(f"{cgroup.path}/inner")
    assert inner.make()
    with subprocess.Popen(["sleep", "1000"]) as process:
        inner._write("cgroup.procs", str(process.pid))
        assert {process.pid} == cgroup.pids()
        process.kill()
