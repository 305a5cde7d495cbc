"""The runner as one object: it obeys the service contract, and two of them share a store."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from event_server import EventServer, serving_events
from flow_stores import KINDS, opened_database, store_url
from longwatch.core.clock import Wakeup
from longwatch.core.events.base import Events
from longwatch.core.events.runner import (
    AgentRunEnded,
    AgentRunStarted,
    EventSourceStandingBy,
    RunnerStopped,
    SseConnectionClosed,
    SseConnectionEstablished,
)
from longwatch.core.health import Aspect, Health
from longwatch.runner import AgentSpec, Runner, RunnerPolicy, SourceSpec
from longwatch.store.database import Database
from longwatch.testing import RecordingObserver, check_service
from polling import eventually
from runner_rig import open_readers

WRITES = "from pathlib import Path; Path('output/report').write_text('done')"
HANGS = "import signal; signal.alarm(120); signal.pause()"


@pytest.fixture
def stream() -> Iterator[EventServer]:
    with serving_events() as server:
        yield server


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with store_url(request.param, tmp_path) as found:
        yield found


class RunnerRig:
    """A runner over a store, and what it has emitted."""

    def __init__(
        self, database: Database, urls: dict[str, str], folder: Path, script: str = WRITES
    ) -> None:
        self.seen = RecordingObserver()
        self.runner = Runner(
            database,
            [SourceSpec(name=name, url=url) for name, url in urls.items()],
            AgentSpec(
                command=(sys.executable, "-S", "-c", script),
                workspace=folder / "runs",
                stop_grace=0.5,
            ),
            RunnerPolicy(reconnect_initial_delay=0.05),
            events=Events(self.seen),
            totals=lambda: {"up": 1.0},
        )

    def wait_for(self, kind: type, count: int = 1) -> None:
        assert eventually(lambda: len(self.seen.of(kind)) >= count), self.seen.events


@contextmanager
def opened_rig(
    url: str, stream: EventServer, folder: Path, script: str = WRITES
) -> Iterator[RunnerRig]:
    with opened_database(url) as database:
        rig = RunnerRig(database, {"prod": stream.url}, folder, script)
        try:
            yield rig
        finally:
            rig.runner.stop()


def test_it_obeys_the_service_contract(tmp_path: Path) -> None:
    """Nothing answers at its source: a server in this process would have descriptors of its own."""
    with opened_database(f"sqlite:///{tmp_path}/runner.db") as database:

        def make() -> Runner:
            return RunnerRig(database, {"prod": "http://127.0.0.1:1/"}, tmp_path).runner

        database.listen("none", Wakeup())  # the threads and files of the store are not the runner's
        open_readers(database, 12)
        with make():
            pass
        check_service(make)


def test_an_event_runs_once_and_the_stop_says_what_it_did(
    url: str, stream: EventServer, tmp_path: Path
) -> None:
    with opened_rig(url, stream, tmp_path) as rig, rig.runner:
        stream.send()
        rig.wait_for(AgentRunEnded)
        rig.runner.depths.refresh()
        assert Health(rig.runner.health.checks(), rig.runner._clock).report(Aspect.READY).ok
        assert rig.runner.shut_down(signal="SIGTERM")

        [ended] = rig.seen.of(AgentRunEnded)
        [stopped] = rig.seen.of(RunnerStopped)
        assert "success" == ended.status
        assert ({"up": 1.0}, 0) == (stopped.metrics, stopped.interrupted)
        assert len(rig.seen.of(SseConnectionEstablished)) == len(rig.seen.of(SseConnectionClosed))


def test_a_second_runner_stands_by_and_takes_over(
    url: str, stream: EventServer, tmp_path: Path
) -> None:
    """Each event runs once: the second runner reads on where the first one stopped."""
    with opened_rig(url, stream, tmp_path) as first, opened_rig(url, stream, tmp_path) as second:
        first.runner.start()
        first.wait_for(SseConnectionEstablished)
        second.runner.start()
        second.wait_for(EventSourceStandingBy)
        stream.send(resource="a")
        assert eventually(
            lambda: len(first.seen.of(AgentRunEnded)) + len(second.seen.of(AgentRunEnded)) == 1
        )
        assert [] == second.seen.of(SseConnectionEstablished)

        first.runner.stop()
        second.wait_for(SseConnectionEstablished)
        stream.send(resource="b")
        assert eventually(
            lambda: len(first.seen.of(AgentRunEnded)) + len(second.seen.of(AgentRunEnded)) == 2
        )
        assert "1" == stream.requests[-1]["Last-Event-ID"]


def test_a_kill_ends_a_stop_that_waits(url: str, stream: EventServer, tmp_path: Path) -> None:
    with opened_rig(url, stream, tmp_path, HANGS) as rig:
        rig.runner.start()
        stream.send()
        rig.wait_for(AgentRunStarted)
        assert not rig.runner.stop(timeout=0.0) or rig.seen.of(RunnerStopped)
        rig.runner.kill()
        assert rig.runner.stop()

        assert ["cancelled"] == [ended.status for ended in rig.seen.of(AgentRunEnded)]
        assert [] == rig.runner.dispatcher.in_flight()
