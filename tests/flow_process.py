"""Workers of graphs in processes of their own: `flowed.py URL JOURNAL GRAPH OPTION_NAMES` runs one
until something ends it.

What a worker does it writes down, in a file of its own that survives it:
    began EXECUTION NODE ATTEMPT TOKEN · ended EXECUTION NODE ATTEMPT TOKEN    the code of a node
    told EVENT                                                                  what its engine told
A value is [ATTEMPT, TOKEN] of the attempt that it comes from, so that everything that counts says
who made it.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

if os.environ.get("FAULT_BOOT"):
    import fault_environment  # noqa: F401 - the boot is another before anything else is imported
from longwatch.core.events.base import Events
from longwatch.flow import Computation, Execution, Flow, FlowContext, Graph
from longwatch.host.beatpage import read_page
from longwatch.store.database import Database
from longwatch.store.url import open_database
from polling import complete_lines

DIAMOND = {"a": ["number"], "b": ["a"], "c": ["a"], "d": ["b", "c"], "e": ["d"]}
MAX_SECONDS = 900.0
"""A test that went wrong leaves nothing for good."""
_NEVER = threading.Event()
_IN_TRANSACTION = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"
)
_OPEN = "SELECT count(*) FROM longwatch_computations WHERE lease_state < 3"


class Journal:
    """A file that lines are appended to; each is there in full or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, *words: object) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, (" ".join(map(str, words)) + "\n").encode())
        os.close(descriptor)

    def entries(self, first: str) -> list[list[str]]:
        lines = [line.split() for line in complete_lines(self.path)]
        return [words[1:] for words in lines if words[0] == first]


class AttemptRecord(NamedTuple):
    """What the code of a node says of itself."""

    execution: str
    node: str
    attempt: int
    token: int

    @classmethod
    def from_context(cls, context: FlowContext) -> AttemptRecord:
        return cls(context.execution, context.node, context.attempt, context.fencing_token)

    @classmethod
    def parse(cls, words: list[str]) -> AttemptRecord:
        return cls(words[0], words[1], int(words[2]), int(words[3]))


# --- graphs ---


def diamond(journal: Journal, **options: Any) -> Graph:
    """Five nodes that take a moment each."""
    graph = Graph("diamond", version="1")
    graph.input("number")

    def work(context: FlowContext) -> list[int]:
        journal.write("began", *AttemptRecord.from_context(context))
        _NEVER.wait(random.uniform(0.0, 0.03))
        return [context.attempt, context.fencing_token]

    for name, after in DIAMOND.items():
        graph.compute(after=after, name=name, **options)(work)
    return graph


def job(journal: Journal, **options: Any) -> Graph:
    """One node that works until there is a file, whatever it is told."""
    graph = Graph("job", version="1")
    graph.input("until")

    @graph.compute(after=["until"], **options)
    def work(until: str, context: FlowContext) -> list[int]:
        journal.write("began", *AttemptRecord.from_context(context))
        while not Path(until).exists():
            _NEVER.wait(0.01)
        journal.write("ended", *AttemptRecord.from_context(context))
        return [context.attempt, context.fencing_token]

    return graph


def wide(journal: Journal, **options: Any) -> Graph:
    """A map whose elements take a moment each, and up to a second while the file `slow` exists."""
    graph = Graph("wide", version="1")
    graph.input("numbers")
    slow = journal.path.with_name("slow")

    def work(number: int, context: FlowContext) -> list[int]:
        journal.write("began", *AttemptRecord.from_context(context))
        for _ in range(50):
            _NEVER.wait(random.uniform(0.0, 0.03))
            if not slow.exists():
                break
        return [number, context.attempt, context.fencing_token]

    graph.map("mapped", over="numbers", function=work, **options)
    return graph


GRAPHS: dict[str, Callable[..., Graph]] = {"diamond": diamond, "job": job, "wide": wide}


# --- workers ---


class FlowProcess:
    """One `flowed.py` at work."""

    def __init__(
        self, url: str, journal: Path, graph: str, *, boot: str = "", **options: Any
    ) -> None:
        self.journal = Journal(journal)
        command = [sys.executable, __file__, url, str(journal), graph, json.dumps(options)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, env={**os.environ, "FAULT_BOOT": boot}
        )
        self.pid = self.process.pid

    def records(self, first: str) -> list[AttemptRecord]:
        return [AttemptRecord.parse(words) for words in self.journal.entries(first)]

    def suspend(self) -> None:
        """Stop every thread of it."""
        os.kill(self.pid, signal.SIGSTOP)
        while not self._states() <= {"T"}:
            pause(0.001)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pages(self) -> set[str]:
        """Return the paths of the beat pages that the process has mapped."""
        maps = Path(f"/proc/{self.pid}/maps").read_text().splitlines()
        return {line.split(maxsplit=5)[5] for line in maps if "/page-" in line}

    def _states(self) -> set[str]:
        return {
            (task / "stat").read_text().rpartition(")")[2].split()[0]
            for task in Path(f"/proc/{self.pid}/task").iterdir()
        }


class FlowProcesses:
    """A flow with its workers."""

    def __init__(self, url: str, folder: Path, graph: str, **options: Any) -> None:
        self.url = url
        self.graph = graph
        self.workers: list[FlowProcess] = []
        self.all_workers: list[FlowProcess] = []
        self.killed_attempts: set[int] = set()
        """Attempts that had begun when their worker was killed."""
        self._folder = folder
        self._options = options
        found = open_database(url, auto_migrate=True)
        assert found is not None
        self.database: Database = found
        self.flow = Flow(self.database, [GRAPHS[graph](Journal(folder / "nobody"), **options)])
        self.flow.executions()

    def start_worker(self, *, boot: str = "") -> FlowProcess:
        journal = self._folder / f"journal-{len(self.all_workers)}"
        worker = FlowProcess(self.url, journal, self.graph, boot=boot, **self._options)
        self.workers.append(worker)
        self.all_workers.append(worker)
        return worker

    def freeze(self, worker: FlowProcess) -> None:
        """Halt it between its transactions: within one, what it has locked would stay so, on
        SQLite the whole file.
        """
        worker.suspend()
        while not self._is_idle():
            worker.resume()
            pause(0.02)
            worker.suspend()

    def kill(self, worker: FlowProcess) -> None:
        """As kill -9 at any moment; what it had begun is known from its page."""
        worker.suspend()
        self.killed_attempts |= self.started_by(worker)
        worker.kill()
        self.workers.remove(worker)

    def started_by(self, worker: FlowProcess) -> set[int]:
        """The attempts that the mapped beat pages of the worker list as started.

        This does not read the store: a worker stopped in a commit keeps SQLite readers waiting.
        """
        readings = (read_page(page) for page in worker.pages())
        return {row for reading in readings if reading is not None for row in reading.running_rows}

    def _is_idle(self) -> bool:
        """Whether nobody is in the middle of a transaction."""
        if self.database.dialect == "postgresql":
            return self.database.read(lambda tx: tx.rows(_IN_TRANSACTION)) == [(0,)]
        with closing(
            sqlite3.connect(
                self.database.url.removeprefix("sqlite:///"), timeout=0, isolation_level=None
            )
        ) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
        return True

    def open_attempts(self) -> int:
        [(count,)] = self.database.read(lambda tx: tx.rows(_OPEN))
        return int(count)

    def records(self, first: str) -> set[AttemptRecord]:
        return {note for worker in self.all_workers for note in worker.records(first)}

    def close(self) -> None:
        for worker in self.all_workers:
            worker.kill()
        self.database.close()


@contextmanager
def flow_processes(url: str, folder: Path, graph: str, **options: Any) -> Iterator[FlowProcesses]:
    rig = FlowProcesses(url, folder, graph, **options)
    try:
        yield rig
    finally:
        rig.close()


def pause(seconds: float) -> None:
    """Let the workers work."""
    select.poll().poll(seconds * 1000)


# --- what has to hold ---


def inconsistencies(rig: FlowProcesses, executions: list[Execution]) -> list[str]:
    """What is wrong with executions that should be complete: every node has one success, which
    made its value.
    """
    [graph] = rig.flow.registry.graphs.values()
    began = rig.records("began")
    looked = [
        (execution.id, execution.values(), execution.computations()) for execution in executions
    ]
    return [
        fault
        for each in looked
        for node in graph.computed_nodes
        for fault in _node_inconsistencies(node.name, *each, began)
    ]


def _node_inconsistencies(
    node: str,
    execution: str,
    values: dict[str, Any],
    attempts: list[Computation],
    began: set[AttemptRecord],
) -> Iterator[str]:
    tried = [each for each in attempts if each.node == node]
    made = [each for each in tried if each.state == "success"]
    if len(made) != 1 or tried[-1:] != made:
        yield f"{execution}: {node} has not one success, at last: {tried}"
    elif values.get(node) != [made[0].attempt, made[0].term]:
        yield f"{execution}: {node} is {values.get(node)}, not that of {made[0]}"
    elif AttemptRecord(execution, node, made[0].attempt, made[0].term) not in began:
        yield f"{execution}: {node} counts, though nobody began {made[0]}"


def unsuccessful_attempts(attempts: list[Computation]) -> dict[int, str]:
    """The attempts that came to nothing, with their cause."""
    return {
        each.number: each.end_cause or ""
        for each in attempts
        if each.state in {"abandoned", "failed"}
    }


def main(url: str, journal: str, graph: str, options: str) -> None:
    threading.Timer(MAX_SECONDS, os._exit, [4]).start()
    book = Journal(Path(journal))
    flow = Flow(url, [GRAPHS[graph](book, **json.loads(options))])
    events = Events(lambda event: book.write("told", event.name))
    flow.worker(concurrency=4, sweep_interval_seconds=0.2, events=events).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
