"""A map of 1,000 elements that do nothing, beside 1,000 messages through a loop."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from longwatch.flow import Flow, Graph
from longwatch.mailbox import open_mailbox
from longwatch.runtime import LoopGroup, MainLoop, MainLoopContext

ELEMENTS = 1_000
CONCURRENCY = 8
TIMEOUT = 120.0


class CountingLoop(MainLoop[int, None]):
    """Counts what it handles."""

    def start_count(self) -> threading.Event:
        self.left, self.lock, self.done = ELEMENTS, threading.Lock(), threading.Event()
        return self.done

    def handle(self, request: int, context: MainLoopContext) -> None:  # noqa: ARG002 - the contract
        with self.lock:
            self.left -= 1
            if not self.left:
                self.done.set()


def compare(url: str, rounds: int) -> tuple[float, float]:
    """Seconds for the messages and for the map, the medians of interleaved rounds."""
    with _map_run(url) as elements, _message_run(url) as messages:
        runs = [messages, elements]
        for run in runs:
            run()
        taken = [[_seconds(run) for run in runs] for _ in range(rounds)]
    by_messages, by_map = map(statistics.median, zip(*taken, strict=True))
    return by_messages, by_map


@contextmanager
def _message_run(url: str) -> Iterator[Callable[[], None]]:
    mailbox = open_mailbox(url, "numbers")
    loop = CountingLoop(requests=mailbox, concurrency=CONCURRENCY)
    group = LoopGroup([loop])
    thread = threading.Thread(target=group.run, daemon=True)
    loop.start_count()
    thread.start()

    def run() -> None:
        done = loop.start_count()
        mailbox.send_many(range(ELEMENTS))
        assert done.wait(TIMEOUT)

    try:
        yield run
    finally:
        group.shutdown()
        thread.join(TIMEOUT)


@contextmanager
def _map_run(url: str) -> Iterator[Callable[[], None]]:
    graph = Graph("wide", version="1")
    graph.input("numbers")
    graph.map("same", over="numbers", function=lambda number: number)
    with Flow(url, [graph], auto_migrate=True) as flow, flow.worker(concurrency=CONCURRENCY):
        flow.executions()  # the tables are there for the mailbox

        def run() -> None:
            flow.start("wide", numbers=list(range(ELEMENTS))).get("same", timeout=TIMEOUT)

        yield run


def _seconds(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
