from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from awaiting import eventually
from longwatch.core.clock import Wakeup
from longwatch.errors import TryAgainError, UsageError
from longwatch.supervisor.presence import LOCK_FILE, Found, Presence, find
from longwatch.testing import FakeClock
from snippet import Snippet, running

SOCKET = Path("/run/somewhere/control")


def supervisor(state: Path, *, then: str = "sys.stdin.readline()") -> str:
    return f"""
        import os, signal, sys
        from pathlib import Path
        from longwatch.supervisor.presence import Presence
        presence = Presence.claim(Path({str(state)!r}))
        presence.announce(Path({str(SOCKET)!r}))
        print(os.getpid(), flush=True)
        {then}
        """


class Looker:
    """A clock under which each wait lets a test do something first."""

    def __init__(self, act: Wakeup) -> None:
        self._act = act
        self._clock = FakeClock()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def wall(self) -> float:
        return self._clock.wall()

    def wait(self, wakeup: Wakeup, timeout: float | None = None) -> bool:
        self._act.set()
        return False

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


def refusal(state: Path) -> str:
    with pytest.raises(TryAgainError) as caught:
        find(state)
    assert 75 == caught.value.exit_code
    return str(caught.value)


def test_who_has_announced_itself_is_found(tmp_path: Path) -> None:
    presence = Presence.claim(tmp_path)
    presence.announce(SOCKET)
    assert Found(os.getpid(), SOCKET) == find(tmp_path)
    presence.release()


def test_the_file_says_pid_socket_and_start_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    presence = Presence.claim(tmp_path, clock=FakeClock(wall=1_800_000_000.0))
    presence.announce(SOCKET)
    noted = json.loads((tmp_path / LOCK_FILE).read_text())
    assert {"pid": os.getpid(), "socket": str(SOCKET), "started_at": 1_800_000_000.0} == noted
    assert 0o600 == stat.S_IMODE((tmp_path / LOCK_FILE).stat().st_mode)
    presence.release()


def test_one_state_directory_has_one_supervisor_and_the_second_is_told_which(
    tmp_path: Path,
) -> None:
    with running(supervisor(tmp_path)) as first:
        pid = first.line()
        with pytest.raises(TryAgainError) as caught:
            Presence.claim(tmp_path, clock=Looker(Wakeup()))
        cures = f"use `longwatch status`, end it with `kill {pid}`, or give another --state-dir"
        expected = f"pid {pid} is supervising on {tmp_path} already; {cures}"
        assert expected == str(caught.value)
        assert int(pid) == find(tmp_path).pid


def test_nobody_is_found_where_nobody_ever_was(tmp_path: Path) -> None:
    expected = (
        f"no supervisor runs on {tmp_path}; start one with `longwatch up`, or give --state-dir"
    )
    assert expected == refusal(tmp_path)
    assert f"no supervisor runs on {tmp_path}/none;" in refusal(tmp_path / "none")
    assert [] == list(tmp_path.iterdir())


def test_a_file_in_place_of_the_directory_has_no_supervisor(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "no supervisor runs on" in refusal(tmp_path / "file")


def test_a_supervisor_that_left_in_good_order_leaves_no_trace_and_another_can_come(
    tmp_path: Path,
) -> None:
    presence = Presence.claim(tmp_path)
    presence.announce(SOCKET)
    presence.release()
    presence.release()
    assert "no supervisor runs on" in refusal(tmp_path)
    Presence.claim(tmp_path).release()


def test_a_supervisor_that_was_killed_is_told_from_one_that_never_was_though_its_pid_may_live(
    tmp_path: Path,
) -> None:
    with running(supervisor(tmp_path)) as killed:
        pid = killed.line()
        killed.signal(signal.SIGKILL)
        killed.end()
    expected = (
        f"the supervisor of {tmp_path} (pid {pid}) was killed; start it again with `longwatch up`"
    )
    assert expected == refusal(tmp_path)
    (tmp_path / LOCK_FILE).write_text(
        json.dumps({"pid": os.getpid(), "socket": str(SOCKET)}) + "\n"
    )
    assert "was killed" in refusal(tmp_path)
    presence = Presence.claim(tmp_path)
    presence.announce(Path("/new"))
    assert Found(os.getpid(), Path("/new")) == find(tmp_path)
    presence.release()


def test_one_that_has_not_announced_itself_yet_is_starting_whatever_its_predecessor_left(
    tmp_path: Path,
) -> None:
    (tmp_path / LOCK_FILE).write_text(
        json.dumps({"pid": 1, "socket": str(SOCKET), "pad": "x" * 500}) + "\n"
    )
    presence = Presence.claim(tmp_path)
    assert f"the supervisor of {tmp_path} is just starting; try again" == refusal(tmp_path)
    assert {"pid": os.getpid()} == json.loads((tmp_path / LOCK_FILE).read_text())
    presence.release()


@pytest.mark.parametrize(
    "content", ["", "{", "[1]\n", '{"pid": "x"}\n', '{"pid": 1, "socket": "/x"', "\0" * 5000]
)
def test_a_damaged_file_is_nobody_and_is_written_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / LOCK_FILE).write_text(content)
    assert "no supervisor runs on" in refusal(tmp_path)
    presence = Presence.claim(tmp_path)
    presence.announce(SOCKET)
    assert Found(os.getpid(), SOCKET) == find(tmp_path)
    presence.release()


def test_clients_that_look_at_the_same_time_do_not_take_each_other_for_a_supervisor(
    tmp_path: Path,
) -> None:
    (tmp_path / LOCK_FILE).touch()
    with (tmp_path / LOCK_FILE).open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert "no supervisor runs on" in refusal(tmp_path)


def test_a_client_that_just_looks_is_not_taken_for_a_supervisor(tmp_path: Path) -> None:
    looking = Presence.claim(tmp_path)
    waited = Wakeup()
    waited.listen(looking.release)
    Presence.claim(tmp_path, clock=Looker(waited)).release()
    assert waited.is_set()


def test_a_process_that_the_supervisor_forked_does_not_keep_its_place_taken(tmp_path: Path) -> None:
    forking = "(os.fork() or signal.pause()) and sys.stdin.readline()"
    with running(supervisor(tmp_path, then=forking)) as killed:
        pid = int(killed.line())
        [child] = await_children(pid)
        killed.signal(signal.SIGKILL)
        await_end(killed)
        try:
            Presence.claim(tmp_path).release()
        finally:
            os.kill(child, signal.SIGKILL)


def await_children(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    assert eventually(lambda: bool(children.read_text()))
    return [int(child) for child in children.read_text().split()]


def await_end(snippet: Snippet) -> None:
    snippet._child.wait()


def test_a_child_that_runs_another_program_does_not_keep_the_place_taken(tmp_path: Path) -> None:
    spawning = (
        f"print(os.spawnv(os.P_NOWAIT, {sys.executable!r}, ['python', '-c', 'input()']), "
        f"flush=True); sys.stdin.readline()"
    )
    with running(supervisor(tmp_path, then=spawning)) as killed:
        killed.line()
        child = int(killed.line())
        killed.signal(signal.SIGKILL)
        await_end(killed)
        try:
            Presence.claim(tmp_path).release()
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_directory_that_is_not_there_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no such file or directory.*--state-dir"):
        Presence.claim(tmp_path / "none")


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("precious")
    (tmp_path / LOCK_FILE).symlink_to(tmp_path / "other")
    with pytest.raises(UsageError):
        Presence.claim(tmp_path)
    with pytest.raises(UsageError, match="ask as the user who started it"):
        find(tmp_path)
    assert "precious" == (tmp_path / "other").read_text()
