"""Loops with `async def handle` in real processes: 2,000 at a time, stalls, and drains."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from longwatch.host.crash_file import CRASH_DIR_VARIABLE
from longwatch.mailbox import open_mailbox
from snippet import Snippet, run_snippet

PRELUDE = """
import asyncio, os, signal, sys, threading
from longwatch.mailbox import open_mailbox
from longwatch.runtime import LoopGroup, MainLoop

def threads():
    with open("/proc/self/status") as status:
        [line] = [line for line in status if line.startswith("Threads:")]
    return int(line.split()[1])
"""


@pytest.fixture(autouse=True)
def crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CRASH_DIR_VARIABLE, str(tmp_path / "crashes"))
    return tmp_path / "crashes"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/m.db"


@pytest.fixture
def loop_of_2000(url: str) -> Iterator[Snippet]:
    """A group whose 2,000 handlers wait for the test. It prints its threads when all of them
    run, and in the end how often each message was handled.
    """
    with run_snippet(
        f"""{PRELUDE}
from collections import Counter
handled = Counter()
may_end = asyncio.Event()

class Waiting(MainLoop):
    async def handle(self, request, context):
        handled[request] += 1
        if len(handled) == 2000:
            print(threads(), flush=True)
            asyncio.get_running_loop().add_reader(sys.stdin, may_end.set)
        await may_end.wait()

jobs = open_mailbox("{url}", "jobs")
jobs.send_many(range(2000))
LoopGroup([Waiting(requests=jobs, concurrency=2000)], health_port=None).run()
print(sorted(set(handled.values())), jobs.approximate_count(), flush=True)
"""
    ) as snippet:
        yield snippet


def test_two_thousand_handlers_that_wait_need_few_threads_and_settle_once_at_sigterm(
    loop_of_2000: Snippet, url: str
) -> None:
    """SIGTERM drains: all 2,000 may finish."""
    assert 16 >= int(loop_of_2000.read_line())
    loop_of_2000.signal(signal.SIGTERM)
    loop_of_2000.send_line()
    assert ("[1] 0", (0, "")) == (loop_of_2000.read_line(), loop_of_2000.wait())
    jobs = open_mailbox(url, "jobs")
    assert (0, 0, 0) == (jobs.stats().ready, jobs.stats().leased, jobs.stats().dead)


def test_a_stalled_handler_ends_the_process_and_the_saved_stacks_name_its_coroutine(
    crashes: Path, url: str
) -> None:
    """Nine handlers beat, one does not. No thread waits in it, so the stacks of the threads would
    not show it.
    """
    with run_snippet(
        f"""{PRELUDE}
class Mixed(MainLoop):
    async def handle(self, request, context):
        if request == 7:
            await self.never_answered()
        while True:
            context.beat()
            await asyncio.sleep(0.05)

    async def never_answered(self):
        await asyncio.Event().wait()

jobs = open_mailbox("{url}", "jobs")
print(jobs.send_many(range(10))[7], flush=True)
group = LoopGroup(
    [Mixed(requests=jobs, concurrency=10)], watchdog_threshold=1.0, watchdog_interval=0.2
)
group.run(wait_time_seconds=0.5)
"""
    ) as snippet:
        stalled = snippet.read_line()
        code, _ = snippet.wait()
        assert -signal.SIGKILL == code
    [saved] = [path.read_text() for path in crashes.iterdir()]
    assert f"Task {stalled} (most recent call last):" in saved
    first_task = saved.split("Task ")[1]
    assert "in never_answered" in first_task


def test_the_saved_stacks_name_a_coroutine_that_did_not_stop_in_time(
    crashes: Path, url: str
) -> None:
    with run_snippet(
        f"""{PRELUDE}
class Stubborn(MainLoop):
    async def handle(self, request, context):
        os.kill(os.getpid(), signal.SIGTERM)
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass

jobs = open_mailbox("{url}", "jobs")
print(jobs.send(1), flush=True)
LoopGroup([Stubborn(requests=jobs)], health_port=None, shutdown_timeout=0.5).run()
"""
    ) as snippet:
        message = snippet.read_line()
        assert 1 == snippet.wait()[0]
    [saved] = [path.read_text() for path in crashes.iterdir()]
    assert f"Task {message} (most recent call last):" in saved
