from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from awaiting import eventually
from den import Den, Lines, den
from longwatch.errors import SpawnError
from longwatch.host.process import KILL_NOW, Ending, Limits, ProcessSpec, StopPolicy
from longwatch.testing import FakeClock
from snippet import running

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


def end_of(home: Den, code: str, *, memory: int = LIMIT) -> str:
    return str(home.spawn(EATER + code, stderr=None, limits=Limits(memory=memory)).wait().cause)


# --- memory ---------------------------------------------------------------------------------------


def test_a_child_that_eats_more_memory_than_it_may_ends_with_the_cause_memory(home: Den) -> None:
    assert "memory" == end_of(home, "eat(300)")


def test_a_child_that_stays_below_its_memory_limit_is_left_alone(home: Den) -> None:
    assert "exit 0" == end_of(home, "eat(50)")


def test_a_shell_that_fails_for_its_hungry_child_ends_with_the_cause_memory(home: Den) -> None:
    assert "memory" == end_of(
        home, "if os.fork() == 0: eat(300)\nsys.exit(os.waitstatus_to_exitcode(os.wait()[1]) and 7)"
    )


def test_a_crash_over_memory_that_was_refused_has_the_cause_memory(marks: Den) -> None:
    assert "memory" == end_of(marks, "try: eat(300)\nexcept MemoryError: os.abort()")


@pytest.mark.parametrize("failure", ["sys.exit(1)", "os.abort()"])
def test_a_failure_with_little_memory_used_keeps_its_own_cause(marks: Den, failure: str) -> None:
    assert {"sys.exit(1)": "exit 1", "os.abort()": "signal 6"}[failure] == end_of(marks, failure)


def test_a_child_that_bears_the_refusal_ends_as_it_likes(marks: Den) -> None:
    assert "exit 0" == end_of(marks, "try: eat(300)\nexcept MemoryError: os._exit(0)")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_one_that_has_eaten_nearly_all_keeps_its_own_cause(
    marks: Den, signum: int
) -> None:
    assert f"signal {int(signum)}" == end_of(
        marks, f"kept = eat(75); os.kill(os.getpid(), {int(signum)}); rest()"
    )


def test_one_that_is_stopped_while_it_has_eaten_nearly_all_keeps_its_own_cause(marks: Den) -> None:
    code = (
        "kept = eat(75); signal.signal(signal.SIGTERM, lambda *_: os._exit(3)); say('full'); rest()"
    )
    kid = marks.spawn(EATER + code, limits=Limits(memory=LIMIT))
    kid.out.await_text("full")
    ending = kid.stop(StopPolicy(grace=60.0))
    assert ("exit 3", True) == (str(ending.cause), ending.max_rss > 0.8 * LIMIT)


def test_one_without_a_limit_may_eat(home: Den) -> None:
    assert "exit 0" == str(home.spawn(EATER + "eat(300)").wait().cause)


def test_memory_that_is_reserved_and_not_used_is_no_reason_to_refuse_it(marks: Den) -> None:
    """What node and java do at their start: the reason why the address space is not what is
    limited.
    """
    reserve = (
        "import mmap; kept = mmap.mmap(-1, 1 << 34, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, "
        "prot=mmap.PROT_READ)"
    )
    kid = marks.start([sys.executable, "-I", "-c", reserve], limits=Limits(memory=LIMIT))
    assert "exit 0" == str(kid.wait().cause)


def test_a_limit_too_small_for_any_program_is_told_one_way_or_the_other_and_leaves_nothing(
    marks: Den,
) -> None:
    try:
        cause = end_of(marks, "pass", memory=4096)
    except SpawnError as error:
        cause = str(error)
    assert "exit 0" != cause
    assert "exit 0" == str(marks.start(["true"]).wait().cause)
    assert {} == marks.guardian._children


# --- open files, nice, umask ----------------------------------------------------------------------


def test_a_child_sees_its_limit_of_open_files_soft_and_hard(home: Den) -> None:
    kid = home.start(["sh", "-c", "ulimit -Sn; ulimit -Hn"], limits=Limits(open_files=77))
    kid.wait()
    assert b"77\n77\n" == kid.out.data


def test_more_open_files_than_anybody_may_have_are_refused_with_the_most_there_are(
    marks: Den,
) -> None:
    most = int(Path("/proc/sys/fs/nr_open").read_text())
    with pytest.raises(
        SpawnError,
        match=rf"^cannot allow it {most + 1} open files: no more than \d+ are allowed here$",
    ) as caught:
        marks.start(["true"], limits=Limits(open_files=most + 1))
    assert errno.EPERM == caught.value.errno
    assert {} == marks.guardian._children


def test_a_child_is_as_nice_as_it_is_told_to_be(marks: Den) -> None:
    kid = marks.spawn("say(os.getpriority(os.PRIO_PROCESS, 0))", limits=Limits(nice=7))
    kid.wait()
    assert b"7\n" == kid.out.data


@pytest.mark.parametrize("umask", [0o027, 0])
def test_a_child_has_the_umask_it_is_told(marks: Den, umask: int) -> None:
    kid = marks.start(["sh", "-c", "umask"], umask=umask)
    kid.wait()
    assert f"{umask:04o}\n".encode() == kid.out.data


def test_without_limits_and_umask_a_child_has_those_of_the_host(marks: Den) -> None:
    former = os.umask(0o022)
    os.umask(former)
    kid = marks.start(["sh", "-c", "umask; nice; ulimit -n; ulimit -d"])
    kid.wait()
    limits = Path("/proc/self/limits").read_text().splitlines()
    soft = {line[:26].strip(): line[26:].split()[0] for line in limits}
    expected = [
        f"{former:04o}",
        os.getpriority(os.PRIO_PROCESS, 0),
        soft["Max open files"],
        soft["Max data size"],
    ]
    assert [str(value) for value in expected] == kid.out.data.decode().split()


POWERLESS = """
    import ctypes, os, sys
    from longwatch.errors import SpawnError
    from longwatch.host.children import Guardian
    from longwatch.host.identity import Identity
    from longwatch.host.loop import LoopThread
    from longwatch.host.process import Limits, ProcessSpec

    for capability in (
        6, 7, 23
    ):  # CAP_SETGID, CAP_SETUID, CAP_SYS_NICE: the guardian is executed without them
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
    stranger = Identity(name="stranger", uid=os.geteuid() + 4242, gid=4242, groups=(4242,))
    with LoopThread() as loop, Guardian(loop) as guardian:
        for extra in (
            {"limits": Limits(nice=os.getpriority(os.PRIO_PROCESS, 0) - 1)}, {"identity": stranger}
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
    with running(POWERLESS) as host:
        assert (
            f"cannot set its nice value to {os.getpriority(os.PRIO_PROCESS, 0) - 1}: "
            f"Permission denied" == host.line()
        )
        assert "cannot become user 'stranger': Operation not permitted" == host.line()


# --- one sink for both outputs --------------------------------------------------------------------


def test_one_sink_for_both_outputs_gets_their_lines_in_order_through_one_pipe(home: Den) -> None:
    both = Lines()
    code = """
        same = os.readlink("/proc/self/fd/1") == os.readlink("/proc/self/fd/2")
        for number in range(200):
            os.write(1 + number % 2, f"{number}\\n".encode())
        say("same" if same else "two")
    """
    kid = home.spawn(code, stdout=both, stderr=both)
    assert 1 == len(kid.child._captures)
    kid.wait()
    assert [*map(str, range(200)), "same"] == both.data.decode().splitlines()


# --- a grace that is extended ---------------------------------------------------------------------


@pytest.fixture
def timed() -> Iterator[tuple[Den, FakeClock]]:
    clock = FakeClock()
    with den(cgroups=False, clock=clock) as opened:
        yield opened, clock


def test_a_grace_that_is_extended_lasts_so_long_from_then(timed: tuple[Den, FakeClock]) -> None:
    home, clock = timed
    kid = home.spawn("deaf(); say('ready'); rest()")
    kid.out.await_text("ready")
    stopping = kid.stopping(StopPolicy(grace=15.0))
    clock.await_parked(1)
    clock.advance(10.0)
    home.do(lambda: kid.child.extend_stop(20.0))
    home.do(lambda: kid.child.extend_stop(0.5))  # shortens nothing
    clock.advance(19.0, parked=1)
    assert not stopping.done()
    clock.advance(1.0, parked=0)
    assert "signal 9" == str(stopping.result(30.0).cause)


def test_an_extension_before_the_stop_is_none(timed: tuple[Den, FakeClock]) -> None:
    home, clock = timed
    kid = home.spawn("deaf(); say('ready'); rest()")
    kid.out.await_text("ready")
    home.do(lambda: kid.child.extend_stop(600.0))
    stopping = kid.stopping(StopPolicy(grace=15.0))
    clock.await_parked(1)
    clock.advance(15.0, parked=0)
    assert "signal 9" == str(stopping.result(30.0).cause)


def test_a_later_stop_with_a_short_grace_hastens_one_that_was_extended(
    timed: tuple[Den, FakeClock],
) -> None:
    home, clock = timed
    kid = home.spawn("deaf(); say('ready'); rest()")
    kid.out.await_text("ready")
    stopping = kid.stopping(StopPolicy(grace=15.0))
    clock.await_parked(1)
    home.do(lambda: kid.child.extend_stop(600.0))
    assert "signal 9" == str(kid.stop(KILL_NOW).cause)
    assert "signal 9" == str(stopping.result(30.0).cause)


# --- many at once ---------------------------------------------------------------------------------


def test_a_hundred_children_with_limits_start_at_once_and_stop_at_once(home: Den) -> None:
    spec = ProcessSpec(
        argv=["sleep", "100"],
        env={"PATH": os.defpath},
        limits=Limits(memory=LIMIT, open_files=64, nice=19),
        umask=0o077,
    )

    async def storm() -> list[Ending]:
        children = await asyncio.gather(*(home.guardian.spawn(spec) for _ in range(100)))
        return await asyncio.gather(*(child.stop(StopPolicy(grace=60.0)) for child in children))

    endings = home.loop.call(storm(), timeout=60.0)
    assert {"signal 15"} == {str(ending.cause) for ending in endings}
    assert eventually(lambda: not home.guardian._children)
