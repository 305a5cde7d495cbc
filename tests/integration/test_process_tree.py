from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from awaiting import eventually
from den import PATIENCE, Den, Kid, den, gone, require_cgroups, state
from longwatch.host.process import KILL_NOW, Ending, StopPolicy
from longwatch.testing import FakeClock

PATIENT = StopPolicy(grace=15.0)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=[True, False], ids=["cgroups", "marks"])
def home(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[Den]:
    if request.param:
        require_cgroups()
    with den(cgroups=request.param, clock=clock) as opened:
        yield opened


@pytest.fixture
def caged(clock: FakeClock) -> Iterator[Den]:
    require_cgroups()
    with den(cgroups=True, clock=clock) as opened:
        yield opened


def summary(ending: Ending) -> tuple[str, int, int]:
    return str(ending.cause), ending.killed, ending.survivors


def result(stopping: Future[Ending]) -> tuple[str, int, int]:
    return summary(stopping.result(PATIENCE))


def pid_said(kid: Kid, word: str) -> int:
    return int(kid.out.words_after(word)[0])


# --- the stop policy ------------------------------------------------------------------------------


def test_a_child_that_obeys_is_not_killed(home: Den) -> None:
    kid = home.spawn("signal.signal(signal.SIGTERM, lambda *_: os._exit(3)); say('ready'); rest()")
    kid.out.await_text("ready")
    assert ("exit 3", 0, 0) == summary(kid.stop(PATIENT))


def test_the_signal_of_the_policy_is_sent(home: Den) -> None:
    kid = home.spawn("signal.signal(signal.SIGQUIT, lambda *_: os._exit(4)); say('ready'); rest()")
    kid.out.await_text("ready")
    assert ("exit 4", 0, 0) == summary(kid.stop(StopPolicy(signal=signal.SIGQUIT)))


def test_a_child_that_ignores_the_signal_is_killed_when_its_grace_is_over_and_not_before(
    home: Den, clock: FakeClock
) -> None:
    kid = home.spawn("signal.signal(signal.SIGTERM, lambda *_: say('no')); say('ready'); rest()")
    kid.out.await_text("ready")
    stopping = kid.stopping(PATIENT)
    kid.out.await_text("no")
    clock.await_parked(1)
    clock.advance(14.9)
    assert [kid.pid] == kid.survivors()
    clock.advance(0.1, parked=0)
    assert ("signal 9", 1, 0) == result(stopping)


def test_what_a_leader_leaves_when_it_obeys_has_its_grace_too(home: Den) -> None:
    reader, writer = os.pipe()
    kid = home.spawn(
        """
        def clean(*_):
            say("cleaning"), os.read(0, 1), say("cleaned"), os._exit(0)
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, clean)
            say("ready")
            rest()
        rest()
        """,
        stdin=reader,
    )
    os.close(reader)
    kid.out.await_text("ready")
    waiting = home.loop.spawn(kid.child.wait())
    stopping = kid.stopping(PATIENT)
    kid.out.await_text("cleaning")
    assert eventually(lambda: gone(kid.pid))
    os.write(writer, b".")
    os.close(writer)
    assert ("signal 15", 0, 0) == result(stopping) == result(waiting)
    assert kid.out.data.endswith(b"cleaned\n")


def test_what_a_leader_leaves_and_does_not_end_in_the_grace_is_killed(
    home: Den, clock: FakeClock
) -> None:
    kid = home.spawn("""
        if os.fork() == 0:
            deaf()
            say("ready")
            rest()
        rest()
    """)
    kid.out.await_text("ready")
    stopping = kid.stopping(PATIENT)
    assert eventually(lambda: gone(kid.pid))
    clock.await_parked(1)
    assert 1 == len(kid.survivors())
    clock.advance(15.0, parked=0)
    assert ("signal 15", 1, 0) == result(stopping)


def test_what_a_leader_leaves_in_a_session_of_its_own_is_asked_to_stop_too(home: Den) -> None:
    """The signal to the group does not reach it; it gets its own once the leader has ended, and
    need not be killed.
    """
    kid = home.spawn("""
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, lambda *_: (say("asked"), os._exit(0)))
            say("ready")
            rest()
        rest()
    """)
    kid.out.await_text("ready")
    assert ("signal 15", 0, 0) == summary(kid.stop(PATIENT))
    assert kid.out.data.endswith(b"asked\n")


def test_a_second_stop_hastens_the_first(home: Den) -> None:
    kid = home.spawn("deaf(); say('ready'); rest()")
    kid.out.await_text("ready")
    first = kid.stopping(PATIENT)
    assert ("signal 9", "signal 9") == (result(kid.stopping(KILL_NOW))[0], result(first)[0])


def test_a_child_that_is_suspended_stops_all_the_same(home: Den) -> None:
    kid = home.spawn("signal.signal(signal.SIGTERM, lambda *_: os._exit(3)); say('ready'); rest()")
    kid.out.await_text("ready")
    kid.signal(signal.SIGSTOP)
    assert eventually(lambda: state(kid.pid) == "T")
    assert ("exit 3", 0, 0) == summary(kid.stop(PATIENT))


def test_a_suspended_child_that_is_deaf_is_killed(home: Den) -> None:
    kid = home.spawn("deaf(); say('ready'); rest()")
    kid.out.await_text("ready")
    kid.signal(signal.SIGSTOP)
    assert ("signal 9", 1, 0) == summary(kid.kill())


# --- whole trees ----------------------------------------------------------------------------------


def test_what_is_left_when_a_leader_ends_by_itself_is_killed(home: Den) -> None:
    kid = home.spawn(
        """
        def stay():
            deaf()
            say("ready")
            rest()
        if os.fork() == 0:
            stay()
        orphan(stay)
        os.read(0, 1)
        sys.exit(3)
    """,
        stdin=(pipe := os.pipe())[0],
    )
    assert eventually(lambda: 2 == kid.out.data.count(b"ready"))
    for descriptor in pipe:
        os.close(descriptor)
    assert ("exit 3", 2, 0) == summary(kid.wait())
    assert [] == kid.survivors()


def test_a_deaf_orphan_in_a_session_of_its_own_without_environment_does_not_survive(
    home: Den,
) -> None:
    kid = home.spawn("orphan(nameless); deaf(); say('leader'); rest()")
    kid.out.await_text("nameless")
    kid.out.await_text("leader")
    assert 2 == len(kid.survivors())
    assert ("signal 9", 2, 0) == summary(kid.stop(KILL_NOW))
    assert [] == kid.survivors()


def test_a_family_of_every_kind_does_not_survive(home: Den) -> None:
    kid = home.spawn("""
        def family(depth):
            deaf()
            if depth:
                orphan(lambda: family(depth - 1))
                if os.fork() == 0:
                    os.setpgid(0, 0)
                    family(depth - 1)
            say("here")
            rest()
        family(3)
    """)
    assert eventually(lambda: 15 == kid.out.data.count(b"here"))
    assert 15 == len(kid.survivors())
    assert ("signal 9", 15, 0) == summary(kid.kill())
    assert [] == kid.survivors()


def test_killing_one_tree_spares_the_other_and_its_orphans(home: Den) -> None:
    family = "orphan(lambda: (say('orphan', os.getpid()), rest())); say('leader'); rest()"
    doomed, spared = home.spawn(family), home.spawn(family)
    orphans = [pid_said(kid, "orphan") for kid in (doomed, spared)]
    for kid in (doomed, spared):
        kid.out.await_text("leader")
    assert ("signal 9", 2, 0) == summary(doomed.kill())
    assert [] == doomed.survivors()
    assert {spared.pid, orphans[1]} == set(spared.survivors())
    assert ("signal 9", 2, 0) == summary(spared.kill())


def test_an_orphan_that_executes_programs_without_end_is_not_lost_to_another_tree(
    home: Den,
) -> None:
    """While a process executes a program its environment cannot be read: a look at that moment
    finds no mark and proves nothing.
    """
    home.spawn("rest()")
    for _ in range(25):
        kid = home.spawn("""
            def restless():
                script = '[ $0 -lt 20000 ] && exec /bin/sh -c "$1" $(($0 + 1)) "$1" "$2"'
                os.execv("/bin/sh", ["sh", "-c", script, "0", script, sys.argv[1]])
            orphan(restless)
        """)
        assert "exit 0" == str(kid.wait().cause)
        assert [] == seen_often(kid)


def seen_often(kid: Kid) -> list[int]:
    """Whoever is seen of it in many looks: one look may miss a process that is just forking or
    executing.
    """
    return [pid for _ in range(20) for pid in kid.survivors()]


def test_an_orphan_without_any_sign_is_told_from_other_trees_by_its_cgroup(caged: Den) -> None:
    family = "orphan(nameless); say('leader'); rest()"
    doomed, spared = caged.spawn(family), caged.spawn(family)
    for kid in (doomed, spared):
        kid.out.await_text("nameless")
        kid.out.await_text("leader")
    assert ("signal 9", 2, 0) == summary(doomed.kill())
    assert [] == doomed.survivors()
    assert 2 == len(spared.survivors())


def test_a_process_outside_is_spared_even_if_it_bears_the_mark(home: Den) -> None:
    kid = home.spawn("rest()")
    outside = os.posix_spawn("/bin/sleep", ["sleep", "100"], {"LONGWATCH_OWNER": kid.child.mark})
    try:
        kid.kill()
        assert (0, 0) == os.waitpid(outside, os.WNOHANG)
    finally:
        os.kill(outside, signal.SIGKILL)
        os.waitpid(outside, 0)


# --- those that will not hold still ---------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 10, 20])
@pytest.mark.parametrize("setsid", [False, True], ids=["one-group", "new-sessions"])
def test_processes_that_fork_and_go_without_end_are_caught(
    home: Den, count: int, *, setsid: bool
) -> None:
    kid = home.spawn(f"hoppers({count}, setsid={setsid}); say('ready'); rest()")
    kid.out.await_text("ready")
    ending = kid.kill()
    assert ("signal 9", 0) == (str(ending.cause), ending.survivors)
    assert [] == seen_often(kid)


def test_processes_that_fork_and_go_are_caught_when_their_leader_has_ended(home: Den) -> None:
    kid = home.spawn("hoppers(5, setsid=True); sys.exit(6)")
    ending = kid.wait()
    assert ("exit 6", 0) == (str(ending.cause), ending.survivors)
    assert [] == seen_often(kid)


def test_processes_that_fork_and_go_in_one_tree_do_not_harm_another(home: Den) -> None:
    quiet = home.spawn("orphan(lambda: (say('orphan'), rest())); rest()")
    quiet.out.await_text("orphan")
    restless = home.spawn("hoppers(5, setsid=True); say('ready'); rest()")
    restless.out.await_text("ready")
    assert "signal 9" == str(restless.kill().cause)
    assert [] == seen_often(restless)
    assert 2 == len(quiet.survivors())


def test_a_quiet_tree_ends_while_another_forks_and_goes(home: Den) -> None:
    restless = home.spawn("hoppers(5, setsid=True); say('ready'); rest()")
    restless.out.await_text("ready")
    quiet = home.spawn("orphan(lambda: (say('orphan'), rest())); rest()")
    quiet.out.await_text("orphan")
    ending = quiet.kill()
    assert ("signal 9", 0) == (str(ending.cause), ending.survivors)
    assert ending.killed in {2, 3}  # the orphan may speak before the one in between is gone
    assert [] == quiet.survivors()
    assert eventually(lambda: len(restless.survivors()) > 1)
