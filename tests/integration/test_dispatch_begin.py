"""Dispatch: runs that are about to begin, with a slot held at a step before the agent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flow_stores import opened_store
from longwatch.core.events.runner import AgentRunStarted, WorkBreakerOpened
from longwatch.store.database import Database
from longwatch.testing import FakeClock
from polling import TIMEOUT, eventually
from runner_rig import POLICY, DispatchRig, dispatching


class Gate:
    """Holds the first call of a method of `owner` until it is opened; later calls pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, method: str) -> None:
        self._reached, self._may_pass = threading.Event(), threading.Event()
        self._call = getattr(owner, method)
        monkeypatch.setattr(owner, method, self._hold)

    def wait_reached(self) -> None:
        assert self._reached.wait(TIMEOUT)

    def open(self) -> None:
        self._may_pass.set()

    def _hold(self, *args: Any) -> Any:
        if not self._reached.is_set():
            self._reached.set()
            assert self._may_pass.wait(TIMEOUT)
        return self._call(*args)


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    with opened_store("sqlite", tmp_path) as opened:
        yield opened


def test_a_kill_reaches_a_run_that_is_about_to_begin(
    sqlite: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in flight before it is written. Its agent is never started."""
    with dispatching(sqlite, tmp_path) as rig:
        gate = Gate(monkeypatch, rig.dispatcher.store, "begin")
        event = rig.queue.put("deaf(); rest()")
        gate.wait_reached()
        assert 1 == len(rig.dispatcher.in_flight())
        _kill_during_stop(rig, gate)
        [started] = rig.observer.of(AgentRunStarted)
        assert started.pid is None
    assert [("cancelled", "shutdown")] == rig.queue.causes(event)
    assert (None, "") == rig.queue.outcome(event)


def test_no_run_begins_after_a_kill(
    sqlite: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event that was claimed before the kill goes back to the queue, without a run."""
    with dispatching(sqlite, tmp_path) as rig:
        gate = Gate(monkeypatch, rig.dispatcher.store, "find_event")
        event = rig.queue.put("deaf(); rest()")
        gate.wait_reached()
        _kill_during_stop(rig, gate)
    assert [] == rig.queue.of(event)
    [record] = rig.queue.backend("alpha").peek(limit=10)
    assert (event, 0, 0) == (record.id, record.failures, record.crashes)


def _kill_during_stop(rig: DispatchRig, gate: Gate) -> None:
    """Kill while a slot is held at the gate; then open it, and wait for the stop."""
    stopping = threading.Thread(target=rig.dispatcher.stop, kwargs={"timeout": 600.0}, daemon=True)
    stopping.start()
    assert eventually(lambda: rig.dispatcher.engine.draining)
    rig.dispatcher.kill()
    gate.open()
    stopping.join(TIMEOUT)
    assert not stopping.is_alive()


def test_a_run_that_is_about_to_begin_when_the_breaker_opens_is_in_flight(
    sqlite: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The breaker has let it start, so it runs beside the trial."""
    policy = replace(POLICY, work_breaker_failures=1, work_breaker_cooldown=300.0)
    sources = ("alpha", "beta")
    with dispatching(
        sqlite, tmp_path, policy=policy, breaker_clock=FakeClock(), sources=sources
    ) as rig:
        gate = Gate(monkeypatch, rig.dispatcher.store, "begin")
        slow = rig.queue.put("pass")
        gate.wait_reached()
        rig.queue.put("sys.exit(1)", source="beta")
        rig.observer.wait_for(WorkBreakerOpened)
        assert ["alpha"] == [run.cluster for run in rig.dispatcher.in_flight()]
        gate.open()
        rig.queue.wait_outcome(slow, "run")
