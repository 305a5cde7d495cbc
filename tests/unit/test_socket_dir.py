from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from longwatch.supervisor.socket_directory import SocketDirectory

MAKE_AND_DIE = """
import os, signal
from longwatch.supervisor.socket_directory import SocketDirectory
made = SocketDirectory.create()
made.socket_path("n1", uid=os.getuid() + 1)
print(made.path, (made.path / "n1.outside").resolve(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_it_is_its_owners_alone_and_gone_when_it_is_closed() -> None:
    made = SocketDirectory.create()
    assert 0o700 == mode(made.path)
    (made.socket_path("control")).touch()
    made.close()
    assert not made.path.exists()


def test_another_users_socket_is_where_that_user_can_pass_and_write_nothing() -> None:
    made = SocketDirectory.create()
    outside = made.socket_path("n1", uid=os.getuid() + 1).parent
    assert (0o711, os.getuid()) == (mode(outside), outside.stat().st_uid)
    made.close()
    assert not outside.exists()


def test_what_a_killed_one_left_is_removed_by_the_next_and_a_living_one_is_left_alone(
    tmp_path: Path,
) -> None:
    living = SocketDirectory.create()
    dead = subprocess.run(
        [sys.executable, "-c", MAKE_AND_DIE], stdout=subprocess.PIPE, text=True, check=False
    )
    left = [Path(word) for word in dead.stdout.split()]
    assert [True, True] == [path.exists() for path in left]
    SocketDirectory.create().close()
    assert [False, False] == [path.exists() for path in left]
    assert living.path.exists()
    living.close()


def test_its_addresses_are_short_enough_for_a_socket() -> None:
    made = SocketDirectory.create()
    assert len(os.fsencode(made.socket_path("n100000"))) <= 107
    made.close()
