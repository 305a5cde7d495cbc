"""The trials: each sets up real parts, measures one thing and takes all down."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from longwatch.core.clock import SystemClock
from longwatch.core.events.base import Event, Events
from longwatch.core.events.runner import (
    AgentRunStarted,
    StreamEventsTaken,
)
from longwatch.runner import AgentSpec, RunnerPolicy, SourceSpec
from longwatch.runner.connection import SourceConnection
from longwatch.runner.intake import Intake
from longwatch.runner.runner import Runner
from longwatch.runner.seams import StreamItem
from longwatch.store.sqlite.database import SqliteDatabase
from runner_bench.stream_server import serving

POLICY = RunnerPolicy(source_queue_size=10**9, max_queue_age=None, read_timeout=120.0)
TIMEOUT = 600.0


@dataclass
class Cost:
    """What so many events took."""

    events: int
    seconds: float
    cpu_seconds: float


class Counter:
    """An observer that counts the events that were queued."""

    def __init__(self) -> None:
        self.queued = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, StreamEventsTaken):
            self.queued += event.queued


def receive(place: Path, *, sources: int, events: int) -> Cost:
    """Received over loopback, parsed, filtered and queued in SQLite with FULL durability."""
    each = events // sources
    with serving(each) as url, SqliteDatabase(place / f"receive-{sources}.db") as database:
        return asyncio.run(_receive(database, url, sources, each))


async def _receive(database: SqliteDatabase, url: str, sources: int, each: int) -> Cost:
    counter, clock = Counter(), SystemClock()
    bus = Events()
    bus.subscribe(counter)
    specs = [SourceSpec(name=f"s{number}", url=url) for number in range(sources)]
    intake = Intake(database, specs, POLICY, clock=clock, events=bus)
    await asyncio.to_thread(intake.leases.start)
    began, cpu = time.perf_counter(), time.process_time()
    tasks = [
        asyncio.create_task(SourceConnection(spec, POLICY, intake, clock=clock, events=bus).run())
        for spec in specs
    ]
    async with asyncio.timeout(TIMEOUT):
        while counter.queued < sources * each:  # noqa: ASYNC110 - the observer counts
            await asyncio.sleep(0.005)
    cost = Cost(sources * each, time.perf_counter() - began, time.process_time() - cpu)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.to_thread(intake.leases.stop)
    intake.close()
    return cost


class StartTimes:
    """An observer of when the last event was queued and its agent was started."""

    def __init__(self) -> None:
        self.queued = 0.0
        self.started = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, StreamEventsTaken) and event.queued:
            self.queued = time.perf_counter()
        elif isinstance(event, AgentRunStarted):
            self.started = time.perf_counter()


@contextmanager
def running(place: Path, name: str, specs: list[SourceSpec], bus: Events) -> Iterator[Runner]:
    """A runner whose agent does nothing."""
    agent = AgentSpec(command=("/bin/true",), workspace=place / f"{name}-runs")
    with SqliteDatabase(place / f"{name}.db") as database:
        runner = Runner(database, specs, agent, POLICY, events=bus)
        runner.start()
        try:
            yield runner
        finally:
            runner.stop(timeout=10)


def start_latency(place: Path, samples: int) -> tuple[float, float]:
    """Milliseconds from an event that is queued to the process of its agent: p50 and p95."""
    times, bus = StartTimes(), Events()
    bus.subscribe(times)
    found = []
    with serving(0) as url:
        spec = SourceSpec(name="one", url=url)
        with running(place, "latency", [spec], bus) as runner:
            _wait_until_connected(runner, 1)
            for number in range(samples + 5):
                times.started = 0.0
                data = f'{{"severity": "error", "resource": "r", "faultId": "f{number}"}}'
                runner.intake.take_now("one", [StreamItem(data, str(number))], cursor=str(number))
                while not times.started:
                    time.sleep(0.0005)
                found.append((times.started - times.queued) * 1000)
                time.sleep(0.05)
    return median(found[5:]), quantiles(found[5:], n=20)[-1]


def idle_share(place: Path, *, sources: int, seconds: float) -> float:
    """The share of a core that a runner with so many quiet sources takes, in percent."""
    with serving(0) as url:
        specs = [SourceSpec(name=f"s{number}", url=url) for number in range(sources)]
        with running(place, f"idle-{sources}", specs, Events()) as runner:
            _wait_until_connected(runner, sources)
            time.sleep(2)
            cpu, began = time.process_time(), time.perf_counter()
            time.sleep(seconds)
            return (time.process_time() - cpu) / (time.perf_counter() - began) * 100


def _wait_until_connected(runner: Runner, sources: int) -> None:
    end = time.monotonic() + TIMEOUT
    while runner.connections.active() < sources:
        if time.monotonic() > end:
            raise TimeoutError("not all sources are connected")
        time.sleep(0.05)
