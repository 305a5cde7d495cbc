"""What tests of the status page put into stores: dead letters, failed executions, ended runs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec

from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.flow import Execution, Flow, Graph
from longwatch.flow.claim_source import FlowClaimSource
from longwatch.flow.invocation import arguments, encode_result
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.backend import Backend
from longwatch.mailbox.records import NewMessage, new_id
from longwatch.mailbox.sql import SqlBackend
from longwatch.runner.run_end import EventOutcome, RunEnd, RunSettlement, RunStatus
from longwatch.runner.run_store import NewRun, RunStore
from longwatch.store.database import Database, Transaction

_INSERT_SOURCE = """
INSERT INTO longwatch_runner_sources (queue, name, state, state_since, connection_error)
VALUES (0, :name, :state, :wall_now - 60, :error)
"""
_INSERT_EVENT = """
INSERT INTO longwatch_runner_events
    (id, source, data_hash, received_at, severity, fault_key, data)
VALUES (:id, :source, :data_hash, :wall_now, 'critical', 'key', :data)
"""


def dead_letter(
    backend: Backend, body: bytes, *, error: str = "broken", traceback: str | None = None
) -> str:
    """Send a message and give it up; returns its id. No other message may be ready."""
    sent = NewMessage(id=new_id(), body=body)
    backend.put([sent])
    owner = backend.register_owner(Incarnation.current())
    [row] = backend.exchange([], owner=owner, limit=1, lease_seconds=60.0).claimed
    settlement = Settlement(
        row.claim, RowOutcome.DEAD, reason="rejected", error=error, traceback=traceback
    )
    assert [True] == backend.settle([settlement])
    return sent.id


def letters_graph() -> Graph:
    """url → pages → titles, and a map over topics."""
    graph = Graph("letters <b>", version="1")
    graph.input("url")
    graph.input("topics")
    graph.compute(after=["url"], name="pages", max_attempts=1)(lambda url: url)
    graph.compute(after=["pages"], name="titles")(lambda pages: pages)
    graph.map("each", over="topics", function=lambda topic: topic, max_attempts=1)
    return graph


class GraphWorker:
    """A Flow and a worker of it without threads, in the process of the test."""

    def __init__(self, database: Database, graph: Graph) -> None:
        self.flow = Flow(database, [graph])
        self._graph = graph
        self._source = FlowClaimSource(database, self.flow.registry)
        self._owner = self._source.register_owner(Incarnation.current())

    def claim(self) -> list[ClaimedRow]:
        return self._source.exchange([], owner=self._owner, limit=100, lease_seconds=0.0).claimed

    def compute(self) -> int:
        """Compute all nodes that are ready; returns how many."""
        count = 0
        while claimed := self.claim():
            for row in claimed:
                node = self._graph.nodes[row.item.node]
                assert node.function is not None
                result = node.function(**arguments(node, row.item.inputs, None))
                self._settle(
                    Settlement(row.claim, RowOutcome.DONE, result=encode_result(node, result))
                )
                count += 1
        return count

    def give_up(self, error: str) -> None:
        """Give up all nodes that are ready."""
        for row in self.claim():
            self._settle(Settlement(row.claim, RowOutcome.DEAD, reason="permanent", error=error))

    def failed_execution(self, error: str, **inputs: Any) -> Execution:
        """An execution whose node `pages` was given up with this error."""
        execution = self.flow.start(self._graph.name, {"url": "http://x", **inputs})
        self.give_up(error)
        return execution

    def _settle(self, settlement: Settlement) -> None:
        self._source.exchange([settlement], owner=self._owner, limit=0, lease_seconds=0.0)


def add_source(database: Database, name: str, *, state: str = "connected", error: str = "") -> None:
    """A source, as a runner leaves it."""
    row = {"name": name, "state": state, "error": error}
    database.write(lambda tx: tx.execute(_INSERT_SOURCE, row))


class RunnerQueue:
    """The events of one source; every run of them is made by hand."""

    def __init__(self, database: Database, source: str) -> None:
        self.database = database
        self.source = source
        self.runs = RunStore(database)
        self.backend = SqlBackend(database, f"runner/{source}")
        self._owner = self.backend.register_owner(Incarnation.current())

    def put(self, **fields: Any) -> str:
        """Queue an event; returns its id."""
        event_id, data = new_id(), json.dumps(fields)
        row = {
            "id": event_id,
            "source": self.source,
            "data_hash": hashlib.sha256(f"{event_id}{data}".encode()).digest(),
            "data": data,
        }
        message = NewMessage(id=event_id, body=json.dumps({"event": event_id}).encode())

        def work(tx: Transaction) -> None:
            tx.execute(_INSERT_EVENT, row)
            self.backend.put([message], tx=tx)

        self.database.write(work)
        return event_id

    def begin(self, workspace: Path) -> tuple[str, ClaimedRow]:
        """Begin a run of the next event; returns its id and its claim."""
        [row] = self.backend.exchange([], owner=self._owner, limit=1, lease_seconds=600.0).claimed
        found = self.runs.find_event(row.item.id)
        assert found is not None
        run = NewRun(
            id=new_id(),
            event=row.item.id,
            source=self.source,
            attempt=found.runs + 1,
            workspace=str(workspace),
        )
        assert self.runs.begin(run, row.claim)
        return run.id, row

    def fail(self, run_id: str, row: ClaimedRow, *, error: str, output: str = "") -> None:
        """End a run, and give its event up."""
        end = RunEnd(
            status=RunStatus.FAILURE, cause="exit 3", duration=1.5, error=error, output=output
        )
        decided = RunSettlement(
            event=row.item.id,
            run=run_id,
            end=end,
            outcome=EventOutcome.DEAD_LETTERED,
            reason="failed",
        )
        settlement = Settlement(
            row.claim, RowOutcome.DEAD, reason="failed", result=msgspec.json.encode(decided)
        )

        def work(tx: Transaction) -> None:
            [is_settled] = self.backend.settle([settlement], tx=tx)
            self.runs.settle(tx, [(settlement, is_settled)])

        self.database.write(work)
