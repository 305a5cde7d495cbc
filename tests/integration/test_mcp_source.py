"""A connection to an MCP server that sends events, against a real server and its faults."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from event_source_rig import DEADLINE, FaultyServer, MemoryIntake, answers, running
from longwatch.core.events.runner import (
    EventSourceDegraded,
    SseConnectionClosed,
    SseConnectionEstablished,
    SseConnectionFailed,
    StreamGapped,
    SubscribeToolMissing,
)
from longwatch.runner.connection import ConnectionPhase
from longwatch.runner.policy import RunnerPolicy, SourceKind, SourceSpec, Subscription
from loopback import free_port
from polling import eventually

SERVER = Path(__file__).parent.parent / "mcp_event_server.py"
TOOL = "events_subscribe"


class EventServer:
    """The server as a process. `send` appends an event to the file that it sends from."""

    def __init__(self, directory: Path, tool: str = TOOL) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self._tool = tool
        self._file = directory / "events"
        self._file.touch()
        self._log = directory / "server.log"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(SERVER), str(self.port), self._tool, str(self._file)]
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        assert eventually(self._is_listening), self.log
        return process

    def _is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    @property
    def spec(self) -> SourceSpec:
        return SourceSpec(name="east", url=self.url, kind=SourceKind.MCP)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def send(self, line: str) -> None:
        with self._file.open("a") as file:
            file.write(line + "\n")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.process = self._start()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EventServer]:
    made = EventServer(tmp_path)
    yield made
    made.kill()


def event(line: str) -> str:
    return json.dumps({"mode": "faults", "line": line})


def test_notifications_of_the_logger_are_events_without_ids(server: EventServer) -> None:
    """Data that is text is taken as it is; other data as JSON. Other loggers are not taken."""

    async def scenario() -> None:
        async with running(server.spec) as rig:
            await rig.first(SseConnectionEstablished)
            for line in ("one", "two", "text"):
                server.send(line)
            await rig.until(lambda: len(rig.intake.items) == 3)
        assert [event("one"), event("two"), '{"text": 1}'] == rig.intake.data
        assert {None} == {item.id for item in rig.intake.items}
        assert [] == rig.of(StreamGapped)
        assert 1 == len(rig.of(SseConnectionClosed))

    asyncio.run(scenario())
    assert eventually(lambda: "DELETE /mcp" in server.log), "the session was not ended"


def test_a_restarted_server_gets_a_new_session_and_the_gap_is_reported(
    server: EventServer,
) -> None:
    async def scenario() -> None:
        async with running(server.spec) as rig:
            await rig.first(SseConnectionEstablished)
            server.send("before")
            await rig.until(lambda: len(rig.intake.items) == 1)
            await asyncio.to_thread(server.kill)
            await rig.first(SseConnectionFailed, 2)
            server.send("lost")
            await asyncio.to_thread(server.restart)
            gapped = await rig.first(StreamGapped)
            second = await rig.first(SseConnectionEstablished, 2)
            server.send("after")
            await rig.until(lambda: event("after") in rig.intake.data)
        assert [event("before"), event("after")] == rig.intake.data
        assert gapped.seconds >= second.downtime > 0
        assert "network_error" == rig.of(SseConnectionFailed)[-1].reason

    asyncio.run(scenario())


def test_a_server_that_stalls_is_pinged_and_then_idle(server: EventServer) -> None:
    async def scenario() -> None:
        policy = RunnerPolicy(read_timeout=4.0)
        async with running(server.spec, policy=policy) as rig:
            await rig.first(SseConnectionEstablished)
            before = len(rig.of(SseConnectionFailed))
            server.process.send_signal(signal.SIGSTOP)
            failed = await rig.first(SseConnectionFailed, before + 1)
            server.process.send_signal(signal.SIGCONT)
            await rig.first(SseConnectionEstablished, 2)
            server.send("after")
            await rig.until(lambda: event("after") in rig.intake.data)
        assert "idle_timeout" == failed.reason

    asyncio.run(scenario())


def test_a_silent_server_that_answers_pings_stays_connected(server: EventServer) -> None:
    async def scenario() -> None:
        policy = RunnerPolicy(read_timeout=8.0)
        async with running(server.spec, policy=policy) as rig:
            await rig.first(SseConnectionEstablished)
            requests = server.log.count("POST /mcp")
            await rig.until(lambda: server.log.count("POST /mcp") >= requests + 2)
            assert [] == rig.of(SseConnectionFailed)
            assert ConnectionPhase.CONNECTED is rig.connection.state.phase

    asyncio.run(scenario())


def test_a_server_without_the_tool_is_reported_once_with_the_tools_it_has(tmp_path: Path) -> None:
    server = EventServer(tmp_path, tool="another_tool")

    async def scenario() -> None:
        async with running(server.spec) as rig:
            await rig.first(SubscribeToolMissing)
            count = len(rig.of(SseConnectionFailed))
            await rig.first(SseConnectionFailed, count + 3)
        (missing,) = rig.of(SubscribeToolMissing)
        assert (TOOL, ("another_tool", "pods_list")) == (missing.tool, missing.tools)
        last = rig.of(SseConnectionFailed)[-1]
        assert ("http_status", 60.0) == (last.reason, last.retry_in)
        assert [] == rig.of(SseConnectionEstablished)

    try:
        asyncio.run(scenario())
    finally:
        server.kill()


def test_a_tool_that_fails_is_retried(server: EventServer) -> None:
    async def scenario() -> None:
        subscription = Subscription(arguments={"mode": "broken"})
        async with running(replace(server.spec, subscription=subscription)) as rig:
            await rig.until(lambda: any(TOOL in f.error for f in rig.of(SseConnectionFailed)))
        assert [] == rig.of(SseConnectionEstablished)

    asyncio.run(scenario())


def test_events_that_the_store_refused_are_kept_over_the_reconnect(server: EventServer) -> None:
    async def scenario() -> None:
        intake = MemoryIntake(failures=2)
        async with running(server.spec, intake=intake) as rig:
            await rig.first(SseConnectionEstablished)
            server.send("one")
            await rig.until(lambda: len(intake.items) == 1)
        assert [event("one")] == intake.data

    asyncio.run(scenario())


def test_a_store_that_stands_still_loses_nothing_of_a_flood(server: EventServer) -> None:
    async def scenario() -> None:
        intake = MemoryIntake(gate=asyncio.Event())
        assert intake.gate is not None
        async with running(server.spec, intake=intake) as rig:
            await rig.first(SseConnectionEstablished)
            for number in range(6000):
                server.send(str(number))
            await asyncio.sleep(1.0)
            intake.gate.set()
            await rig.until(lambda: len(intake.items) == 6000)
        assert [event(str(number)) for number in range(6000)] == intake.data

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("status", "header", "delay", "alerts"),
    [(401, "X: y", 60.0, 1), (404, "X: y", 60.0, 1), (503, "Retry-After: 9", 9.0, 0)],
)
def test_the_status_of_a_refusal_decides_the_wait(
    status: int, header: str, delay: float, alerts: int
) -> None:
    async def scenario() -> None:
        async with FaultyServer(answers(status, header)) as refusing:
            async with running(replace(refusing.spec, kind=SourceKind.MCP)) as rig:
                failed = await rig.first(SseConnectionFailed)
            assert ("http_status", delay) == (failed.reason, failed.retry_in)
            assert failed.error.startswith(f"expected status 200, got {status}")
            assert alerts == len(rig.of(EventSourceDegraded))

    asyncio.run(scenario())


def test_a_refused_connection_and_an_unknown_name_have_their_reasons() -> None:
    async def scenario(url: str) -> str:
        async with running(SourceSpec(name="east", url=url, kind=SourceKind.MCP)) as rig:
            return (await rig.first(SseConnectionFailed)).reason

    assert "network_error" == asyncio.run(scenario(f"http://127.0.0.1:{free_port()}/mcp"))
    assert "dns" == asyncio.run(scenario("http://no-such-host.invalid/mcp"))


def test_an_event_that_is_too_large_ends_the_session_and_the_next_one_goes_on(
    server: EventServer,
) -> None:
    async def scenario() -> None:
        policy = RunnerPolicy(max_event_bytes=4000)
        async with running(server.spec, policy=policy) as rig:
            await rig.first(SseConnectionEstablished)
            server.send("x" * 5000)
            failed = await rig.first(SseConnectionFailed)
            await rig.first(SseConnectionEstablished, 2)
            server.send("after")
            await rig.until(lambda: event("after") in rig.intake.data)
        assert "max_event_bytes" in failed.error
        assert [event("after")] == rig.intake.data
        assert 1 == rig.intake.oversize

    asyncio.run(scenario())


def test_a_cancel_leaves_a_stalled_server_soon(server: EventServer) -> None:
    """The goodbye to a server that does not answer has a short deadline of its own."""

    async def scenario() -> None:
        async with asyncio.timeout(DEADLINE), running(server.spec) as rig:
            await rig.first(SseConnectionEstablished)
            server.process.send_signal(signal.SIGSTOP)
        assert 1 == len(rig.of(SseConnectionClosed))

    asyncio.run(scenario())


def test_a_server_without_sessions_cannot_send_events() -> None:
    """It is retried slowly, with an alert: an event stream needs a session."""
    body = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "serverInfo": {"name": "stateless", "version": "1"},
    }
    reply = json.dumps({"jsonrpc": "2.0", "id": 1, "result": body}).encode()
    script = answers(200, "Content-Type: application/json", body=reply)

    async def scenario() -> None:
        async with FaultyServer(script, answers(202)) as stateless:
            async with running(replace(stateless.spec, kind=SourceKind.MCP)) as rig:
                failed = await rig.first(SseConnectionFailed)
            assert ("http_status", 60.0) == (failed.reason, failed.retry_in)
            assert "no sessions" in failed.error

    asyncio.run(scenario())
