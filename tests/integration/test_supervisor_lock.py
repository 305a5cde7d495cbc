from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from longwatch.core.clock import Wakeup
from longwatch.errors import TryAgainError, UsageError
from longwatch.supervisor.supervisor_lock import (
    ENTRY_DIRECTORY,
    LOCK_FILE,
    RunningSupervisor,
    SupervisorLock,
    find_supervisor,
    find_supervisors,
)
from longwatch.testing import FakeClock
from polling import eventually
from snippet import Snippet, run_snippet

SOCKET = Path("/run/somewhere/control")


def supervisor(state: Path, *, then: str = "sys.stdin.readline()") -> str:
    return f"""
        import os, signal, sys
        from pathlib import Path
        from longwatch.supervisor.supervisor_lock import SupervisorLock
        presence = SupervisorLock.acquire(Path({str(state)!r}))
        presence.publish_socket(Path({str(SOCKET)!r}))
        print(os.getpid(), flush=True)
        {then}
        """


class HookedClock:
    """A clock under which each wait lets a test do something first."""

    def __init__(self, act: Wakeup) -> None:
        self._act = act
        self._clock = FakeClock()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def boottime(self) -> float:
        return self._clock.boottime()

    def wall(self) -> float:
        return self._clock.wall()

    def wait(self, wakeup: Wakeup, timeout: float | None = None) -> bool:
        self._act.set()
        return False

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


def refusal(state: Path) -> str:
    with pytest.raises(TryAgainError) as caught:
        find_supervisor(state)
    assert 75 == caught.value.exit_code
    return str(caught.value)


def test_who_has_announced_itself_is_found(tmp_path: Path) -> None:
    presence = SupervisorLock.acquire(tmp_path)
    presence.publish_socket(SOCKET)
    assert RunningSupervisor(os.getpid(), SOCKET) == find_supervisor(tmp_path)
    presence.release()


def test_the_file_says_pid_socket_and_start_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    presence = SupervisorLock.acquire(tmp_path, clock=FakeClock(wall=1_800_000_000.0))
    presence.publish_socket(SOCKET)
    noted = json.loads((tmp_path / LOCK_FILE).read_text())
    assert {"pid": os.getpid(), "socket": str(SOCKET), "started_at": 1_800_000_000.0} == noted
    assert 0o600 == stat.S_IMODE((tmp_path / LOCK_FILE).stat().st_mode)
    presence.release()


def test_one_state_directory_has_one_supervisor_and_the_second_is_told_which(
    tmp_path: Path,
) -> None:
    with run_snippet(supervisor(tmp_path)) as first:
        pid = first.read_line()
        with pytest.raises(TryAgainError) as caught:
            SupervisorLock.acquire(tmp_path, clock=HookedClock(Wakeup()))
        cures = "use `longwatch status`, end it with `longwatch down`, or give another --state-dir"
        expected = f"pid {pid} is supervising on {tmp_path} already; {cures}"
        assert expected == str(caught.value)
        assert int(pid) == find_supervisor(tmp_path).pid


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
    presence = SupervisorLock.acquire(tmp_path)
    presence.publish_socket(SOCKET)
    presence.release()
    presence.release()
    assert "no supervisor runs on" in refusal(tmp_path)
    SupervisorLock.acquire(tmp_path).release()


def test_a_supervisor_that_was_killed_is_told_from_one_that_never_was_though_its_pid_may_live(
    tmp_path: Path,
) -> None:
    with run_snippet(supervisor(tmp_path)) as killed:
        pid = killed.read_line()
        killed.signal(signal.SIGKILL)
        killed.wait()
    expected = (
        f"the supervisor of {tmp_path} (pid {pid}) was killed; start it again with `longwatch up`"
    )
    assert expected == refusal(tmp_path)
    (tmp_path / LOCK_FILE).write_text(
        json.dumps({"pid": os.getpid(), "socket": str(SOCKET)}) + "\n"
    )
    assert "was killed" in refusal(tmp_path)
    presence = SupervisorLock.acquire(tmp_path)
    presence.publish_socket(Path("/new"))
    assert RunningSupervisor(os.getpid(), Path("/new")) == find_supervisor(tmp_path)
    presence.release()


def test_one_that_has_not_announced_itself_yet_is_starting_whatever_its_predecessor_left(
    tmp_path: Path,
) -> None:
    (tmp_path / LOCK_FILE).write_text(
        json.dumps({"pid": 1, "socket": str(SOCKET), "pad": "x" * 500}) + "\n"
    )
    presence = SupervisorLock.acquire(tmp_path)
    assert f"the supervisor of {tmp_path} is just starting; try again" == refusal(tmp_path)
    assert {"pid": os.getpid()} == json.loads((tmp_path / LOCK_FILE).read_text())
    presence.release()


@pytest.mark.parametrize(
    "content", ["", "{", "[1]\n", '{"pid": "x"}\n', '{"pid": 1, "socket": "/x"', "\0" * 5000]
)
def test_a_damaged_file_is_nobody_and_is_written_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / LOCK_FILE).write_text(content)
    assert "no supervisor runs on" in refusal(tmp_path)
    presence = SupervisorLock.acquire(tmp_path)
    presence.publish_socket(SOCKET)
    assert RunningSupervisor(os.getpid(), SOCKET) == find_supervisor(tmp_path)
    presence.release()


def test_clients_that_look_at_the_same_time_do_not_take_each_other_for_a_supervisor(
    tmp_path: Path,
) -> None:
    (tmp_path / LOCK_FILE).touch()
    with (tmp_path / LOCK_FILE).open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert "no supervisor runs on" in refusal(tmp_path)


def test_a_client_that_just_looks_is_not_taken_for_a_supervisor(tmp_path: Path) -> None:
    looking = SupervisorLock.acquire(tmp_path)
    waited = Wakeup()
    waited.subscribe(looking.release)
    SupervisorLock.acquire(tmp_path, clock=HookedClock(waited)).release()
    assert waited.is_set()


def test_a_process_that_the_supervisor_forked_does_not_keep_its_place_taken(tmp_path: Path) -> None:
    forking = "(os.fork() or signal.pause()) and sys.stdin.readline()"
    with run_snippet(supervisor(tmp_path, then=forking)) as killed:
        pid = int(killed.read_line())
        [child] = wait_for_children(pid)
        killed.signal(signal.SIGKILL)
        wait_for_exit(killed)
        try:
            SupervisorLock.acquire(tmp_path).release()
        finally:
            os.kill(child, signal.SIGKILL)


def wait_for_children(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    assert eventually(lambda: bool(children.read_text()))
    return [int(child) for child in children.read_text().split()]


def wait_for_exit(snippet: Snippet) -> None:
    snippet._child.wait()


def test_a_child_that_runs_another_program_does_not_keep_the_place_taken(tmp_path: Path) -> None:
    spawning = (
        f"print(os.spawnv(os.P_NOWAIT, {sys.executable!r}, ['python', '-c', 'input()']), "
        f"flush=True); sys.stdin.readline()"
    )
    with run_snippet(supervisor(tmp_path, then=spawning)) as killed:
        killed.read_line()
        child = int(killed.read_line())
        killed.signal(signal.SIGKILL)
        wait_for_exit(killed)
        try:
            SupervisorLock.acquire(tmp_path).release()
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_directory_that_is_not_there_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no such file or directory.*--state-dir"):
        SupervisorLock.acquire(tmp_path / "none")


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("precious")
    (tmp_path / LOCK_FILE).symlink_to(tmp_path / "other")
    with pytest.raises(UsageError):
        SupervisorLock.acquire(tmp_path)
    with pytest.raises(UsageError, match="run as the user that started it"):
        find_supervisor(tmp_path)
    assert "precious" == (tmp_path / "other").read_text()


# --- several that share a directory ---


def test_those_that_share_are_found_after_the_one_that_has_the_lock_oldest_first(
    tmp_path: Path,
) -> None:
    locks = [
        SupervisorLock.share(tmp_path, "worker", clock=FakeClock(wall=200.0)),
        SupervisorLock.share(tmp_path, "run", clock=FakeClock(wall=100.0)),
        SupervisorLock.acquire(tmp_path, clock=FakeClock(wall=300.0), command="up"),
    ]
    for lock in locks:
        lock.publish_socket(SOCKET)

    assert ["up", "run", "worker"] == [each.command for each in find_supervisors(tmp_path)]
    assert all(each.is_running for each in find_supervisors(tmp_path))
    for lock in locks:
        lock.release()
    assert "no supervisor runs on" in refusal(tmp_path)
    assert [] == [*(tmp_path / ENTRY_DIRECTORY).iterdir()]


def test_the_file_of_one_that_shares_is_its_owners_alone(tmp_path: Path) -> None:
    lock = SupervisorLock.share(tmp_path, "run")
    [entry] = (tmp_path / ENTRY_DIRECTORY).iterdir()

    assert (0o600, 0o700) == (entry.stat().st_mode & 0o777, entry.parent.stat().st_mode & 0o777)
    lock.release()


def test_one_that_shares_and_has_no_socket_yet_is_starting(tmp_path: Path) -> None:
    lock = SupervisorLock.share(tmp_path, "run")

    assert "is just starting" in refusal(tmp_path)
    lock.release()
    lock.release()


KILLED = """
    import os, signal
    from pathlib import Path
    from longwatch.supervisor.supervisor_lock import SupervisorLock
    lock = SupervisorLock.share(Path({state!r}), "run")
    lock.publish_socket(Path("/gone"))
    os.kill(os.getpid(), signal.SIGKILL)
    """


def kill_one_that_shares(state: Path) -> None:
    with run_snippet(KILLED.format(state=str(state))) as killed:
        assert (-signal.SIGKILL, "") == killed.wait()


def test_one_that_was_killed_is_told_until_the_next_one_starts(tmp_path: Path) -> None:
    kill_one_that_shares(tmp_path)
    assert "was killed; start it again with `longwatch run`" in refusal(tmp_path)

    SupervisorLock.share(tmp_path, "worker").release()
    assert "no supervisor runs on" in refusal(tmp_path)


def test_one_that_takes_the_lock_removes_what_killed_ones_left_too(tmp_path: Path) -> None:
    kill_one_that_shares(tmp_path)
    SupervisorLock.acquire(tmp_path).release()

    assert "no supervisor runs on" in refusal(tmp_path)


def test_many_that_start_at_once_do_not_take_each_other_for_killed(tmp_path: Path) -> None:
    """A file is removed only under its lock, and one that lost its file makes another."""
    with ThreadPoolExecutor(8) as pool:
        locks = list(pool.map(lambda _: SupervisorLock.share(tmp_path, "run"), range(64)))
    for lock in locks:
        lock.publish_socket(SOCKET)

    assert 64 == len(find_supervisors(tmp_path))
    for lock in locks:
        lock.release()


def test_a_directory_that_cannot_be_shared_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / ENTRY_DIRECTORY).touch()
    with pytest.raises(FileExistsError):
        SupervisorLock.share(tmp_path, "run")
