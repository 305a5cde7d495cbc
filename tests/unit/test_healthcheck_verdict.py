from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.supervisor.healthcheck import verdict

HEALTHY = b'{"status": "healthy"}'


def answer(body: bytes, *, status: str = "200 OK", headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 " + status.encode() + b"\r\nContent-Type: application/json\r\n" + headers + b"\r\n" + body


def length(number: object) -> bytes:
    return f"Content-Length: {number}\r\n".encode()


@pytest.mark.parametrize(
    "good",
    [
        answer(HEALTHY),
        answer(HEALTHY, headers=length(len(HEALTHY))),
        answer(HEALTHY, headers=b"content-length :  21  \r\n"),
        answer(b' {"uptime": 3, "status": "healthy"}\n'),
        answer(HEALTHY, headers=b"Content-Length: soon\r\n"),
        b"HTTP/1.0 200 \r\n\r\n" + HEALTHY,
        b"HTTP/1.0 200\r\n\r\n" + HEALTHY,
        b"HTTP/1.1 200\r\nServer: terse\r\n\r\n" + HEALTHY,
        answer(HEALTHY + b"HTTP/1.1 408 Request Timeout", headers=length(21)),
    ],
)
def test_status_200_and_json_that_says_healthy_is_healthy(good: bytes) -> None:
    assert None is verdict(good)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"", "not an HTTP answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: x\r\n", "not an HTTP answer"),
        (b"220 mail.example ESMTP\r\n\r\n", "not an HTTP answer"),
        (b"\r\n\r\n" + HEALTHY, "not an HTTP answer"),
        (answer(HEALTHY, status="2OO OK"), "not an HTTP answer"),
        (answer(HEALTHY, status="2000 OK"), "not an HTTP answer"),
        (answer(HEALTHY, status="503 Service Unavailable"), "status 503"),
        (answer(HEALTHY, status="204 No Content"), "status 204"),
        (answer(HEALTHY, status="302 Found"), "status 302"),
        (answer(HEALTHY, headers=length(22)), "the answer was cut short"),
        (answer(HEALTHY[:-1]), "the body is not JSON"),
        (answer(b""), "the body is not JSON"),
        (answer(b"healthy"), "the body is not JSON"),
        (answer(b"\xff\xfe\xfa"), "the body is not JSON"),
        (answer(b'"healthy"'), '"status" is null, not "healthy"'),
        (answer(b'[{"status": "healthy"}]'), '"status" is null, not "healthy"'),
        (answer(b"{}"), '"status" is null, not "healthy"'),
        (answer(b'{"status": "Healthy"}'), '"status" is "Healthy", not "healthy"'),
        (answer(b'{"status": true}'), '"status" is true, not "healthy"'),
        (answer(b'{"status": ["healthy"]}'), '"status" is ["healthy"], not "healthy"'),
    ],
)
def test_anything_else_is_a_failure_with_its_reason(bad: bytes, reason: str) -> None:
    assert reason == verdict(bad)


def test_a_long_status_is_told_short() -> None:
    told = verdict(answer(json.dumps({"status": "x" * 5000}).encode()))
    assert told is not None
    assert 70 > len(told)


@pytest.mark.parametrize(
    "nasty",
    [
        answer(b"[" * 60_000),
        answer(b'{"status":' * 10_000),
        answer(b"9" * 10_000),
        answer(HEALTHY, status="2" * 10_000),
        answer(HEALTHY, headers=length("9" * 10_000)),
    ],
)
def test_an_answer_made_to_harm_the_reader_is_a_failure_like_any_other(nasty: bytes) -> None:
    assert isinstance(verdict(nasty), str)


@given(noise=st.binary(max_size=200))
def test_noise_is_never_healthy_and_never_raises(noise: bytes) -> None:
    assert isinstance(verdict(noise), str)
    assert isinstance(verdict(answer(noise)), str)
