"""The stop of `longwatch runner` while its store does not answer: a full disk, a server that is
down, a server that is frozen.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from event_server import EventServer, serving_events
from longwatch.app.foreground import ESCALATE_AFTER
from polling import complete_lines, eventually
from postgres_server import PostgresServer, destroy_server, make_server
from run_process import run_longwatch
from runner_process import (
    LONGWATCH,
    WITHIN,
    RunnerProcess,
    agent,
    start_runner,
    write_runner,
)
from small_disk import fill_disk, small_filesystem

ONE_ENDS = (
    'echo "$$" >> ../../pids; trap "" TERM; '
    "while ! mv ../../go ../../gone 2>/dev/null; do sleep 0.1; done"
)
"""An agent that ignores SIGTERM. Of several, the one that finds the file `go` ends."""
TWO_RUNS = {"max_concurrent_per_source": 2}
DEADLINE = 60.0
"""Seconds for an end that takes a few; less than a stop that waits for its store."""


class BreakableStore:
    """A store that stops to answer with `fail`, and answers again with `mend`."""

    def __init__(self, url: str, failing: Callable[[], ExitStack]) -> None:
        self.url = url
        self._failing = failing
        self._failure = ExitStack()

    def fail(self) -> None:
        self._failure = self._failing()

    def mend(self) -> None:
        self._failure.close()


@contextmanager
def _on_small_disk(folder: Path) -> Iterator[BreakableStore]:
    with small_filesystem(folder, size="8m") as disk:

        def fill() -> ExitStack:
            stack = ExitStack()
            stack.callback(fill_disk(disk).unlink)
            return stack

        yield BreakableStore(f"sqlite:///{disk}/store.db", fill)


@contextmanager
def _on_server(
    folder: Path, failing: Callable[[PostgresServer], ExitStack]
) -> Iterator[BreakableStore]:
    server = make_server()
    try:
        server.start()
        migrated = run_longwatch(
            LONGWATCH, folder, "db", "migrate", "--store", server.url(), within=WITHIN
        )
        assert 0 == migrated.returncode, migrated.stderr
        yield BreakableStore(server.url(), lambda: failing(server))
    finally:
        destroy_server(server)


def _stopped(server: PostgresServer) -> ExitStack:
    server.stop()
    stack = ExitStack()
    stack.callback(server.start)
    return stack


def _frozen(server: PostgresServer) -> ExitStack:
    stack = ExitStack()
    stack.enter_context(server.frozen())
    return stack


@pytest.fixture(params=["full disk", "server stopped", "server frozen"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BreakableStore]:
    if request.param == "full disk":
        opened = _on_small_disk(tmp_path)
    else:
        opened = _on_server(tmp_path, _stopped if request.param == "server stopped" else _frozen)
    with opened as store:
        yield store
        store.mend()


@pytest.fixture
def stream() -> Iterator[EventServer]:
    with serving_events() as server:
        yield server


def agents_alive(cwd: Path) -> list[int]:
    pids = [int(line) for line in complete_lines(cwd / "pids")]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def _start_two_runs(runner: RunnerProcess, stream: EventServer) -> set[str]:
    """The ids of their events, once both agents are at work."""
    stream.send(resource="pod/a")
    stream.send(resource="pod/b")
    runner.wait_for_event("agent_run_started", times=2)
    assert eventually(lambda: len(agents_alive(runner.cwd)) == 2)
    return {record["event_id"] for record in runner.events("agent_run_started")}


def test_a_stop_ends_though_no_result_can_be_stored_and_the_events_run_again(
    stream: EventServer, store: BreakableStore, tmp_path: Path
) -> None:
    """Of two runs one has ended and waits for the store, the other is under way. The stop ends
    after its budget and a few seconds, once, with code 1; no agent is left, and no event is lost.
    """
    env = {"LONGWATCH_RUNNER_STORE_URL": store.url}
    sources = {"prod": stream.url}
    write_runner(tmp_path, sources, agent(ONE_ENDS, stop_grace=0.2), **TWO_RUNS, shutdown_timeout=3)
    with start_runner(tmp_path, env=env) as runner:
        events = _start_two_runs(runner, stream)
        store.fail()
        (tmp_path / "go").touch()
        runner.wait_for_event("agent_run_ended", cause="exit 0")
        runner.signal(signal.SIGTERM)

        assert 1 == runner.wait(DEADLINE)
    assert 1 == len(runner.events("runner_stopping"))
    [forced] = runner.events("runner_stop_forced")
    assert 2 == forced["unsettled"]
    assert "dispatch" in forced["left"]
    assert eventually(lambda: not agents_alive(tmp_path))

    store.mend()
    write_runner(tmp_path, sources, agent("true"))
    with start_runner(tmp_path, env=env) as runner:
        for event_id in events:
            runner.wait_for_event("agent_run_ended", event_id=event_id, status="success")
        runner.signal(signal.SIGTERM)
        assert 0 == runner.wait(DEADLINE)


def test_a_second_signal_ends_it_though_the_store_does_not_answer(
    stream: EventServer, store: BreakableStore, tmp_path: Path
) -> None:
    """The budget is far away and the agents ignore SIGTERM: the second signal ends all of it."""
    env = {"LONGWATCH_RUNNER_STORE_URL": store.url}
    write_runner(
        tmp_path,
        {"prod": stream.url},
        agent(ONE_ENDS, stop_grace=600),
        **TWO_RUNS,
        shutdown_timeout=900,
    )
    with start_runner(tmp_path, env=env) as runner:
        _start_two_runs(runner, stream)
        store.fail()
        runner.signal(signal.SIGTERM)
        runner.wait_for_event("runner_stopping")

        # a signal that comes sooner is taken for the first one said twice
        time.sleep(ESCALATE_AFTER + 0.1)
        runner.signal(signal.SIGTERM)
        assert 1 == runner.wait(DEADLINE)
    assert 1 == len(runner.events("runner_stop_forced"))
    assert eventually(lambda: not agents_alive(tmp_path))
