"""Queued stream events, an agent that does what its event says, and a dispatcher between them.

The agent is a small Python program. Its event has the key `do`, lines of Python that it runs; they
know the words of `AGENT`.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from guardian_fixture import pids_with_token
from longwatch.core.clock import Clock, SystemClock
from longwatch.core.events.base import Events
from longwatch.core.events.runner import AgentRunEnded, AgentRunStarted
from longwatch.host.guardian_client import GuardianClient
from longwatch.host.loop import EventLoopThread
from longwatch.mailbox.records import DeadLetter, MailboxStats, NewMessage, new_id
from longwatch.mailbox.sql import SqlBackend
from longwatch.runner.dispatch import Dispatcher
from longwatch.runner.policy import AgentSpec, OutputCheck, RunnerPolicy, SourceSpec
from longwatch.runner.run_store import RunRecord, RunStore
from longwatch.runner.work_breaker import WorkBreaker
from longwatch.store.database import Database, Transaction
from longwatch.testing import RecordingObserver
from polling import eventually

AGENT = """
import json, os, signal, sys, time
from pathlib import Path

event = json.loads(Path(os.environ["LONGWATCH_EVENT"]).read_text())

def say(text, stream=1):
    os.write(stream, (text + "\\n").encode())

def rest():
    signal.alarm(120)  # a test that went wrong leaves nothing for good
    while True:
        signal.pause()

def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

exec(event["do"])
"""
POLICY = RunnerPolicy(agent_timeout=60.0, retry_delay=0.01, max_attempts=2)
INSERT_EVENT = """
INSERT INTO longwatch_runner_events
    (id, source, data_hash, received_at, severity, fault_key, data)
VALUES (:id, :source, :data_hash, :wall_now - :age, 'info', 'key', :data)
"""
SET_AGE = "UPDATE longwatch_messages SET enqueued_at = enqueued_at - :age WHERE id = :id"
FIND_EVENT = "SELECT outcome, reason FROM longwatch_runner_events WHERE id = :id"


def sources_named(*names: str) -> list[SourceSpec]:
    return [SourceSpec(name=name, url="http://localhost/events") for name in names]


class Queue:
    """The queues of the sources of one store: puts events there and looks at what becomes of
    them. The dispatcher alone sets their budgets.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.runs = RunStore(database)
        self._backends: dict[str, SqlBackend] = {}

    def backend(self, source: str) -> SqlBackend:
        if source not in self._backends:
            self._backends[source] = SqlBackend(self.database, f"runner/{source}")
        return self._backends[source]

    def put(self, do: str, *, source: str = "alpha", age: float = 0.0, **fields: Any) -> str:
        """Queue an event whose agent runs these lines; its id."""
        event_id, data = new_id(), json.dumps({"do": do, "resource": "pod/a", **fields})
        row = {
            "id": event_id,
            "source": source,
            "data_hash": hashlib.sha256(data.encode()).digest(),
            "age": age,
            "data": data,
        }
        message = NewMessage(id=event_id, body=json.dumps({"event": event_id}).encode())

        def work(tx: Transaction) -> None:
            tx.execute(INSERT_EVENT, row)
            self.backend(source).put([message], tx=tx)
            tx.execute(SET_AGE, {"id": event_id, "age": age})
            tx.notify(f"runner/{source}")

        self.database.write(work)
        return event_id

    def outcome(self, event_id: str) -> tuple[str | None, str]:
        [(outcome, reason)] = self.database.read(lambda tx: tx.rows(FIND_EVENT, {"id": event_id}))
        return outcome, reason

    def wait_outcome(self, event_id: str, outcome: str, reason: str = "") -> None:
        expected = (outcome, reason)
        assert eventually(lambda: self.outcome(event_id)[0] is not None), self.of(event_id)
        assert expected == self.outcome(event_id), self.of(event_id)

    def of(self, event_id: str) -> list[RunRecord]:
        """The runs of an event, the first first."""
        return self.runs.runs(event=event_id, limit=1000)[::-1]

    def causes(self, event_id: str) -> list[tuple[str, str | None]]:
        return [(run.status, run.cause) for run in self.of(event_id)]

    def stats(self, source: str = "alpha") -> MailboxStats:
        return self.backend(source).stats()

    def dead_letters(self, source: str = "alpha") -> list[DeadLetter]:
        return self.backend(source).dead_letters()


class DispatchRig:
    """A dispatcher and its surroundings. Every agent has `token` in its command line."""

    def __init__(  # noqa: PLR0913, PLR0917 - each is a part
        self,
        queue: Queue,
        dispatcher: Dispatcher,
        observer: RecordingObserver,
        breaker: WorkBreaker,
        guardian: GuardianClient,
        token: str,
    ) -> None:
        self.queue = queue
        self.dispatcher = dispatcher
        self.observer = observer
        self.breaker = breaker
        self.guardian = guardian
        self.token = token

    def processes(self) -> list[int]:
        return pids_with_token(self.token)

    def wait_in_flight(self, count: int = 1) -> list[str]:
        """The ids of the runs, once so many have a process."""

        def spawned() -> list[str]:
            return [run.run_id for run in self.dispatcher.in_flight() if run.pid is not None]

        assert eventually(lambda: len(spawned()) == count), self.dispatcher.in_flight()
        return spawned()

    def check_counts(self) -> None:
        """Each run that started has ended, once."""
        started = [event.run_id for event in self.observer.of(AgentRunStarted)]
        ended = [event.run_id for event in self.observer.of(AgentRunEnded)]
        assert sorted(started) == sorted(ended)
        assert len(set(started)) == len(started)


def agent_command(token: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", AGENT, token)


def agent_spec(folder: Path, token: str, **changes: Any) -> AgentSpec:
    spec = AgentSpec(command=agent_command(token), workspace=folder / "runs", stop_grace=5.0)
    return replace(spec, **changes)


@contextmanager
def dispatching(  # noqa: PLR0913 - a dispatcher and what a test may change of it
    database: Database,
    folder: Path,
    *,
    sources: tuple[str, ...] = ("alpha",),
    policy: RunnerPolicy = POLICY,
    clock: Clock | None = None,
    breaker_clock: Clock | None = None,
    agent: Mapping[str, Any] | None = None,
) -> Iterator[DispatchRig]:
    """A started dispatcher; at the end it is stopped, and no agent is left."""
    token = f"token-{secrets.token_hex(8)}"
    clock = clock or SystemClock()
    observer = RecordingObserver()
    events = Events(observer)
    breaker = WorkBreaker(
        failures=policy.work_breaker_failures,
        cooldown=policy.work_breaker_cooldown,
        clock=breaker_clock or clock,
        events=events,
    )
    with EventLoopThread() as loop, GuardianClient(loop, events=events, cgroups=False) as guardian:
        dispatcher = Dispatcher(
            database,
            sources_named(*sources),
            agent_spec(folder, token, **(agent or {})),
            policy,
            clock=clock,
            events=events,
            breaker=breaker,
            loop=loop,
            guardian=guardian,
        )
        rig = DispatchRig(Queue(database), dispatcher, observer, breaker, guardian, token)
        with dispatcher:
            yield rig
            dispatcher.stop(timeout=20.0)
    assert [] == rig.processes()
    rig.check_counts()


REPORT = OutputCheck(file="output/report.md", min_bytes=5)
HOME = os.environ.get("HOME", "/")


def open_readers(database: Database, count: int) -> None:
    """Have the store open as many connections as it will need: it keeps them, which is no leak."""
    all_read = threading.Barrier(count)
    threads = [
        threading.Thread(target=database.read, args=(lambda _: all_read.wait(),))
        for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
