from __future__ import annotations

import asyncio
import http.client
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from longwatch.core.clock import SystemClock
from longwatch.core.fake_clock import FakeClock
from longwatch.host.health_server import HealthServer
from longwatch.host.loop import EventLoopThread
from longwatch.runner.health import (
    MAX_BEAT_AGE,
    LoopBeat,
    ProcessLimits,
    QueueDepths,
    RunnerHealth,
)
from polling import eventually

TIMEOUT = 30.0


@dataclass
class RunnerState:
    """What the checks ask of a runner; healthy until a test changes it."""

    connections: int = 1
    open: bool = False
    full: list[str] = field(default_factory=list)
    draining: bool = False
    started: bool = True
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.beat = LoopBeat(self.clock)

    def health(self, **options: Any) -> RunnerHealth:
        return RunnerHealth(
            beat=self.beat,
            active_connections=lambda: self.connections,
            is_breaker_open=lambda: self.open,
            full_queues=lambda: self.full,
            is_draining=lambda: self.draining,
            has_started=lambda: self.started,
            **options,
        )


@contextmanager
def serving(state: RunnerState, **options: Any) -> Iterator[HealthServer]:
    checks = state.health(**options).checks()
    with HealthServer(host="127.0.0.1", port=0, checks=checks) as server:
        yield server


def get(server: HealthServer, path: str) -> tuple[int, str]:
    assert server.address is not None
    connection = http.client.HTTPConnection(*server.address, timeout=TIMEOUT)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode().removesuffix("\n")
    finally:
        connection.close()


def test_a_healthy_runner_is_live_ready_and_started() -> None:
    with serving(RunnerState()) as server:
        assert [(200, "OK"), (200, "Ready"), (200, "Started")] == [
            get(server, path) for path in ("/healthz", "/readyz", "/startupz")
        ]


READINESS = [
    (RunnerState(connections=0), "sse_connections: no active SSE connections"),
    (RunnerState(open=True), "circuit_breaker: circuit breaker is open"),
    (RunnerState(full=["prod"]), "queue: prod is full"),
    (RunnerState(full=["prod", "dev"]), "queue: dev is full, prod is full"),
    (RunnerState(draining=True), "draining"),
    (
        RunnerState(connections=0, open=True, full=["prod"], draining=True),
        (
            "sse_connections: no active SSE connections; circuit_breaker: circuit breaker is open; "
            "queue: prod is full; draining"
        ),
    ),
]


@pytest.mark.parametrize(("state", "body"), READINESS, ids=[body for _, body in READINESS])
def test_readiness_lists_each_failing_check_and_liveness_stays(
    state: RunnerState, body: str
) -> None:
    with serving(state) as server:
        assert (503, body) == get(server, "/readyz")
        assert 200 == get(server, "/healthz")[0]


def test_an_open_breaker_leaves_the_runner_ready_where_it_is_not_to_count() -> None:
    with serving(RunnerState(open=True), breaker_affects_readiness=False) as server:
        assert (200, "Ready") == get(server, "/readyz")


def test_a_runner_that_drains_is_live_and_says_that_it_shuts_down() -> None:
    """A 503 here would make Kubernetes kill a pod that finishes its work."""
    with serving(RunnerState(draining=True)) as server:
        assert (200, "Shutting down") == get(server, "/healthz")
        assert (200, '{"status": "healthy"}') == get(server, "/health/live")


def test_verbose_readiness_shows_the_words_of_every_check() -> None:
    with serving(RunnerState(full=["prod"])) as server:
        assert get(server, "/readyz?verbose")[1].splitlines() == [
            "[+] sse_connections: ok",
            "[+] circuit_breaker: ok",
            "[-] queue: prod is full",
            "[+] draining: ok",
            "failed",
        ]


def test_a_runner_that_has_not_begun_is_not_started() -> None:
    with serving(RunnerState(started=False)) as server:
        assert (503, "started: not_started") == get(server, "/startupz")


# --- liveness ---


@pytest.mark.parametrize("draining", [False, True])
def test_a_loop_that_does_not_turn_is_not_live(
    draining: bool,  # noqa: FBT001
) -> None:
    state = RunnerState(draining=draining)
    with serving(state) as server:
        state.clock.advance(MAX_BEAT_AGE)
        assert 200 == get(server, "/healthz")[0]
        state.clock.advance(0.1)
        assert (503, "loop: stale") == get(server, "/healthz")
        state.beat.heartbeat.beat()
        assert 200 == get(server, "/healthz")[0]


def test_a_real_loop_beats_and_a_blocked_one_does_not() -> None:
    beat = LoopBeat(SystemClock())
    loop = EventLoopThread(name="beating")
    may_end = threading.Event()
    try:
        loop.spawn(beat.run())
        assert eventually(lambda: beat.tasks >= 1)
        loop.loop().call_soon_threadsafe(may_end.wait)
        assert eventually(lambda: beat.heartbeat.elapsed() > 2.5)
        may_end.set()
        assert eventually(lambda: beat.heartbeat.elapsed() < 1.0)
    finally:
        may_end.set()
        loop.stop()


def test_tasks_above_their_limit_are_not_live() -> None:
    async def count() -> tuple[int, str]:
        state = RunnerState()
        others = [asyncio.create_task(asyncio.Event().wait()) for _ in range(20)]
        beating = asyncio.create_task(state.beat.run())
        await asyncio.sleep(0)
        with serving(state, limits=ProcessLimits(tasks=10)) as server:
            answer = await asyncio.to_thread(get, server, "/healthz")
        for task in (beating, *others):
            task.cancel()
        await asyncio.gather(beating, *others, return_exceptions=True)
        return answer

    status, body = asyncio.run(count())
    assert (503, "tasks: 22 of at most 10") == (status, body)


def test_threads_above_their_limit_are_not_live() -> None:
    with serving(RunnerState(), limits=ProcessLimits(threads=1)) as server:
        status, body = get(server, "/healthz")
    assert 503 == status
    assert body.startswith("threads: ")
    assert body.endswith(" of at most 1")


def test_memory_above_its_limit_is_not_live() -> None:
    with serving(RunnerState(), limits=ProcessLimits(rss_mb=1)) as server:
        status, body = get(server, "/healthz")
    assert 503 == status
    assert re.fullmatch(r"memory: \d+ MiB of at most 1 MiB", body)


def test_limits_that_are_not_reached_fail_nothing() -> None:
    limits = ProcessLimits(threads=10_000, tasks=10_000, rss_mb=1_000_000)
    with serving(RunnerState(), limits=limits) as server:
        assert (200, "OK") == get(server, "/healthz")


# --- depths ---


def test_queues_are_full_by_what_was_read_last() -> None:
    readings = iter([{"a": 9, "b": 10}, {"a": 11}])
    depths = QueueDepths(lambda: next(readings), max_depth=10)
    assert [] == depths.full()
    assert {"a": 9, "b": 10} == depths.refresh()
    assert ["b"] == depths.full()
    depths.refresh()
    assert ["a"] == depths.full()


def test_the_latest_depths_are_unknown_while_the_store_does_not_answer() -> None:
    readings: list[dict[str, int]] = []
    depths = QueueDepths(lambda: readings[0], max_depth=10)
    for known in ([], [{"a": 9}], [], [{"a": 2}]):
        readings[:] = known
        if known:
            depths.refresh()
            assert known == [depths.latest()]
            continue
        with pytest.raises(IndexError):
            depths.refresh()
        with pytest.raises(LookupError, match="has not answered"):
            depths.latest()
