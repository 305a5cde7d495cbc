from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from guardian_fixture import GuardianFixture, LineSink, running_guardian
from longwatch.errors import SpawnError
from longwatch.host.process import KILL_NOW, ProcessEnd, ProcessSpec, ResourceLimits, StopPolicy
from longwatch.testing import FakeClock
from polling import eventually
from snippet import run_snippet

MEBIBYTE = 1 << 20
LIMIT = 96 * MEBIBYTE

EATER = """
def eat(most):
    '''Take memory, a mebibyte at a time, and use it; never more than so many.'''
    eaten = []
    for _ in range(most):
        eaten.append(b'x' * (1 << 20))
    return eaten
"""


def end_of(guardian: GuardianFixture, code: str, *, memory: int = LIMIT) -> str:
    return str(
        guardian.spawn(EATER + code, stderr=None, limits=ResourceLimits(memory=memory)).wait().cause
    )


# --- memory ---------------------------------------------------------------------------------------


def test_a_child_that_eats_more_memory_than_it_may_ends_with_the_cause_memory(
    guardian: GuardianFixture,
) -> None:
    assert "memory" == end_of(guardian, "eat(300)")


def test_a_child_that_stays_below_its_memory_limit_is_left_alone(guardian: GuardianFixture) -> None:
    assert "exit 0" == end_of(guardian, "eat(50)")


def test_a_shell_that_fails_for_its_hungry_child_ends_with_the_cause_memory(
    guardian: GuardianFixture,
) -> None:
    assert "memory" == end_of(
        guardian,
        "if os.fork() == 0: eat(300)\nsys.exit(os.waitstatus_to_exitcode(os.wait()[1]) and 7)",
    )


def test_a_crash_over_memory_that_was_refused_has_the_cause_memory(
    guardian_without_cgroups: GuardianFixture,
) -> None:
    assert "memory" == end_of(
        guardian_without_cgroups, "try: eat(300)\nexcept MemoryError: os.abort()"
    )


@pytest.mark.parametrize("failure", ["sys.exit(1)", "os.abort()"])
def test_a_failure_with_little_memory_used_keeps_its_own_cause(
    guardian_without_cgroups: GuardianFixture, failure: str
) -> None:
    assert {"sys.exit(1)": "exit 1", "os.abort()": "signal 6"}[failure] == end_of(
        guardian_without_cgroups, failure
    )


def test_a_child_that_bears_the_refusal_ends_as_it_likes(
    guardian_without_cgroups: GuardianFixture,
) -> None:
    assert "exit 0" == end_of(
        guardian_without_cgroups, "try: eat(300)\nexcept MemoryError: os._exit(0)"
    )


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_one_that_has_eaten_nearly_all_keeps_its_own_cause(
    guardian_without_cgroups: GuardianFixture, signum: int
) -> None:
    assert f"signal {int(signum)}" == end_of(
        guardian_without_cgroups, f"kept = eat(75); os.kill(os.getpid(), {int(signum)}); rest()"
    )


def test_one_that_is_stopped_while_it_has_eaten_nearly_all_keeps_its_own_cause(
    guardian_without_cgroups: GuardianFixture,
) -> None:
    code = (
        "kept = eat(75); signal.signal(signal.SIGTERM, lambda *_: os._exit(3)); say('full'); rest()"
    )
    child = guardian_without_cgroups.spawn(EATER + code, limits=ResourceLimits(memory=LIMIT))
    child.out.wait_for_text("full")
    ending = child.stop(StopPolicy(grace=60.0))
    assert ("exit 3", True) == (str(ending.cause), ending.max_rss > 0.8 * LIMIT)


def test_one_without_a_limit_may_eat(guardian: GuardianFixture) -> None:
    assert "exit 0" == str(guardian.spawn(EATER + "eat(300)").wait().cause)


def test_memory_that_is_reserved_and_not_used_is_no_reason_to_refuse_it(
    guardian_without_cgroups: GuardianFixture,
) -> None:
    """What node and java do at their start: the reason why the address space is not what is
    limited.
    """
    reserve = (
        "import mmap; kept = mmap.mmap(-1, 1 << 34, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, "
        "prot=mmap.PROT_READ)"
    )
    child = guardian_without_cgroups.start(
        [sys.executable, "-I", "-c", reserve], limits=ResourceLimits(memory=LIMIT)
    )
    assert "exit 0" == str(child.wait().cause)


def test_a_limit_too_small_for_any_program_is_told_one_way_or_the_other_and_leaves_nothing(
    guardian_without_cgroups: GuardianFixture,
) -> None:
    try:
        cause = end_of(guardian_without_cgroups, "pass", memory=4096)
    except SpawnError as error:
        cause = str(error)
    assert "exit 0" != cause
    assert "exit 0" == str(guardian_without_cgroups.start(["true"]).wait().cause)
    assert {} == guardian_without_cgroups.guardian._children


# --- open files, nice, umask ----------------------------------------------------------------------


def test_a_child_sees_its_limit_of_open_files_soft_and_hard(guardian: GuardianFixture) -> None:
    child = guardian.start(
        ["sh", "-c", "ulimit -Sn; ulimit -Hn"], limits=ResourceLimits(open_files=77)
    )
    child.wait()
    assert b"77\n77\n" == child.out.data


def test_more_open_files_than_anybody_may_have_are_refused_with_the_most_there_are(
    guardian_without_cgroups: GuardianFixture,
) -> None:
    most = int(Path("/proc/sys/fs/nr_open").read_text())
    with pytest.raises(
        SpawnError,
        match=rf"^cannot allow it {most + 1} open files: no more than \d+ are allowed here$",
    ) as caught:
        guardian_without_cgroups.start(["true"], limits=ResourceLimits(open_files=most + 1))
    assert errno.EPERM == caught.value.errno
    assert {} == guardian_without_cgroups.guardian._children


def test_a_child_is_as_nice_as_it_is_told_to_be(guardian_without_cgroups: GuardianFixture) -> None:
    child = guardian_without_cgroups.spawn(
        "say(os.getpriority(os.PRIO_PROCESS, 0))", limits=ResourceLimits(nice=7)
    )
    child.wait()
    assert b"7\n" == child.out.data


@pytest.mark.parametrize("umask", [0o027, 0])
def test_a_child_has_the_umask_it_is_told(
    guardian_without_cgroups: GuardianFixture, umask: int
) -> None:
    child = guardian_without_cgroups.start(["sh", "-c", "umask"], umask=umask)
    child.wait()
    assert f"{umask:04o}\n".encode() == child.out.data


def test_without_limits_and_umask_a_child_has_those_of_the_host(
    guardian_without_cgroups: GuardianFixture,
) -> None:
    former = os.umask(0o022)
    os.umask(former)
    child = guardian_without_cgroups.start(["sh", "-c", "umask; nice; ulimit -n; ulimit -d"])
    child.wait()
    limits = Path("/proc/self/limits").read_text().splitlines()
    soft = {line[:26].strip(): line[26:].split()[0] for line in limits}
    expected = [
        f"{former:04o}",
        os.getpriority(os.PRIO_PROCESS, 0),
        soft["Max open files"],
        soft["Max data size"],
    ]
    assert [str(value) for value in expected] == child.out.data.decode().split()


POWERLESS = """
    import ctypes, os, sys
    from longwatch.errors import SpawnError
    from longwatch.host.guardian_client import GuardianClient
    from longwatch.host.identity import Identity
    from longwatch.host.loop import EventLoopThread
    from longwatch.host.process import ResourceLimits, ProcessSpec

    for capability in (
        6, 7, 23
    ):  # CAP_SETGID, CAP_SETUID, CAP_SYS_NICE: the guardian is executed without them
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
    stranger = Identity(name="stranger", uid=os.geteuid() + 4242, gid=4242, groups=(4242,))
    with EventLoopThread() as loop, GuardianClient(loop) as guardian:
        for extra in (
            {"limits": ResourceLimits(nice=os.getpriority(os.PRIO_PROCESS, 0) - 1)},
            {"identity": stranger},
        ):
            try:
                loop.call(
                    guardian.spawn(ProcessSpec(argv=["/bin/true"], env={}, **extra)), timeout=20
                )
                print("started")
            except SpawnError as error:
                print(error)
"""


def test_what_needs_privileges_that_we_do_not_have_is_told() -> None:
    with run_snippet(POWERLESS) as host:
        assert (
            f"cannot set its nice value to {os.getpriority(os.PRIO_PROCESS, 0) - 1}: "
            f"Permission denied" == host.read_line()
        )
        assert "cannot become user 'stranger': Operation not permitted" == host.read_line()


# --- one sink for both outputs --------------------------------------------------------------------


def test_one_sink_for_both_outputs_gets_their_lines_in_order_through_one_pipe(
    guardian: GuardianFixture,
) -> None:
    both = LineSink()
    code = """
        same = os.readlink("/proc/self/fd/1") == os.readlink("/proc/self/fd/2")
        for number in range(200):
            os.write(1 + number % 2, f"{number}\\n".encode())
        say("same" if same else "two")
    """
    child = guardian.spawn(code, stdout=both, stderr=both)
    assert 1 == len(child.child._captures)
    child.wait()
    assert [*map(str, range(200)), "same"] == both.data.decode().splitlines()


# --- a grace that is extended ---------------------------------------------------------------------


@pytest.fixture
def timed() -> Iterator[tuple[GuardianFixture, FakeClock]]:
    clock = FakeClock()
    with running_guardian(cgroups=False, clock=clock) as opened:
        yield opened, clock


def test_a_grace_that_is_extended_lasts_so_long_from_then(
    timed: tuple[GuardianFixture, FakeClock],
) -> None:
    guardian, clock = timed
    child = guardian.spawn("deaf(); say('ready'); rest()")
    child.out.wait_for_text("ready")
    stopping = child.start_stop(StopPolicy(grace=15.0))
    clock.await_parked(1)
    clock.advance(10.0)
    guardian.run_on_loop(lambda: child.child.extend_stop(20.0))
    guardian.run_on_loop(lambda: child.child.extend_stop(0.5))  # shortens nothing
    clock.advance(19.0, parked=1)
    assert not stopping.done()
    clock.advance(1.0, parked=0)
    assert "signal 9" == str(stopping.result(30.0).cause)


def test_an_extension_before_the_stop_is_none(timed: tuple[GuardianFixture, FakeClock]) -> None:
    guardian, clock = timed
    child = guardian.spawn("deaf(); say('ready'); rest()")
    child.out.wait_for_text("ready")
    guardian.run_on_loop(lambda: child.child.extend_stop(600.0))
    stopping = child.start_stop(StopPolicy(grace=15.0))
    clock.await_parked(1)
    clock.advance(15.0, parked=0)
    assert "signal 9" == str(stopping.result(30.0).cause)


def test_a_later_stop_with_a_short_grace_hastens_one_that_was_extended(
    timed: tuple[GuardianFixture, FakeClock],
) -> None:
    guardian, clock = timed
    child = guardian.spawn("deaf(); say('ready'); rest()")
    child.out.wait_for_text("ready")
    stopping = child.start_stop(StopPolicy(grace=15.0))
    clock.await_parked(1)
    guardian.run_on_loop(lambda: child.child.extend_stop(600.0))
    assert "signal 9" == str(child.stop(KILL_NOW).cause)
    assert "signal 9" == str(stopping.result(30.0).cause)


# --- many at once ---------------------------------------------------------------------------------


def test_a_hundred_children_with_limits_start_at_once_and_stop_at_once(
    guardian: GuardianFixture,
) -> None:
    spec = ProcessSpec(
        argv=["sleep", "100"],
        env={"PATH": os.defpath},
        limits=ResourceLimits(memory=LIMIT, open_files=64, nice=19),
        umask=0o077,
    )

    async def storm() -> list[ProcessEnd]:
        children = await asyncio.gather(*(guardian.guardian.spawn(spec) for _ in range(100)))
        return await asyncio.gather(*(child.stop(StopPolicy(grace=60.0)) for child in children))

    endings = guardian.loop.call(storm(), timeout=60.0)
    assert {"signal 15"} == {str(ending.cause) for ending in endings}
    assert eventually(lambda: not guardian.guardian._children)
