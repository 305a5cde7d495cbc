from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

import requires
from guardian_fixture import (
    PRELUDE,
    TIMEOUT,
    GuardianFixture,
    LineSink,
    cgroup_folders,
    is_gone,
    pids_with_token,
    proc_state,
    require_cgroups,
    running_guardian,
)
from leaks import no_descriptor_leaks
from longwatch.core.events.host import GuardianLost
from longwatch.errors import GuardianLostError, SpawnError
from longwatch.host import process
from longwatch.host.guardian import spawn as spawning
from longwatch.host.guardian.cgroups import Cgroup, Cgroups
from longwatch.host.guardian.proctable import Process, ProcTable
from longwatch.host.guardian.tree import kill_marked, kill_processes
from longwatch.host.guardian.wire import ControlMessage
from longwatch.host.process import KILL_NOW, ProcessSpec
from polling import eventually
from snippet import Snippet, run_snippet

FAMILY = (
    "orphan(lambda: (deaf(), say('orphan'), rest())); deaf(); say('leader', os.getpid()); rest()"
)

HOST = """
    import os, signal, sys
    from longwatch.host.guardian_client import GuardianClient
    from longwatch.host.loop import EventLoopThread
    from longwatch.host.process import KILL_NOW, ProcessSpec

    def say(*words):
        os.write(
            1, (" ".join(map(str, words)) + "\\n").encode()
        )  # in one piece, for the children write to the same pipe

    token, cgroups, adopt, code = (input() for _ in range(4))
    loop = EventLoopThread()
    guardian = GuardianClient(loop, cgroups=cgroups == "cgroups", subreaper=adopt == "adopt")
    guardian.start()

    def spawn(stdout=1):
        argv = [sys.executable, "-I", "-S", "-c", eval(code), token]
        return loop.call(guardian.spawn(ProcessSpec(argv=argv, env={}, stdout=stdout)), timeout=30)

    say("guardian", guardian.pid)
"""


class Host:
    """A process of its own that holds a guardian; a test may kill either."""

    def __init__(self, snippet: Snippet, token: str) -> None:
        self.snippet = snippet
        self.token = token
        self.lines: list[str] = []

    @property
    def pid(self) -> int:
        return self.snippet._child.pid

    def number(self, word: str) -> int:
        """The number behind this word, once a line begins with it."""
        return int(self._await(lambda line: line.startswith(f"{word} ")).split()[1])

    def wait_for_lines(self, *wanted: str) -> None:
        """Read until all of these were said, in whatever order."""
        for words in wanted:
            self._await(words.__eq__)

    def _await(self, fits: Callable[[str], bool]) -> str:
        while not any(map(fits, self.lines)):
            line = self.snippet.read_line()
            assert line, f"the host has ended; it said {self.lines} and {self.snippet.wait()}"
            self.lines.append(line)
        return next(filter(fits, self.lines))


@contextmanager
def host(story: str, code: str, *, cgroups: bool, adopt: bool = False) -> Iterator[Host]:
    """Run the story behind HOST; every process of it is ended with the block."""
    token = f"token-{secrets.token_hex(8)}"
    with run_snippet(dedent(HOST) + dedent(story)) as snippet:
        for line in (
            token,
            "cgroups" if cgroups else "marks",
            "adopt" if adopt else "",
            repr(PRELUDE + dedent(code)),
        ):
            snippet.send_line(line)
        try:
            yield Host(snippet, token)
        finally:
            for pid in pids_with_token(token):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(params=[True, False], ids=["cgroups", "marks"])
def cgroups(request: pytest.FixtureRequest) -> bool:
    if request.param:
        require_cgroups()
    return bool(request.param)


@pytest.fixture
def guardian(*, cgroups: bool) -> Iterator[GuardianFixture]:
    with running_guardian(cgroups=cgroups) as opened:
        yield opened


# --- the host dies --------------------------------------------------------------------------------


@pytest.mark.parametrize("adopt", [False, True], ids=["plain", "adopt"])
def test_a_host_that_is_killed_leaves_nobody(*, cgroups: bool, adopt: bool) -> None:
    with host("spawn(); signal.pause()", FAMILY, cgroups=cgroups, adopt=adopt) as it:
        guardian = it.number("guardian")
        it.wait_for_lines("orphan")
        assert eventually(lambda: 2 == len(pids_with_token(it.token)))
        it.snippet.signal(signal.SIGKILL)
        it.snippet.wait()
        assert eventually(lambda: is_gone(guardian))
        assert [] == pids_with_token(it.token)
        assert set() == cgroup_folders(it.pid)


def test_a_host_that_is_killed_leaves_nobody_of_those_that_fork_and_go(*, cgroups: bool) -> None:
    with host(
        "spawn(); signal.pause()", "hoppers(10, setsid=True); say('ready'); rest()", cgroups=cgroups
    ) as it:
        guardian = it.number("guardian")
        it.wait_for_lines("ready")
        it.snippet.signal(signal.SIGKILL)
        it.snippet.wait()
        assert eventually(lambda: is_gone(guardian))
        assert [] == [pid for _ in range(20) for pid in pids_with_token(it.token)]


def test_a_host_that_is_killed_while_it_starts_a_guardian_leaves_nobody(*, cgroups: bool) -> None:
    """The guardian finds its host gone before it has said a word."""
    with host("signal.pause()", "", cgroups=cgroups) as it:
        guardian = it.number("guardian")
        it.snippet.signal(signal.SIGKILL)
        it.snippet.wait()
        assert eventually(lambda: is_gone(guardian))


def test_a_copy_of_the_host_that_holds_the_control_open_keeps_nobody_alive(
    *, cgroups: bool
) -> None:
    story = """
        spawn()
        copy = os.fork()
        if copy == 0:
            signal.alarm(120)
            signal.pause()
        say("copy", copy)
        signal.pause()
    """
    with host(story, FAMILY, cgroups=cgroups) as it:
        guardian = it.number("guardian")
        it.wait_for_lines("orphan")
        copy = it.number("copy")
        it.snippet.signal(signal.SIGKILL)
        it.snippet._child.wait(TIMEOUT)
        try:
            assert eventually(lambda: is_gone(guardian))
            assert [] == pids_with_token(it.token)
            assert not is_gone(copy)
        finally:
            os.kill(copy, signal.SIGKILL)


def test_a_host_that_is_suspended_for_a_while_loses_nothing(*, cgroups: bool) -> None:
    story = """
        import threading
        class Count:
            lines, congested = 0, False
            def write(self, data):
                self.lines += data.count(b"\\n")
                if self.lines == 1:
                    say("ready")
                return True
            def on_drained(self, callback): callback()
        sink = Count()
        child = spawn(stdout=sink)
        say("child", child.pid)
        ending = loop.call(child.wait(), timeout=60)
        say("lines", sink.lines)
        say("ended", ending.cause)
        guardian.stop()
    """
    code = """
        def talk(*_):
            for number in range(5000):
                say(number)
            os._exit(7)
        signal.signal(signal.SIGUSR1, talk)
        say("ready")
        rest()
    """
    with host(story, code, cgroups=cgroups) as it:
        child = it.number("child")
        it.wait_for_lines("ready")
        it.snippet.signal(signal.SIGSTOP)
        assert eventually(lambda: proc_state(it.pid) == "T")
        os.kill(child, signal.SIGUSR1)
        assert eventually(lambda: is_gone(child))
        it.snippet.signal(signal.SIGCONT)
        it.wait_for_lines("lines 5001", "ended exit 7")


# --- the guardian dies ----------------------------------------------------------------------------


def test_a_guardian_that_is_killed_takes_every_child_with_it_and_that_is_told(
    *, cgroups: bool
) -> None:
    lost = threading.Event()
    with running_guardian(cgroups=cgroups, on_lost=lost.set) as guardian:
        children = [guardian.spawn(FAMILY) for _ in range(2)]
        for child in children:
            child.out.wait_for_text("orphan")
            child.out.wait_for_text("leader")
        waiting = guardian.loop.spawn(children[0].child.wait())
        killed = guardian.pid
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(GuardianLostError, match=r"the guardian died; processes killed: [2-4]"):
            waiting.result(TIMEOUT)
        assert lost.wait(TIMEOUT)
        event = guardian.observer.wait_for(GuardianLost)
        assert (killed, True) == (event.guardian_pid, 2 <= event.killed <= 4)
        assert [[], []] == [child.survivors() for child in children]
        with pytest.raises(GuardianLostError):
            guardian.start(["true"])
        assert set() == cgroup_folders(os.getpid())


def test_after_a_guardian_was_killed_another_can_be_started(guardian: GuardianFixture) -> None:
    os.kill(guardian.pid, signal.SIGKILL)
    guardian.observer.wait_for(GuardianLost)
    guardian.guardian.stop()
    guardian.guardian.start()
    assert "exit 0" == str(guardian.start(["true"]).wait().cause)


def test_a_guardian_that_does_not_answer_is_given_up_and_everything_dies_with_it(
    guardian: GuardianFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_GUARDIAN_TIMEOUT", 0.1)
    child = guardian.spawn(FAMILY)
    child.out.wait_for_text("orphan")
    child.out.wait_for_text("leader")
    os.kill(guardian.pid, signal.SIGSTOP)
    with pytest.raises(GuardianLostError):
        child.stop(KILL_NOW)
    guardian.observer.wait_for(GuardianLost)
    assert [] == child.survivors()


def test_those_that_fork_and_go_in_one_group_do_not_outlive_a_killed_guardian(
    guardian: GuardianFixture,
) -> None:
    child = guardian.spawn("hoppers(10, setsid=False); say('ready'); rest()")
    child.out.wait_for_text("ready")
    os.kill(guardian.pid, signal.SIGKILL)
    guardian.observer.wait_for(GuardianLost)
    assert [] == [pid for _ in range(20) for pid in child.survivors()]


def test_leaders_die_with_their_guardian_even_while_the_host_is_suspended(*, cgroups: bool) -> None:
    with host(
        "say('child', spawn().pid)\nsignal.pause()",
        "deaf(); say('leader'); rest()",
        cgroups=cgroups,
    ) as it:
        guardian = it.number("guardian")
        child = it.number("child")
        it.snippet.signal(signal.SIGSTOP)
        assert eventually(lambda: proc_state(it.pid) == "T")
        os.kill(guardian, signal.SIGKILL)
        assert eventually(lambda: is_gone(child))


def test_a_host_that_adopts_kills_even_the_nameless_when_its_guardian_was_killed(
    *, cgroups: bool
) -> None:
    story = """
        guardian._on_lost = lambda: say("lost")
        spawn()
        signal.pause()
    """
    with host(story, "orphan(nameless); say('leader'); rest()", cgroups=cgroups, adopt=True) as it:
        guardian = it.number("guardian")
        it.wait_for_lines("nameless", "leader")
        os.kill(guardian, signal.SIGKILL)
        it.wait_for_lines("lost")
        assert [] == pids_with_token(it.token)


def test_a_host_with_cgroups_kills_even_the_nameless_when_its_guardian_was_killed() -> None:
    require_cgroups()
    with running_guardian(cgroups=True) as guardian:
        child = guardian.spawn("orphan(nameless); say('leader'); rest()")
        child.out.wait_for_text("nameless")
        child.out.wait_for_text("leader")
        os.kill(guardian.pid, signal.SIGKILL)
        guardian.observer.wait_for(GuardianLost)
        assert [] == child.survivors()


# --- spawns that do not come to their end ---------------------------------------------------------


async def cancelled_spawn(guardian: GuardianFixture, argv: list[str], turns: int) -> None:
    """A spawn that is cancelled when the loop has turned so often."""
    spawn = asyncio.ensure_future(
        guardian.guardian.spawn(ProcessSpec(argv=argv, env={}, stdout=LineSink()))
    )
    for _ in range(turns):
        await asyncio.sleep(0)
    spawn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await spawn


@pytest.mark.parametrize("program", [sys.executable, "/no/such/program"])
def test_a_spawn_that_is_cancelled_midway_leaves_nothing_and_harms_no_other(
    guardian: GuardianFixture, program: str
) -> None:
    token = f"token-{secrets.token_hex(8)}"
    guardian.tokens.append(token)
    argv = [program, "-I", "-S", "-c", "import signal; signal.alarm(120); signal.pause()", token]
    guardian.start(["true"]).wait()
    with no_descriptor_leaks():
        for turns in (1, 2, 3) * 10:
            guardian.loop.call(cancelled_spawn(guardian, argv, turns), timeout=TIMEOUT)
            assert "exit 0" == str(guardian.start(["true"]).wait().cause)
        assert eventually(lambda: not guardian.guardian._children)
        assert [] == pids_with_token(token)


def test_a_fork_that_fails_is_told_and_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_more() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", no_more)
    message: ControlMessage = {
        "argv": ["true"],
        "env": {},
        "cwd": None,
        "mark": "m",
        "umask": None,
        "identity": None,
    }
    limits = {"memory": None, "open_files": None, "nice": None}
    request = spawning.SpawnRequest({**message, "limits": limits}, (0, 1, 2))
    with no_descriptor_leaks(), pytest.raises(BlockingIOError):
        spawning.spawn(request, None)


# --- cgroups --------------------------------------------------------------------------------------


def test_the_cgroup_of_a_tree_is_gone_when_the_tree_is_and_also_when_it_could_not_start() -> None:
    require_cgroups()
    with running_guardian(cgroups=True) as guardian:
        guardian.start(["true"]).wait()
        idle = cgroup_folders(os.getpid())
        assert 1 == len(idle)
        child = guardian.spawn("rest()")
        assert 2 == len(cgroup_folders(os.getpid()))
        for _ in range(20):
            with pytest.raises(SpawnError):
                guardian.start(["/no/such/program"])
        child.kill()
        assert eventually(lambda: idle == cgroup_folders(os.getpid()))
    assert set() == cgroup_folders(os.getpid())


def test_a_cgroup_is_killed_whole_by_the_kernel() -> None:
    require_cgroups()
    cgroups = Cgroups.open(f"{os.getpid()}-{secrets.token_hex(4)}")
    assert cgroups is not None
    cgroup = cgroups.make("1")
    assert cgroup is not None
    with subprocess.Popen(
        ["sh", "-c", "read go; sleep 100 & sleep 100"], stdin=subprocess.PIPE
    ) as victim:
        try:
            Path(cgroup.path, "cgroup.procs").write_text(str(victim.pid))
            assert victim.stdin is not None
            victim.stdin.write(b"go\n")  # only now it forks: nobody of it is outside
            victim.stdin.flush()
            assert eventually(lambda: len(cgroup.pids()) == 3)
            assert cgroup.populated
            assert victim.pid in cgroup.pids()
        finally:
            cgroup.kill()
            assert -signal.SIGKILL == victim.wait(TIMEOUT)
    assert eventually(lambda: not cgroup.populated)
    cgroups.remove()
    assert not Path(cgroup.path).exists()


def test_cgroups_that_a_killed_guardian_left_are_removed_by_the_next_and_those_in_use_are_not() -> (
    None
):
    require_cgroups()
    abandoned = Cgroup.for_name(f"{os.getpid()}-abandoned")
    assert abandoned is not None
    with running_guardian(cgroups=True) as first:
        first.start(["true"]).wait()
        in_use = cgroup_folders(os.getpid())
        # in one call: a guardian of another test may remove it meanwhile
        Path(abandoned.path, "7").mkdir(parents=True)
        with running_guardian(cgroups=True) as second:
            second.start(["true"]).wait()
            assert not Path(abandoned.path).exists()
            assert in_use < cgroup_folders(os.getpid())
    assert set() == cgroup_folders(os.getpid())


def test_cgroups_that_a_child_makes_inside_its_own_are_removed_too() -> None:
    require_cgroups()
    with running_guardian(cgroups=True) as guardian:
        child = guardian.spawn(
            """
            place = sys.argv[2] + "/" + next(
                line for line in open("/proc/self/cgroup") if line.startswith("0::")
            )[3:].strip()
            os.makedirs(place + "/inner/most")
            if os.fork() == 0:
                open(place + "/inner/most/cgroup.procs", "w").write("0")
                say("inside")
                rest()
            rest()
        """,
            str(unified()),
        )
        child.out.wait_for_text("inside")
        ending = child.kill()
        assert (2, 0) == (ending.killed, ending.survivors)
        assert [] == child.survivors()
    assert set() == cgroup_folders(os.getpid())


def unified() -> Path:
    """Where cgroup v2 is mounted."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return next(Path(where) for _, where, kind, *_ in mounts if kind == "cgroup2")


# --- in a PID namespace ---------------------------------------------------------------------------

NAMESPACE = """
    import json, os, sys
    from guardian_fixture import running_guardian
    family = "orphan(lambda: (deaf(), say('orphan'), rest())); deaf(); \
        say('leader', os.getpid()); rest()"
    told = {"pid": os.getpid(), "seen": os.readlink("/proc/self")}
    with running_guardian(cgroups=sys.argv[1] == "cgroups") as guardian:
        doomed, spared = guardian.spawn(family), guardian.spawn(family)
        for child in (doomed, spared):
            child.out.wait_for_text("orphan")
            child.out.wait_for_text("leader")
        told["before"] = len(doomed.survivors()), len(spared.survivors())
        told["killed"] = doomed.kill().killed
        told["after"] = len(doomed.survivors()), len(spared.survivors())
        hopping = guardian.spawn("hoppers(5, setsid=True); say('ready'); rest()")
        hopping.out.wait_for_text("ready")
        hopping.kill()
        told["hopping"] = [pid for _ in range(20) for pid in hopping.survivors()]
        guardian.guardian.stop()
        told["end"] = len(spared.survivors())
    print(json.dumps(told))
"""


@pytest.mark.parametrize("proc", ["outer", "own"])
def test_trees_are_told_apart_and_killed_whole_inside_a_pid_namespace(
    proc: str, *, cgroups: bool
) -> None:
    """Without a /proc of its own, the numbers there are those of the outer namespace."""
    requires.require_tool("unshare")
    options = ["--mount-proc"] if proc == "own" else []
    script = [sys.executable, "-c", dedent(NAMESPACE), "cgroups" if cgroups else "marks"]
    with subprocess.Popen(["sleep", "100"]) as outside:
        done = subprocess.run(
            ["unshare", "--pid", "--fork", *options, *script],
            check=False,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        alive = outside.poll() is None
        outside.kill()
    assert (0, "") == (done.returncode, done.stderr)
    told = json.loads(done.stdout)
    assert (1, proc == "own") == (told["pid"], told["seen"] == "1")
    assert ([2, 2], 2, [0, 2], [], 0) == tuple(
        told[word] for word in ("before", "killed", "after", "hopping", "end")
    )
    assert alive


# --- numbers that are somebody else's by now ------------------------------------------------------


def test_a_group_whose_number_a_younger_process_bears_is_spared() -> None:
    """Where much is forked, pids come round: what was a leader's group when we looked may be
    anybody's when we strike.
    """
    innocent = subprocess.Popen(["sleep", "100"], start_new_session=True)
    try:
        table = ProcTable()
        began = table.start_time(innocent.pid)
        kill_marked([], leaders=[(innocent.pid, began - 1)])
        ghost = Process(innocent.pid, innocent.pid, 1, innocent.pid, innocent.pid, began - 1)
        kill_processes(table, [ghost])
        assert innocent.poll() is None
        kill_marked([], leaders=[(innocent.pid, began)])
        assert -signal.SIGKILL == innocent.wait(TIMEOUT)
    finally:
        innocent.kill()
        innocent.wait()
