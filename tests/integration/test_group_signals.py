from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM, SIGUSR1, SIGUSR2, Signals
from textwrap import dedent

import pytest

from engine_rig import TIMEOUT
from longwatch.host.crash_file import CRASH_DIR_VARIABLE
from longwatch.mailbox import Mailbox, open_mailbox
from longwatch.store.sqlite.database import SqliteDatabase
from redis_server import wait_until
from snippet import Snippet, run_snippet

PRELUDE = """
import asyncio, logging, os, signal, sys, threading
from longwatch.mailbox import open_mailbox
from longwatch.runtime import LoopGroup, MainLoop, ShutdownCoordinator

logging.basicConfig(format="%(levelname)s %(name)s %(message)s", level=logging.WARNING)
mailbox = open_mailbox("sqlite:///{database}", "jobs")
go_on = threading.Event()

def say(*words):
    # a whole line at once, whichever thread says it
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

class Loop(MainLoop):
    def handle(self, request, context):
        say("began", request)
        go_on.wait()

def listen():
    for line in sys.stdin:
        if line.strip() == "go":
            go_on.set()
        else:
            exec(line)

threading.Thread(target=listen, daemon=True).start()

def prefetch(loop, count):
    while loop._engine is None or loop._engine._current_run is None:
        pass
    run = loop._engine._current_run
    while len(run.fetcher.held) < loop.concurrency + count:
        run.fetcher._prefetch.limit = count
        run._wakeup.set()
    say("held", loop.held_count)
"""


@pytest.fixture(autouse=True)
def crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CRASH_DIR_VARIABLE, str(tmp_path / "crashes"))
    return tmp_path / "crashes"


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterator[Mailbox[int]]:
    with SqliteDatabase(tmp_path / "m.db") as database:
        yield open_mailbox(database, "jobs")


@contextmanager
def program(code: str, folder: Path) -> Iterator[Snippet]:
    with run_snippet(PRELUDE.format(database=folder / "m.db") + dedent(code)) as snippet:
        yield snippet


GROUP = """
loop = Loop(requests=mailbox, concurrency=2)
group = LoopGroup([loop], shutdown_timeout={timeout})
threading.Thread(target=lambda: prefetch(loop, {prefetched}), daemon=True).start()
group.run()
say("returned", group.running, loop.running)
"""


def group_of(*, timeout: float = 30.0, prefetched: int = 0) -> str:
    return GROUP.format(timeout=timeout, prefetched=prefetched)


def begun(snippet: Snippet, lines: int = 3) -> set[str]:
    return {snippet.read_line() for _ in range(lines)}


# --- a clean end ---


@pytest.mark.parametrize("signum", [SIGTERM, SIGINT])
def test_told_to_stop_under_load_nothing_is_lost_and_nothing_is_spent(
    tmp_path: Path, mailbox: Mailbox[int], signum: Signals
) -> None:
    """What was not begun is back, and can be taken elsewhere, while what runs still runs."""
    mailbox.send_many(range(20))
    with program(group_of(prefetched=8), tmp_path) as snippet:
        assert {"began 0", "began 1", "held 10"} == begun(snippet)
        snippet.signal(signum)
        wait_until(lambda: mailbox.stats().ready == 18, "what was not begun is back")
        assert 2 == mailbox.stats().leased
        elsewhere = mailbox.receive(max_messages=20)
        assert (list(range(2, 20)), {(0, 0)}) == (
            [message.body for message in elsewhere],
            {(message.failures, message._record.crashes) for message in elsewhere},
        )
        snippet.send_line("go")
        assert "returned False False" == snippet.read_line()
        assert (0, "") == snippet.wait()
    assert (18, 0) == (mailbox.approximate_count(), len(mailbox.dead_letters))


def test_an_idle_group_ends_though_its_polls_are_long(tmp_path: Path) -> None:
    code = (
        "group = LoopGroup([Loop(requests=mailbox)])\nsay('up')\ngroup.run(wait_time_seconds=100)"
    )
    with program(code, tmp_path) as snippet:
        assert "up" == snippet.read_line()
        wait_until(lambda: SIGTERM in caught(snippet), "it listens")
        snippet.signal(SIGTERM)
        assert (0, "") == snippet.wait()


def caught(snippet: Snippet) -> set[int]:
    """The signals that the program has a handler for."""
    status = Path(f"/proc/{snippet._child.pid}/status").read_text()
    mask = int(
        next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16
    )
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


# --- past the deadline, and insisting ---


def test_past_the_deadline_it_exits_with_1_its_stacks_on_record_and_nobody_to_blame(
    tmp_path: Path, mailbox: Mailbox[int], crashes: Path
) -> None:
    """Whatever else there is that would keep the process, or that would be run at its end."""
    mailbox.send_many(range(2))
    stubborn = "threading.Thread(target=threading.Event().wait).start()\n"
    with program(stubborn + group_of(timeout=0.1), tmp_path) as snippet:
        begun(snippet)
        snippet.signal(SIGTERM)
        code, stderr = snippet.wait()
    assert (1, True) == (
        code,
        "CRITICAL longwatch.runtime loop-0 did not stop in time; see " in stderr,
    )
    [file] = crashes.iterdir()
    assert ["loop-0 did not stop in time", "in handle"] == [
        word for word in ("loop-0 did not stop in time", "in handle") if word in file.read_text()
    ]
    messages = mailbox.receive(max_messages=2, wait_time_seconds=TIMEOUT)
    assert [(2, 0, 0)] * 2 == [
        (each.delivery_count, each.failures, each._record.crashes) for each in messages
    ]


@pytest.mark.parametrize("second", [SIGTERM, SIGINT])
def test_a_second_signal_ends_it_at_once_with_128_and_its_number(
    tmp_path: Path, mailbox: Mailbox[int], second: Signals
) -> None:
    mailbox.send_many(range(3))
    with program(group_of(prefetched=1), tmp_path) as snippet:
        begun(snippet)
        snippet.signal(SIGTERM)
        wait_until(lambda: mailbox.stats().ready == 1, "the first was heard")
        snippet.signal(second)
        assert 128 + second == snippet.wait()[0]


def test_a_second_signal_ends_it_also_while_the_main_thread_is_held_up(
    tmp_path: Path, mailbox: Mailbox[int]
) -> None:
    """In a handler of the user's events that never returns: nothing on the way of a signal waits
    for the main thread.
    """
    with program(
        """
        from longwatch.core.events.base import Events
        from longwatch.core.events.runtime import GroupStopping

        def observe(event):
            if isinstance(event, GroupStopping):
                say("stopping")
                threading.Event().wait()

        LoopGroup([Loop(requests=mailbox)], events=Events(observe)).run()
        """,
        tmp_path,
    ) as snippet:
        wait_until(lambda: SIGTERM in caught(snippet), "it listens")
        snippet.signal(SIGTERM)
        assert "stopping" == snippet.read_line()
        snippet.signal(SIGTERM)
        assert 128 + SIGTERM == snippet.wait()[0]


# --- other signals ---


def test_sigusr1_drains_and_the_process_stays(tmp_path: Path, mailbox: Mailbox[int]) -> None:
    mailbox.send_many(range(5))
    with program(group_of(prefetched=2), tmp_path) as snippet:
        assert {"began 0", "began 1", "held 4"} == begun(snippet)
        snippet.signal(SIGUSR1)
        wait_until(lambda: mailbox.stats().ready == 3, "what was not begun is back")
        snippet.send_line("go")
        wait_until(lambda: mailbox.stats().leased == 0, "what runs is finished")
        assert 3 == mailbox.stats().ready
        snippet.send_line("say('draining', group.draining, group.running); group.resume()")
        assert "draining True True" == snippet.read_line()
        assert {"began 2", "began 3", "began 4"} == begun(snippet)
        snippet.signal(SIGTERM)
        assert "returned False False" == snippet.read_line()
        assert (0, "") == snippet.wait()


def test_sigusr2_writes_all_stacks_to_the_crash_file_also_while_the_gil_is_held(
    tmp_path: Path, mailbox: Mailbox[int], crashes: Path
) -> None:
    code = """
    class Holding(MainLoop):
        def handle(self, request, context):
            say("began")
            sys.setswitchinterval(1000.0)
            go_on.is_set()
            while True:
                pass

    LoopGroup([Holding(requests=mailbox)]).run()
    """
    mailbox.send(1)
    with program(code, tmp_path) as snippet:
        assert "began" == snippet.read_line()
        [file] = crashes.iterdir()
        snippet.signal(SIGUSR2)
        wait_until(lambda: "in handle" in file.read_text(), "the stacks are written")


def test_afterwards_every_signal_does_what_it_did_before(tmp_path: Path) -> None:
    with program(
        """
        def mine(signum, frame): ...
        signal.signal(signal.SIGUSR1, mine)
        everything = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2]

        def kernel():
            return [line for line in open("/proc/self/status") if line.startswith("SigCgt")]

        before = [signal.getsignal(each) for each in everything], kernel()
        group = LoopGroup([Loop(requests=mailbox)])
        for _ in range(2):
            def look():
                while not group.running or group.health is None or \
                        not group.health.runners[0].has_started:
                    pass
                say(
                    [signal.getsignal(each) for each in everything[:3]] != before[0][:3],
                    kernel() != before[1]
                )
                group.shutdown()
            threading.Thread(target=look, daemon=True).start()
            group.run()
            say(
                ([signal.getsignal(each) for each in everything], kernel()) == before,
                ShutdownCoordinator.get()
            )
        """,
        tmp_path,
    ) as snippet:
        assert ["True True", "True None"] * 2 == [snippet.read_line() for _ in range(4)]
        assert (0, "") == snippet.wait()


def test_a_coordinator_that_the_user_has_installed_is_used_and_left(tmp_path: Path) -> None:
    with program(
        """
        coordinator = ShutdownCoordinator.install(signals=[signal.SIGTERM])
        coordinator.register(lambda: say("mine"))
        handler = signal.getsignal(signal.SIGTERM)
        group = LoopGroup([Loop(requests=mailbox)])
        say("up")
        group.run()
        say(
            ShutdownCoordinator.get() is coordinator,
            signal.getsignal(signal.SIGTERM) == handler,
            len(coordinator._callbacks)
        )
        group.run()
        say("again")
        """,
        tmp_path,
    ) as snippet:
        assert "up" == snippet.read_line()
        wait_until(lambda: SIGUSR1 in caught(snippet), "it listens")
        snippet.signal(SIGTERM)
        assert {"mine", "True True 1"} == begun(snippet, 2)
        assert "again" == snippet.read_line()
        assert (0, "") == snippet.wait()


def test_off_the_main_thread_no_handler_is_installed_and_one_warning_is_logged(
    tmp_path: Path,
) -> None:
    with program(
        """
        before = signal.getsignal(signal.SIGTERM)
        group = LoopGroup([Loop(requests=mailbox)])
        thread = threading.Thread(target=group.run)
        thread.start()
        while group.health is None or not group.health.runners[0].has_started:
            pass
        say(signal.getsignal(signal.SIGTERM) == before, ShutdownCoordinator.get())
        group.shutdown()
        thread.join()
        """,
        tmp_path,
    ) as snippet:
        assert "True None" == snippet.read_line()
        code, stderr = snippet.wait()
    assert (0, ["WARNING longwatch.runtime signal_handlers_skipped"]) == (
        code,
        [line.strip() for line in stderr.splitlines()],
    )


# --- the watchdog ---


def test_the_watchdog_ends_a_group_with_a_stuck_handler_which_is_blamed_and_its_neighbours_are_not(
    tmp_path: Path, mailbox: Mailbox[int], crashes: Path
) -> None:
    """On a clock that the program moves: the neighbour beats, the others wait in line or in
    another loop.
    """
    code = """
    from longwatch.testing import FakeClock

    clock, contexts = FakeClock(), {}

    class Watched(MainLoop):
        def handle(self, request, context):
            contexts[request] = context
            threading.Event().wait()

    others = open_mailbox(mailbox.backend.database, "others")
    loop = Watched(requests=mailbox, concurrency=2, clock=clock)
    group = LoopGroup(
        [loop, Watched(requests=others, clock=clock)],
        watchdog_threshold=20, watchdog_interval=5, clock=clock
    )

    def drive():
        prefetch(loop, 1)
        while len(contexts) < 3:
            pass
        clock.advance(15, parked=11)
        contexts[1].beat()
        contexts[100].beat()
        clock.advance(10, parked=11)

    threading.Thread(target=drive, daemon=True).start()
    group.run(install_signals=False, wait_time_seconds=10)
    """
    mailbox.send_many(range(3))
    others: Mailbox[int] = open_mailbox(mailbox.backend.database, "others")  # type: ignore[attr-defined]
    others.send(100)
    with program(code, tmp_path) as snippet:
        code_of_exit, stderr = snippet.wait()
    assert -SIGKILL == code_of_exit
    assert "CRITICAL longwatch.runtime.watchdog Watchdog: loop-0 stalled for" in stderr
    [file] = crashes.iterdir()
    assert "in handle" in file.read_text()
    wait_until(
        lambda: mailbox.backend.sweep() >= 0 and mailbox.stats().leased == 0, "its leases are swept"
    )
    found = {each.id: each.crashes for each in mailbox.backend.peek(limit=3)}
    assert [1, 0, 0] == [found[each] for each in sorted(found)]
    assert [0] == [each.crashes for each in others.backend.peek(limit=1)]
