from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flow_stores import KINDS, opened_store
from longwatch.core.events.engine import MessageDeadLettered
from longwatch.core.events.host import GuardianLost
from longwatch.core.events.runner import (
    AgentRunEnded,
    AgentRunStarted,
    EventSourceDegraded,
    EventSourceRecovered,
    QueuedEventExpired,
    WorkBreakerClosed,
    WorkBreakerOpened,
    WorkBreakerTrialStarted,
)
from longwatch.runner.run_store import RunStore
from longwatch.store.database import Database
from longwatch.testing import FakeClock, check_service
from polling import eventually
from runner_rig import POLICY, Queue, dispatching, open_readers

INNOCENT = """
Path({started!r}).touch()
event['longwatch']['attempt'] == 1 and rest()
"""
GUILTY = """
signal.alarm(60)
while not all(Path(path).exists() for path in {started!r}):
    time.sleep(0.01)
os.kill(os.getppid(), signal.SIGKILL)
rest()
"""
"""It kills the guardian once the innocent agents run."""


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with opened_store(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    with opened_store("sqlite", tmp_path) as opened:
        yield opened


def test_a_failed_run_is_retried_until_its_event_is_dead_lettered(
    database: Database, tmp_path: Path
) -> None:
    """Each attempt is a run of its own; the dead letter has the error of the last."""
    policy = replace(POLICY, max_attempts=3)
    with dispatching(database, tmp_path, policy=policy) as rig:
        event = rig.queue.put("say('no', 2); sys.exit(7)")
        rig.queue.wait_outcome(event, "dead-lettered", "failed")
    runs = rig.queue.of(event)
    assert [(1, "exit 7"), (2, "exit 7"), (3, "exit 7")] == [
        (run.attempt, run.cause) for run in runs
    ]
    [emitted] = rig.observer.of(MessageDeadLettered)
    assert ("runner/alpha", event) == (emitted.mailbox, emitted.message_id)
    [letter] = rig.queue.dead_letters()
    assert (event, "failed", 3) == (letter.id, letter.reason, letter.failures)
    assert letter.error == f"exit 7: {runs[-1].error}"
    assert 0 == rig.queue.stats().leased + rig.queue.stats().delayed


def test_a_retry_that_succeeds_is_the_end(database: Database, tmp_path: Path) -> None:
    """The outcome of the event is `run`."""
    with dispatching(database, tmp_path) as rig:
        event = rig.queue.put("sys.exit(event['longwatch']['attempt'] == 1)")
        rig.queue.wait_outcome(event, "run")
    assert [("failure", "exit 1"), ("success", "exit 0")] == rig.queue.causes(event)
    assert [] == rig.queue.dead_letters()


def test_a_cancelled_run_is_not_retried(database: Database, tmp_path: Path) -> None:
    """Cancelled by the process that runs it: the event is dead-lettered as `cancelled`."""
    with dispatching(database, tmp_path) as rig:
        event = rig.queue.put("rest()")
        [run_id] = rig.wait_in_flight()
        assert rig.dispatcher.cancel(run_id)
        rig.queue.wait_outcome(event, "dead-lettered", "cancelled")
        assert not rig.dispatcher.cancel(run_id)
        assert not rig.dispatcher.cancel("nosuchrun")
    assert [("cancelled", "cancelled")] == rig.queue.causes(event)
    [letter] = rig.queue.dead_letters()
    assert ("cancelled", 0) == (letter.reason, letter.failures)


def test_another_process_cancels_a_run(database: Database, tmp_path: Path) -> None:
    """A cancel request in the store reaches the runner by a notification."""
    with dispatching(database, tmp_path) as rig:
        event = rig.queue.put("rest()")
        [run_id] = rig.wait_in_flight()
        assert RunStore(database).request_cancel(run_id)
        rig.queue.wait_outcome(event, "dead-lettered", "cancelled")
    assert [("cancelled", "cancelled")] == rig.queue.causes(event)


def test_a_drain_ends_within_its_budget_and_events_go_back(
    database: Database, tmp_path: Path
) -> None:
    """Agents that ignore SIGTERM are killed before the deadline; no attempt is spent, and the next
    runner runs the events.
    """
    sources = ("alpha", "beta")
    with dispatching(database, tmp_path, sources=sources) as rig:
        events = [rig.queue.put("deaf(); rest()", source=name) for name in sources]
        rig.wait_in_flight(2)
        assert rig.dispatcher.stop(timeout=9.0)
        assert [] == rig.processes()
        assert 2 == rig.dispatcher.interrupted
    for event, source in zip(events, sources, strict=True):
        assert [("cancelled", "shutdown")] == rig.queue.causes(event)
        assert (None, "") == rig.queue.outcome(event)
        [record] = rig.queue.backend(source).peek(limit=10)
        assert (event, 0, 0) == (record.id, record.failures, record.crashes)


def test_a_stop_can_be_hastened(sqlite: Database, tmp_path: Path) -> None:
    """A kill during a stop ends agents that ignore SIGTERM at once."""
    with dispatching(sqlite, tmp_path) as rig:
        event = rig.queue.put("deaf(); rest()")
        rig.wait_in_flight()
        stopping = threading.Thread(target=rig.dispatcher.stop, kwargs={"timeout": 600.0})
        stopping.start()
        assert eventually(lambda: rig.dispatcher.engine.draining)
        rig.dispatcher.kill()
        stopping.join()
    assert [("cancelled", "shutdown")] == rig.queue.causes(event)
    assert (None, "") == rig.queue.outcome(event)


def test_runs_that_end_during_a_drain_are_finished(database: Database, tmp_path: Path) -> None:
    """A drain takes no more events, and waits for the runs."""
    with dispatching(database, tmp_path) as rig:
        first = rig.queue.put("Path('go').exists() or time.sleep(1.0)")
        second = rig.queue.put("pass")
        rig.wait_in_flight()
        assert rig.dispatcher.stop(timeout=30.0)
    assert ("run", "") == rig.queue.outcome(first)
    assert [] == rig.queue.of(second)
    assert 0 == rig.dispatcher.interrupted


def test_an_event_that_waited_too_long_expires_at_its_start(
    database: Database, tmp_path: Path
) -> None:
    """It has no run, its outcome is `expired`, and its message is gone."""
    policy = replace(POLICY, max_queue_age=600.0)
    queue = Queue(database)
    old, young = queue.put("pass", age=601.0), queue.put("pass", age=500.0)
    with dispatching(database, tmp_path, policy=policy) as rig:
        rig.queue.wait_outcome(old, "expired")
        rig.queue.wait_outcome(young, "run")
    assert [] == rig.queue.of(old)
    [expired] = rig.observer.of(QueuedEventExpired)
    assert ("alpha", old, 1) == (expired.cluster, expired.event_id, expired.count)
    assert expired.age > 600


def test_a_retry_does_not_expire(sqlite: Database, tmp_path: Path) -> None:
    """Age is checked before the first run only."""
    policy = replace(POLICY, max_queue_age=600.0)
    with dispatching(sqlite, tmp_path, policy=policy) as rig:
        event = rig.queue.put("sys.exit(event['longwatch']['attempt'] == 1)", age=599.0)
        sqlite.jump.wall = 0.0
        rig.observer.wait_for(AgentRunStarted)
        sqlite.jump.wall = 100.0
        rig.queue.wait_outcome(event, "run")
    assert 2 == len(rig.queue.of(event))


def test_an_event_that_is_queued_again_does_not_expire_at_once(
    sqlite: Database, tmp_path: Path
) -> None:
    """Its age counts from the moment at which it was queued last."""
    policy = replace(POLICY, max_queue_age=600.0)
    queue = Queue(sqlite)
    event = queue.put("pass")
    sqlite.write(
        lambda tx: tx.execute("UPDATE longwatch_runner_events SET received_at = received_at - 9e4")
    )
    with dispatching(sqlite, tmp_path, policy=policy) as rig:
        rig.queue.wait_outcome(event, "run")


def test_a_message_without_its_event_is_dead_lettered(sqlite: Database, tmp_path: Path) -> None:
    """An event row that is gone cannot be run, and does not stop the others."""
    queue = Queue(sqlite)
    lost, kept = queue.put("pass"), queue.put("pass")
    sqlite.write(
        lambda tx: tx.execute("DELETE FROM longwatch_runner_events WHERE id = :id", {"id": lost})
    )
    with dispatching(sqlite, tmp_path) as rig:
        rig.queue.wait_outcome(kept, "run")
        assert eventually(lambda: [lost] == [letter.id for letter in queue.dead_letters()])
    assert "permanent" == queue.dead_letters()[0].reason


def test_failing_runs_open_the_breaker(sqlite: Database, tmp_path: Path) -> None:
    """No run starts until the cool-down is over; then one trial, and after its success all."""
    clock = FakeClock()
    policy = replace(POLICY, work_breaker_failures=3, work_breaker_cooldown=300.0, max_attempts=100)
    go = tmp_path / "go"
    sources = ("alpha", "beta", "gamma")
    do = f"sys.exit(not Path({str(go)!r}).exists())"
    with dispatching(sqlite, tmp_path, policy=policy, breaker_clock=clock, sources=sources) as rig:
        events = [rig.queue.put(do, source=name) for name in sources for _ in range(2)]
        rig.observer.wait_for(WorkBreakerOpened)
        assert eventually(lambda: [] == rig.dispatcher.in_flight())
        runs = len(rig.observer.of(AgentRunStarted))
        assert runs <= 3 + len(sources) - 1
        clock.advance(300.0)
        assert eventually(lambda: 2 == len(rig.observer.of(WorkBreakerOpened)))
        assert runs + 1 == len(rig.observer.of(AgentRunStarted)), "the trial"
        go.touch()
        clock.advance(300.0)
        rig.observer.wait_for(WorkBreakerClosed)
        assert 2 == len(rig.observer.of(WorkBreakerTrialStarted))
        for event in events:
            rig.queue.wait_outcome(event, "run")


def test_an_outage_of_the_agent_is_announced_once(sqlite: Database, tmp_path: Path) -> None:
    """One alert at the N-th failure in a row, one all-clear at the next success."""
    policy = replace(POLICY, alert_after_failures=3, work_breaker_failures=100, max_attempts=5)
    with dispatching(sqlite, tmp_path, policy=policy) as rig:
        event = rig.queue.put("sys.exit(event['longwatch']['attempt'] < 5)")
        rig.queue.wait_outcome(event, "run")
    [degraded] = rig.observer.of(EventSourceDegraded)
    assert ("", 3) == (degraded.cluster, degraded.failures)
    assert degraded.error.startswith("exit 1: ")
    [recovered] = rig.observer.of(EventSourceRecovered)
    assert "" == recovered.cluster


def test_a_flooding_source_does_not_delay_the_others(database: Database, tmp_path: Path) -> None:
    """Eight sources, one with 200 events: the events of the others start in the order in which a
    fair queue would start them, whatever the flood.
    """
    names = tuple(f"source{number}" for number in range(8))
    policy = replace(POLICY, max_concurrent_agents=4)
    queue = Queue(database)
    for _ in range(200):
        queue.put("pass", source="source0")
    others = [queue.put("pass", source=name) for name in names[1:] for _ in range(2)]
    with dispatching(
        database, tmp_path, policy=policy, sources=names, agent={"command": ("/bin/true",)}
    ) as rig:
        for event in others:
            queue.wait_outcome(event, "run")
        started = [event.cluster for event in rig.observer.of(AgentRunStarted)]
    before = started[: 1 + max(n for n, name in enumerate(started) if name != "source0")]
    assert before.count("source0") <= 6, before


def test_a_source_runs_one_event_at_a_time(database: Database, tmp_path: Path) -> None:
    """The cap of a source holds, and so does that of all."""
    policy = replace(POLICY, max_concurrent_agents=2, max_concurrent_per_source=1)
    names = ("alpha", "beta", "gamma")
    with dispatching(database, tmp_path, policy=policy, sources=names) as rig:
        events = [rig.queue.put("time.sleep(0.05)", source=name) for name in names for _ in "abc"]
        for event in events:
            rig.queue.wait_outcome(event, "run")
    runs = [(run.started_at, run.ended_at, run.source) for run in rig.queue.runs.runs(limit=100)]
    for began, _, source in runs:
        at_once = [each for each in runs if each[0] <= began < (each[1] or 0.0)]
        assert len(at_once) <= 2
        assert 1 == sum(each[2] == source for each in at_once)


def test_oldest_events_run_first(sqlite: Database, tmp_path: Path) -> None:
    """In the order in which they were queued."""
    queue = Queue(sqlite)
    events = [queue.put("pass") for _ in range(5)]
    with dispatching(sqlite, tmp_path, agent={"command": ("/bin/true",)}) as rig:
        for event in events:
            queue.wait_outcome(event, "run")
    assert events == [event.event_id for event in rig.observer.of(AgentRunStarted)]


def test_a_lost_guardian_costs_no_attempt(sqlite: Database, tmp_path: Path) -> None:
    """Its agents are killed, their events go back, and the next run has another guardian."""
    with dispatching(sqlite, tmp_path) as rig:
        event = rig.queue.put("event['longwatch']['attempt'] == 1 and rest()")
        rig.wait_in_flight()
        assert rig.guardian.pid is not None
        os.kill(rig.guardian.pid, signal.SIGKILL)
        rig.observer.wait_for(GuardianLost)
        rig.queue.wait_outcome(event, "run")
    assert [("cancelled", "lease_lost"), ("success", "exit 0")] == rig.queue.causes(event)


def test_an_agent_that_kills_the_guardian_is_poison(database: Database, tmp_path: Path) -> None:
    """Each loss of the guardian counts as a crash of all events that ran. The guilty one is given
    up; the innocent ones run alone in the end, and succeed.
    """
    names = ("alpha", "beta", "gamma")
    started = [tmp_path / name for name in names[1:]]
    with dispatching(database, tmp_path, sources=names) as rig:
        innocent = [
            rig.queue.put(INNOCENT.format(started=str(path)), source=path.name) for path in started
        ]
        guilty = rig.queue.put(GUILTY.format(started=[str(path) for path in started]))
        rig.queue.wait_outcome(guilty, "dead-lettered", "poison")
        for event in innocent:
            rig.queue.wait_outcome(event, "run")
    assert [("cancelled", "lease_lost")] * 3 == rig.queue.causes(guilty)
    [letter] = rig.queue.dead_letters()
    assert (guilty, 3, 0) == (letter.id, letter.crashes, letter.failures)
    for event in innocent:
        assert ("cancelled", "lease_lost") == rig.queue.causes(event)[0]


def test_a_guardian_that_does_not_start_blames_no_event(
    sqlite: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events go back until there is one; their budget of crashes is not spent."""
    with dispatching(sqlite, tmp_path) as rig:
        with monkeypatch.context() as patched:
            patched.setattr(rig.guardian, "start", _refuse)
            event = rig.queue.put("event['longwatch']['attempt'] == 1 and rest()")
            rig.wait_in_flight()
            assert rig.guardian.pid is not None
            os.kill(rig.guardian.pid, signal.SIGKILL)
            assert eventually(lambda: len(rig.queue.of(event)) > 5)
        rig.queue.wait_outcome(event, "run")


def test_a_cancelled_run_stays_cancelled_without_a_guardian(
    sqlite: Database, tmp_path: Path
) -> None:
    """A guardian that dies while a run is being cancelled does not bring its event back."""
    with dispatching(sqlite, tmp_path) as rig:
        event = rig.queue.put("deaf(); say('ready'); rest()")
        [run_id] = rig.wait_in_flight()
        log = tmp_path / "runs" / run_id / "stdout.log"
        assert eventually(lambda: log.exists() and b"ready" in log.read_bytes())
        assert rig.dispatcher.cancel(run_id)
        assert rig.guardian.pid is not None
        os.kill(rig.guardian.pid, signal.SIGKILL)
        rig.queue.wait_outcome(event, "dead-lettered", "cancelled")
    assert [("cancelled", "cancelled")] == rig.queue.causes(event)


def _refuse() -> None:
    raise OSError("no process for you")


def test_a_lost_lease_ends_the_process(sqlite: Database, tmp_path: Path) -> None:
    """Another runner has the event now: the agent is ended and its run is `lease_lost`."""
    with dispatching(sqlite, tmp_path) as rig:
        event = rig.queue.put("event['longwatch']['attempt'] == 1 and rest()")
        [run_id] = rig.wait_in_flight()
        sqlite.write(
            lambda tx: tx.execute(
                "UPDATE longwatch_messages SET lease_state = 0, owner = NULL, lease_until = NULL"
            )
        )
        rig.dispatcher.engine.check_revoked()
        rig.observer.wait_for(
            lambda each: isinstance(each, AgentRunEnded) and each.run_id == run_id
        )
        rig.queue.wait_outcome(event, "run")
    assert [("cancelled", "lease_lost"), ("success", "exit 0")] == rig.queue.causes(event)


def test_the_sweep_removes_old_runs(sqlite: Database, tmp_path: Path) -> None:
    """Records and workspaces older than the retention go."""
    with dispatching(sqlite, tmp_path) as rig:
        event = rig.queue.put("pass")
        rig.queue.wait_outcome(event, "run")
        [run] = rig.queue.of(event)
        rig.dispatcher.sweep()
        assert Path(run.workspace).exists()
        sqlite.jump.wall = POLICY.run_retention + 60.0
        rig.dispatcher.sweep()
    assert [] == rig.queue.of(event)
    assert not Path(run.workspace).exists()


def test_a_dispatcher_keeps_the_contract_of_services(sqlite: Database, tmp_path: Path) -> None:
    """It can be started and stopped from any thread, again and again."""
    with dispatching(sqlite, tmp_path) as rig:
        assert rig.dispatcher.stop(timeout=20.0)
        open_readers(sqlite, 12)
        check_service(lambda: rig.dispatcher)


def test_a_dispatcher_starts_again(sqlite: Database, tmp_path: Path) -> None:
    """After a stop it can be started, and runs what was queued meanwhile."""
    with dispatching(sqlite, tmp_path) as rig:
        assert rig.dispatcher.stop(timeout=20.0)
        event = rig.queue.put("pass")
        rig.dispatcher.start()
        rig.queue.wait_outcome(event, "run")


def test_slots_that_wait_for_agents_beat(sqlite: Database, tmp_path: Path) -> None:
    """A long run does not make the engine look stalled."""
    with dispatching(sqlite, tmp_path) as rig:
        rig.queue.put("time.sleep(3)")
        rig.wait_in_flight()
        oldest, end = 0.0, time.monotonic() + 2.5
        while time.monotonic() < end:
            oldest = max(oldest, rig.dispatcher.engine.heartbeat_age())
            threading.Event().wait(0.05)
    assert oldest < 2.4
