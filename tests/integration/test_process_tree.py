from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from guardian_fixture import (
    TIMEOUT,
    GuardianFixture,
    SyncChild,
    is_gone,
    proc_state,
    require_cgroups,
    running_guardian,
)
from longwatch.host.process import KILL_NOW, ProcessEnd, StopPolicy
from longwatch.testing import FakeClock
from polling import eventually

PATIENT = StopPolicy(grace=15.0)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=[True, False], ids=["cgroups", "marks"])
def guardian(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[GuardianFixture]:
    if request.param:
        require_cgroups()
    with running_guardian(cgroups=request.param, clock=clock) as opened:
        yield opened


@pytest.fixture
def guardian_with_cgroups(clock: FakeClock) -> Iterator[GuardianFixture]:
    require_cgroups()
    with running_guardian(cgroups=True, clock=clock) as opened:
        yield opened


def summary(ending: ProcessEnd) -> tuple[str, int, int]:
    return str(ending.cause), ending.killed, ending.survivors


def result(stopping: Future[ProcessEnd]) -> tuple[str, int, int]:
    return summary(stopping.result(TIMEOUT))


def pid_said(child: SyncChild, word: str) -> int:
    return int(child.out.words_after(word)[0])


# --- the stop policy ------------------------------------------------------------------------------


def test_a_child_that_obeys_is_not_killed(guardian: GuardianFixture) -> None:
    child = guardian.spawn(
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(3)); say('ready'); rest()"
    )
    child.out.wait_for_text("ready")
    assert ("exit 3", 0, 0) == summary(child.stop(PATIENT))


def test_the_signal_of_the_policy_is_sent(guardian: GuardianFixture) -> None:
    child = guardian.spawn(
        "signal.signal(signal.SIGQUIT, lambda *_: os._exit(4)); say('ready'); rest()"
    )
    child.out.wait_for_text("ready")
    assert ("exit 4", 0, 0) == summary(child.stop(StopPolicy(signal=signal.SIGQUIT)))


def test_a_child_that_ignores_the_signal_is_killed_when_its_grace_is_over_and_not_before(
    guardian: GuardianFixture, clock: FakeClock
) -> None:
    child = guardian.spawn(
        "signal.signal(signal.SIGTERM, lambda *_: say('no')); say('ready'); rest()"
    )
    child.out.wait_for_text("ready")
    stopping = child.start_stop(PATIENT)
    child.out.wait_for_text("no")
    clock.await_parked(1)
    clock.advance(14.9)
    assert [child.pid] == child.survivors()
    clock.advance(0.1, parked=0)
    assert ("signal 9", 1, 0) == result(stopping)


def test_a_child_that_is_being_stopped_gets_one_signal_however_often_it_is_stopped(
    guardian: GuardianFixture,
) -> None:
    """The second stop and the third wait for the same end. What the leader left in another session
    gets one signal as well, once the leader has ended.
    """
    reader, writer = os.pipe()
    child = guardian.spawn(
        """
        heard = []
        def stay(name):
            signal.signal(signal.SIGTERM, lambda *_: (heard.append(1), say(name, "heard")))
            say(name, "ready")
            while not heard:
                signal.pause()
            os.read(0, 1)
            say(f"{name}-counted", len(heard))
            os._exit(0)
        orphan(lambda: stay("orphan"))
        stay("leader")
        """,
        stdin=reader,
    )
    os.close(reader)
    child.out.wait_for_text("leader ready")
    child.out.wait_for_text("orphan ready")
    stops = [child.start_stop(PATIENT)]
    for name in ("leader", "orphan"):
        child.out.wait_for_text(f"{name} heard")
        stops.append(child.start_stop(PATIENT))
        stops.append(child.start_stop(StopPolicy(signal=signal.SIGTERM, grace=20.0)))
        os.write(writer, b".")
        assert ["1"] == child.out.words_after(f"{name}-counted")
    os.close(writer)
    assert {("exit 0", 0, 0)} == {result(stop) for stop in stops}


def test_what_a_leader_leaves_when_it_obeys_has_its_grace_too(guardian: GuardianFixture) -> None:
    reader, writer = os.pipe()
    child = guardian.spawn(
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
    child.out.wait_for_text("ready")
    waiting = guardian.loop.spawn(child.child.wait())
    stopping = child.start_stop(PATIENT)
    child.out.wait_for_text("cleaning")
    assert eventually(lambda: is_gone(child.pid))
    os.write(writer, b".")
    os.close(writer)
    assert ("signal 15", 0, 0) == result(stopping) == result(waiting)
    assert child.out.data.endswith(b"cleaned\n")


def test_what_a_leader_leaves_and_does_not_end_in_the_grace_is_killed(
    guardian: GuardianFixture, clock: FakeClock
) -> None:
    child = guardian.spawn("""
        if os.fork() == 0:
            deaf()
            say("ready")
            rest()
        rest()
    """)
    child.out.wait_for_text("ready")
    stopping = child.start_stop(PATIENT)
    assert eventually(lambda: is_gone(child.pid))
    clock.await_parked(1)
    assert 1 == len(child.survivors())
    clock.advance(15.0, parked=0)
    assert ("signal 15", 1, 0) == result(stopping)


def test_what_a_leader_leaves_in_a_session_of_its_own_is_asked_to_stop_too(
    guardian: GuardianFixture,
) -> None:
    """The signal to the group does not reach it; it gets its own once the leader has ended, and
    need not be killed.
    """
    child = guardian.spawn("""
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, lambda *_: (say("asked"), os._exit(0)))
            say("ready")
            rest()
        rest()
    """)
    child.out.wait_for_text("ready")
    assert ("signal 15", 0, 0) == summary(child.stop(PATIENT))
    assert child.out.data.endswith(b"asked\n")


def test_a_second_stop_hastens_the_first(guardian: GuardianFixture) -> None:
    child = guardian.spawn("deaf(); say('ready'); rest()")
    child.out.wait_for_text("ready")
    first = child.start_stop(PATIENT)
    assert ("signal 9", "signal 9") == (result(child.start_stop(KILL_NOW))[0], result(first)[0])


def test_a_child_that_is_suspended_stops_all_the_same(guardian: GuardianFixture) -> None:
    child = guardian.spawn(
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(3)); say('ready'); rest()"
    )
    child.out.wait_for_text("ready")
    child.signal(signal.SIGSTOP)
    assert eventually(lambda: proc_state(child.pid) == "T")
    assert ("exit 3", 0, 0) == summary(child.stop(PATIENT))


def test_a_suspended_child_that_is_deaf_is_killed(guardian: GuardianFixture) -> None:
    child = guardian.spawn("deaf(); say('ready'); rest()")
    child.out.wait_for_text("ready")
    child.signal(signal.SIGSTOP)
    assert ("signal 9", 1, 0) == summary(child.kill())


# --- whole trees ----------------------------------------------------------------------------------


def test_what_is_left_when_a_leader_ends_by_itself_is_killed(guardian: GuardianFixture) -> None:
    child = guardian.spawn(
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
    assert eventually(lambda: 2 == child.out.data.count(b"ready"))
    for descriptor in pipe:
        os.close(descriptor)
    assert ("exit 3", 2, 0) == summary(child.wait())
    assert [] == child.survivors()


def test_a_deaf_orphan_in_a_session_of_its_own_without_environment_does_not_survive(
    guardian: GuardianFixture,
) -> None:
    child = guardian.spawn("orphan(nameless); deaf(); say('leader'); rest()")
    child.out.wait_for_text("nameless")
    child.out.wait_for_text("leader")
    assert 2 == len(child.survivors())
    assert ("signal 9", 2, 0) == summary(child.stop(KILL_NOW))
    assert [] == child.survivors()


def test_a_family_of_every_kind_does_not_survive(guardian: GuardianFixture) -> None:
    child = guardian.spawn("""
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
    assert eventually(lambda: 15 == child.out.data.count(b"here"))
    assert 15 == len(child.survivors())
    assert ("signal 9", 15, 0) == summary(child.kill())
    assert [] == child.survivors()


def test_killing_one_tree_spares_the_other_and_its_orphans(guardian: GuardianFixture) -> None:
    family = "orphan(lambda: (say('orphan', os.getpid()), rest())); say('leader'); rest()"
    doomed, spared = guardian.spawn(family), guardian.spawn(family)
    orphans = [pid_said(child, "orphan") for child in (doomed, spared)]
    for child in (doomed, spared):
        child.out.wait_for_text("leader")
    assert ("signal 9", 2, 0) == summary(doomed.kill())
    assert [] == doomed.survivors()
    assert {spared.pid, orphans[1]} == set(spared.survivors())
    assert ("signal 9", 2, 0) == summary(spared.kill())


def test_an_orphan_that_executes_programs_without_end_is_not_lost_to_another_tree(
    guardian: GuardianFixture,
) -> None:
    """While a process executes a program its environment cannot be read: a look at that moment
    finds no mark and proves nothing.
    """
    guardian.spawn("rest()")
    for _ in range(25):
        child = guardian.spawn("""
            def restless():
                script = '[ $0 -lt 20000 ] && exec /bin/sh -c "$1" $(($0 + 1)) "$1" "$2"'
                os.execv("/bin/sh", ["sh", "-c", script, "0", script, sys.argv[1]])
            orphan(restless)
        """)
        assert "exit 0" == str(child.wait().cause)
        assert [] == seen_often(child)


def seen_often(child: SyncChild) -> list[int]:
    """Whoever is seen of it in many looks: one look may miss a process that is just forking or
    executing.
    """
    return [pid for _ in range(20) for pid in child.survivors()]


def test_an_orphan_without_any_sign_is_told_from_other_trees_by_its_cgroup(
    guardian_with_cgroups: GuardianFixture,
) -> None:
    family = "orphan(nameless); say('leader'); rest()"
    doomed, spared = guardian_with_cgroups.spawn(family), guardian_with_cgroups.spawn(family)
    for child in (doomed, spared):
        child.out.wait_for_text("nameless")
        child.out.wait_for_text("leader")
    assert ("signal 9", 2, 0) == summary(doomed.kill())
    assert [] == doomed.survivors()
    assert 2 == len(spared.survivors())


def test_a_process_outside_is_spared_even_if_it_bears_the_mark(guardian: GuardianFixture) -> None:
    child = guardian.spawn("rest()")
    outside = os.posix_spawn("/bin/sleep", ["sleep", "100"], {"LONGWATCH_OWNER": child.child.mark})
    try:
        child.kill()
        assert (0, 0) == os.waitpid(outside, os.WNOHANG)
    finally:
        os.kill(outside, signal.SIGKILL)
        os.waitpid(outside, 0)


# --- those that will not hold still ---------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 10, 20])
@pytest.mark.parametrize("setsid", [False, True], ids=["one-group", "new-sessions"])
def test_processes_that_fork_and_go_without_end_are_caught(
    guardian: GuardianFixture, count: int, *, setsid: bool
) -> None:
    child = guardian.spawn(f"hoppers({count}, setsid={setsid}); say('ready'); rest()")
    child.out.wait_for_text("ready")
    ending = child.kill()
    assert ("signal 9", 0) == (str(ending.cause), ending.survivors)
    assert [] == seen_often(child)


def test_processes_that_fork_and_go_are_caught_when_their_leader_has_ended(
    guardian: GuardianFixture,
) -> None:
    child = guardian.spawn("hoppers(5, setsid=True); sys.exit(6)")
    ending = child.wait()
    assert ("exit 6", 0) == (str(ending.cause), ending.survivors)
    assert [] == seen_often(child)


def test_processes_that_fork_and_go_in_one_tree_do_not_harm_another(
    guardian: GuardianFixture,
) -> None:
    quiet = guardian.spawn("orphan(lambda: (say('orphan'), rest())); rest()")
    quiet.out.wait_for_text("orphan")
    restless = guardian.spawn("hoppers(5, setsid=True); say('ready'); rest()")
    restless.out.wait_for_text("ready")
    assert "signal 9" == str(restless.kill().cause)
    assert [] == seen_often(restless)
    assert 2 == len(quiet.survivors())


def test_a_quiet_tree_ends_while_another_forks_and_goes(guardian: GuardianFixture) -> None:
    restless = guardian.spawn("hoppers(5, setsid=True); say('ready'); rest()")
    restless.out.wait_for_text("ready")
    quiet = guardian.spawn("orphan(lambda: (say('orphan'), rest())); rest()")
    quiet.out.wait_for_text("orphan")
    ending = quiet.kill()
    assert ("signal 9", 0) == (str(ending.cause), ending.survivors)
    assert ending.killed in {2, 3}  # the orphan may speak before the one in between is gone
    assert [] == quiet.survivors()
    assert eventually(lambda: len(restless.survivors()) > 1)
