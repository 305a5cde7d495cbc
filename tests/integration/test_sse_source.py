"""A connection to an SSE source, against real servers with faults."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from event_source_rig import (
    EVENT_STREAM,
    FaultyServer,
    MemoryIntake,
    Request,
    Script,
    answers,
    ends,
    resets,
    running,
    sends,
    stalls,
)
from longwatch.core.events.runner import (
    EventSourceDegraded,
    EventSourceEnded,
    EventSourceRecovered,
    SseConnectionClosed,
    SseConnectionEstablished,
    SseConnectionFailed,
)
from longwatch.runner.connection import ConnectionPhase
from longwatch.runner.policy import RunnerPolicy, SourceSpec
from longwatch.runner.seams import StreamItem
from loopback import free_port

IMPATIENT = RunnerPolicy(read_timeout=0.3)


async def failure_of(script: Script, policy: RunnerPolicy | None = None) -> SseConnectionFailed:
    """How a connection to a server with this script fails first."""
    async with FaultyServer(script) as server, running(server.spec, policy=policy) as rig:
        return await rig.first(SseConnectionFailed)


# --- what is sent and taken ---


def test_the_request_asks_for_an_event_stream() -> None:
    async def scenario() -> None:
        async with FaultyServer(sends(b"data: 1\n\n", then=stalls)) as server:
            async with running(server.spec) as rig:
                await rig.first(SseConnectionEstablished)
            headers = server.requests[0].headers
        assert "text/event-stream" == headers["accept"]
        assert "no-cache" == headers["cache-control"]
        assert "identity" == headers["accept-encoding"]
        assert "last-event-id" not in headers

    asyncio.run(scenario())


def test_a_reconnect_asks_for_what_came_after_the_last_stored_event() -> None:
    """A server that replays by Last-Event-ID sends each event once, over several connections."""

    async def replay(request: Request, writer: asyncio.StreamWriter) -> None:
        start = int(request.headers.get("last-event-id", "0")) + 1
        writer.write(EVENT_STREAM + b"\r\n")
        for number in range(start, start + 3):
            writer.write(b"id: %d\ndata: event %d\n\n" % (number, number))

    async def scenario() -> None:
        async with FaultyServer(replay) as server, running(server.spec) as rig:
            await rig.until(lambda: len(rig.intake.items) >= 9)
        expected = [StreamItem(f"event {n}", str(n)) for n in range(1, 10)]
        assert expected == rig.intake.items[:9]

    asyncio.run(scenario())


def test_an_event_has_an_id_only_if_the_server_gave_it_one() -> None:
    body = b"data: a\n\nid: 5\ndata: b\n\ndata: c\n\nid: 6\ndata: d\n\nid\ndata: e\n\ndata: f\n\n"

    async def scenario() -> None:
        intake = MemoryIntake(stored="5")
        async with (
            FaultyServer(sends(body, then=stalls)) as server,
            running(server.spec, intake=intake) as rig,
        ):
            await rig.until(lambda: len(intake.items) == 6)
            assert "5" == server.requests[0].headers["last-event-id"]
        ids = [None, "5", None, "6", None, None]
        assert [StreamItem(d, i) for d, i in zip("abcdef", ids, strict=True)] == intake.items
        assert "" == intake.stored

    asyncio.run(scenario())


def test_an_id_that_the_server_uses_again_is_the_id_of_each_event() -> None:
    async def scenario() -> None:
        intake = MemoryIntake()
        body = b"id: same\ndata: a\n\nid: same\ndata: b\n\ndata: c\n\n"
        async with (
            FaultyServer(sends(body, then=stalls)) as server,
            running(server.spec, intake=intake) as rig,
        ):
            await rig.until(lambda: len(intake.items) == 3)
        assert ["same", "same", None] == [item.id for item in intake.items]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("cursor", "sent"),
    [
        ("\N{SNOWMAN}", "\N{SNOWMAN}"),
        ("\N{REPLACEMENT CHARACTER}", "\N{REPLACEMENT CHARACTER}"),
        ("a\x01b", None),
        ("\x7f", None),
        ("x" * 5000, None),
    ],
)
def test_an_id_that_no_header_can_carry_does_not_keep_us_from_connecting(
    cursor: str, sent: str | None
) -> None:
    """The connection then starts where the server starts, as one without an id."""

    async def scenario() -> None:
        intake = MemoryIntake(stored=cursor)
        script = sends(b"data: x\n\n", then=stalls)
        async with FaultyServer(script) as server, running(server.spec, intake=intake) as rig:
            await rig.until(lambda: ["x"] == intake.data)
            header = server.requests[0].headers.get("last-event-id")
        assert sent == (header and header.encode("latin-1").decode())

    asyncio.run(scenario())


def test_the_content_type_is_compared_without_case() -> None:
    async def shouting(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream\r\n\r\ndata: x\n\n")
        await stalls(writer)

    async def scenario() -> None:
        async with FaultyServer(shouting) as server, running(server.spec) as rig:
            await rig.until(lambda: ["x"] == rig.intake.data)

    asyncio.run(scenario())


def test_without_a_new_id_the_stored_one_stays() -> None:
    async def scenario() -> None:
        intake = MemoryIntake(stored="41")
        async with (
            FaultyServer(sends(b"data: a\n\n", then=ends)) as server,
            running(server.spec, intake=intake) as rig,
        ):
            await rig.first(SseConnectionFailed)
        assert ("41", ["a"]) == (intake.stored, intake.data[:1])

    asyncio.run(scenario())


def test_an_id_in_a_block_without_data_is_stored_when_the_stream_ends() -> None:
    async def scenario() -> None:
        script = sends(b"id: 9\n\n", then=ends)
        async with FaultyServer(script) as server, running(server.spec) as rig:
            await rig.first(SseConnectionFailed)
            assert "9" == rig.intake.stored

    asyncio.run(scenario())


def test_invalid_utf8_is_replaced_and_the_stream_goes_on() -> None:
    async def scenario() -> None:
        script = sends(b"data: \xff\xfe\n\ndata: fine\n\n", then=stalls)
        async with FaultyServer(script) as server, running(server.spec) as rig:
            await rig.until(lambda: len(rig.intake.items) == 2)
        assert ["��", "fine"] == rig.intake.data

    asyncio.run(scenario())


def test_oversize_events_and_endless_lines_are_counted_and_survived() -> None:
    big = b"data: " + b"x" * 5000 + b"\n\n"
    lines = b"data: " + b"y" * 600 + b"\n"
    endless = b"z" * 3_000_000 + b"\n\n"
    exact = b"data: " + b"e" * 1000 + b"\n\n"

    async def scenario() -> None:
        script = sends(big, lines, lines, b"\n", endless, exact, b"data: end\n\n", then=stalls)
        policy = RunnerPolicy(max_event_bytes=1000)
        async with FaultyServer(script) as server, running(server.spec, policy=policy) as rig:
            await rig.until(lambda: "end" in rig.intake.data)
        assert (["e" * 1000, "end"], 3) == (rig.intake.data, rig.intake.oversize)

    asyncio.run(scenario())


# --- how it fails ---


@pytest.mark.parametrize(
    ("script", "reason", "slow"),
    [
        (answers(401), "http_status", True),
        (answers(403), "http_status", True),
        (answers(404), "http_status", True),
        (answers(410), "http_status", True),
        (answers(500), "http_status", False),
        (answers(503), "http_status", False),
        (answers(302), "http_status", True),
        (answers(200, "Content-Type: text/html"), "bad_content_type", False),
        (answers(200), "bad_content_type", False),
        (
            answers(200, "Content-Type: text/event-stream", "Content-Encoding: gzip"),
            "bad_content_type",
            False,
        ),
        (sends(b"data: 1\n\n", then=ends), "server_restart", False),
        (sends(b"data: 1\n\n", then=resets), "network_error", False),
        (sends(b"data: 1\n\n", then=stalls), "idle_timeout", False),
    ],
)
def test_each_fault_has_its_reason(script: Script, reason: str, *, slow: bool) -> None:
    """A fault that only a person can repair waits for the longest delay, others for the first."""
    failed = asyncio.run(failure_of(script, IMPATIENT if reason == "idle_timeout" else None))
    assert (reason, 60.0 if slow else 1.0, 1) == (failed.reason, failed.retry_in, failed.attempt)
    assert failed.error


def test_a_server_that_never_answers_is_idle() -> None:
    async def silent(_: Request, writer: asyncio.StreamWriter) -> None:
        await stalls(writer)

    async def endless_head(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X")
            await writer.drain()
            await asyncio.sleep(0.05)

    for script in (silent, endless_head):
        assert "idle_timeout" == asyncio.run(failure_of(script, IMPATIENT)).reason


def test_a_response_that_is_not_http_or_cut_short_is_a_network_error() -> None:
    async def garbage(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x01 nonsense\r\n\r\n")

    async def half_a_chunk(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(EVENT_STREAM + b"Transfer-Encoding: chunked\r\n\r\n20\r\ndata: 1\n\n")

    for script in (garbage, half_a_chunk):
        assert "network_error" == asyncio.run(failure_of(script)).reason


def test_a_refused_connection_is_a_network_error_and_an_unknown_name_is_dns() -> None:
    async def scenario(url: str) -> str:
        async with running(SourceSpec(name="east", url=url)) as rig:
            return (await rig.first(SseConnectionFailed)).reason

    assert "network_error" == asyncio.run(scenario(f"http://127.0.0.1:{free_port()}/"))
    assert "dns" == asyncio.run(scenario("http://no-such-host.invalid/"))


def test_retry_after_is_honoured_for_429_within_bounds() -> None:
    for asked, expected in (("7", 7.0), ("86400", 60.0)):
        failed = asyncio.run(failure_of(answers(429, f"Retry-After: {asked}")))
        assert ("http_status", expected) == (failed.reason, failed.retry_in)


def test_the_retry_field_sets_the_base_of_the_waits() -> None:
    async def scenario() -> None:
        script = sends(b"retry: 2500\n\n", then=ends)
        async with FaultyServer(script) as server, running(server.spec) as rig:
            await rig.first(SseConnectionFailed, 4)
        assert [2.5, 5, 10, 20] == [each.retry_in for each in rig.of(SseConnectionFailed)][:4]
        assert [2.5, 5, 10] == rig.clock.sleeps[:3]

    asyncio.run(scenario())


def test_204_ends_the_source_for_good() -> None:
    async def scenario() -> None:
        async with FaultyServer(answers(204)) as server, running(server.spec) as rig:
            await rig.first(EventSourceEnded)
            await asyncio.sleep(0.05)
            assert (1, []) == (len(server.requests), rig.clock.sleeps)
            assert ConnectionPhase.ENDED is rig.connection.state.phase
        assert [] == rig.of(SseConnectionFailed)

    asyncio.run(scenario())


# --- the idle watchdog ---


def test_comments_keep_a_connection_alive() -> None:
    """A comment now and then, within the read timeout: there is no idle timeout."""

    async def comments(writer: asyncio.StreamWriter) -> None:
        for _ in range(12):
            writer.write(b":\n\n")
            await asyncio.sleep(0.1)
        writer.write(b"data: end\n\n")

    async def scenario() -> None:
        policy = RunnerPolicy(read_timeout=0.8)
        script = sends(then=comments)
        async with FaultyServer(script) as server, running(server.spec, policy=policy) as rig:
            assert "server_restart" == (await rig.first(SseConnectionFailed)).reason
        assert ["end"] == rig.intake.data[:1]

    asyncio.run(scenario())


def test_a_slow_store_is_no_idle_server_and_stops_the_server() -> None:
    """While the intake does not return, the runner reads little ahead, and no timeout counts."""
    event = b"data: " + b"x" * 994 + b"\n\n"
    written = 0

    async def flood(writer: asyncio.StreamWriter) -> None:
        nonlocal written
        for _ in range(40):
            writer.write(event * 1000)
            await writer.drain()
            written += 1

    async def scenario() -> None:
        intake = MemoryIntake(gate=asyncio.Event())
        assert intake.gate is not None
        async with (
            FaultyServer(sends(then=flood)) as server,
            running(server.spec, policy=IMPATIENT, intake=intake) as rig,
        ):
            await asyncio.sleep(1.0)
            assert written < 40
            assert [] == rig.of(SseConnectionFailed)
            intake.gate.set()
            await rig.until(lambda: len(intake.items) >= 40_000)
        assert max(intake.batches) <= 2100

    asyncio.run(scenario())


# --- the loop ---


def test_one_failure_is_emitted_for_each_reconnect_and_one_close_for_each_connection() -> None:
    async def scenario() -> None:
        scripts = answers(500), sends(b"data: 1\n\n", then=ends), answers(503), sends(then=stalls)
        async with FaultyServer(*scripts) as server, running(server.spec) as rig:
            await rig.first(SseConnectionEstablished, 2)
        failed = rig.of(SseConnectionFailed)
        assert [1, 2, 3] == [each.attempt for each in failed]
        assert [1.0, 2.0, 4.0] == [each.retry_in for each in failed] == rig.clock.sleeps
        first, second = rig.of(SseConnectionEstablished)
        assert 0.0 == first.downtime
        assert 6.0 <= second.downtime
        assert ["", ""] == [each.error for each in rig.of(SseConnectionClosed)]
        assert 3 == rig.connection.state.reconnects
        c, w, k = ConnectionPhase.CONNECTING, ConnectionPhase.WAITING, ConnectionPhase.CONNECTED
        assert [c, w, c, k, w, c, w, c, k] == [state.phase for state in rig.states]

    asyncio.run(scenario())


def test_the_row_of_failures_ends_only_after_a_good_minute() -> None:
    """A connection is good until its last byte: a silent minute at its end does not count."""

    async def scenario() -> None:
        release = asyncio.Event()

        async def one_more(writer: asyncio.StreamWriter) -> None:
            await release.wait()
            writer.write(b"data: 2\n\n")

        scripts = answers(500), answers(500), sends(b"data: 1\n\n", then=one_more), answers(500)
        async with FaultyServer(*scripts) as server, running(server.spec) as rig:
            await rig.until(lambda: ["1"] == rig.intake.data)
            rig.clock.jump(61.0)
            release.set()
            await rig.first(SseConnectionFailed, 4)
        assert [1, 2, 1, 2] == [each.attempt for each in rig.of(SseConnectionFailed)][:4]

    asyncio.run(scenario())


def test_an_outage_has_one_alert_and_its_end_another() -> None:
    async def scenario() -> None:
        release = asyncio.Event()

        async def one_more(writer: asyncio.StreamWriter) -> None:
            await release.wait()
            writer.write(b":\n")
            await stalls(writer)

        scripts = *[answers(500)] * 7, sends(b":\n", then=one_more)
        async with FaultyServer(*scripts) as server, running(server.spec) as rig:
            await rig.first(SseConnectionEstablished)
            assert [] == rig.of(EventSourceRecovered)
            rig.clock.jump(61.0)
            release.set()
            recovered = await rig.first(EventSourceRecovered)
        assert [5] == [each.failures for each in rig.of(EventSourceDegraded)]
        waits = sum(each.retry_in for each in rig.of(SseConnectionFailed))
        assert waits <= recovered.downtime < waits + 60

    asyncio.run(scenario())


def test_a_status_that_needs_a_person_is_announced_at_once_and_once() -> None:
    async def scenario() -> None:
        async with FaultyServer(answers(401)) as server, running(server.spec) as rig:
            await rig.first(SseConnectionFailed, 8)
        (degraded,) = rig.of(EventSourceDegraded)
        assert 1 == degraded.failures
        assert "expected status 200, got 401; check its headers or token_file" == degraded.error

    asyncio.run(scenario())


def test_what_the_store_refused_is_asked_for_again_from_the_stored_cursor() -> None:
    async def scenario() -> None:
        intake = MemoryIntake(failures=2)
        script = sends(b"id: 1\ndata: a\n\nid: 2\ndata: b\n\n", then=stalls)
        async with (
            FaultyServer(script) as server,
            running(server.spec, intake=intake) as rig,
        ):
            await rig.until(lambda: "2" == intake.stored)
            assert 3 == len(server.requests)
            assert "last-event-id" not in server.requests[-1].headers
        assert ["a", "b"] == intake.data
        assert ["network_error"] * 2 == [each.reason for each in rig.of(SseConnectionFailed)]
        assert "StoreBusyError: locked" == rig.of(SseConnectionFailed)[0].error

    asyncio.run(scenario())


def test_what_the_store_refused_and_the_server_cannot_send_again_is_kept() -> None:
    """Events without ids come once: they are stored before the next dial."""

    async def scenario() -> None:
        intake = MemoryIntake(failures=3)
        scripts = sends(b"data: a\n\ndata: b\n\n", then=stalls), sends(b"data: c\n\n", then=stalls)
        async with (
            FaultyServer(*scripts) as server,
            running(server.spec, intake=intake) as rig,
        ):
            await rig.until(lambda: len(intake.items) == 3)
            assert 2 == len(server.requests)
        assert ["a", "b", "c"] == intake.data
        assert 3 == len(rig.of(SseConnectionFailed))

    asyncio.run(scenario())


def test_what_came_before_a_fault_is_stored_before_the_next_dial() -> None:
    async def scenario() -> None:
        body = b"id: 1\ndata: a\n\nid: 2\ndata: b\n\nid: 3\ndata: unfinished"
        scripts = sends(body, then=ends), sends(then=stalls)
        async with FaultyServer(*scripts) as server, running(server.spec) as rig:
            await rig.first(SseConnectionEstablished, 2)
            assert "2" == server.requests[1].headers["last-event-id"]
        assert ["a", "b"] == rig.intake.data

    asyncio.run(scenario())


def test_a_cancel_stops_in_every_state() -> None:
    """While connecting, connected, waiting for the store, and ended."""

    async def silent(_: Request, writer: asyncio.StreamWriter) -> None:
        await stalls(writer)

    async def scenario(script: Script, phase: ConnectionPhase) -> int:
        intake = MemoryIntake(gate=asyncio.Event())
        async with FaultyServer(script) as server, asyncio.timeout(30):
            async with running(server.spec, intake=intake) as rig:
                await rig.until(
                    lambda: bool(server.requests) and phase is rig.connection.state.phase
                )
            return len(rig.of(SseConnectionClosed))

    assert 0 == asyncio.run(scenario(silent, ConnectionPhase.CONNECTING))
    assert 1 == asyncio.run(scenario(sends(b"data: 1\n\n", then=stalls), ConnectionPhase.CONNECTED))
    assert 0 == asyncio.run(scenario(answers(204), ConnectionPhase.ENDED))


# --- secrets ---


def test_the_token_is_read_again_at_each_dial(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")

    async def scenario() -> None:
        async with FaultyServer(sends(then=ends)) as server:
            headers = {"authorization": "Basic old", "X-Tenant": "7"}
            spec = replace(server.spec, token_file=token, headers=headers)
            async with running(spec) as rig:
                await rig.first(SseConnectionFailed)
                token.write_text("second")
                await rig.until(
                    lambda: server.requests[-1].headers["authorization"] == "bearer second"
                )
            assert "bearer first" == server.requests[0].headers["authorization"]
            assert "7" == server.requests[0].headers["x-tenant"]

    asyncio.run(scenario())


@pytest.mark.parametrize("content", [None, b"", b"two\nlines", b"\xff"])
def test_a_token_that_cannot_be_used_is_a_failure_and_is_not_shown(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)

    async def scenario() -> None:
        async with FaultyServer(sends(then=stalls)) as server:
            async with running(replace(server.spec, token_file=path)) as rig:
                failed = await rig.first(SseConnectionFailed)
            assert [] == server.requests
            assert failed.error.startswith(f"cannot read token_file {path}: ")
            assert "lines" not in failed.error

    asyncio.run(scenario())
