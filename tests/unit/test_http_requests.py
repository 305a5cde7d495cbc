from __future__ import annotations

import http.client
import io
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.host.health_http import (
    BAD_REQUEST,
    JSON_TYPE,
    METRICS_TYPE,
    NOT_ALLOWED,
    NOT_FOUND,
    TEXT_TYPE,
    TOO_LARGE,
    HealthRequest,
    HealthResponse,
    parse_request,
    render_response,
)

LINE = b"GET /health HTTP/1.1"


def head(*headers: bytes, line: bytes = LINE) -> bytes:
    return b"\r\n".join((line, *headers))


def closes(*headers: bytes, line: bytes = LINE) -> bool:
    request = parse_request(head(*headers, line=line))
    assert request is not None
    return request.closes_connection


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        (b"GET /health HTTP/1.1", HealthRequest("GET", "/health", "", closes_connection=False)),
        (b"HEAD / HTTP/1.1", HealthRequest("HEAD", "/", "", closes_connection=False)),
        (b"GET /health HTTP/1.0", HealthRequest("GET", "/health", "", closes_connection=True)),
        (
            b"GET /health?verbose HTTP/1.1",
            HealthRequest("GET", "/health", "verbose", closes_connection=False),
        ),
        (
            b"GET /a?b?c=%20&d HTTP/1.1",
            HealthRequest("GET", "/a", "b?c=%20&d", closes_connection=False),
        ),
        (b"GET /health? HTTP/1.1", HealthRequest("GET", "/health", "", closes_connection=False)),
        (b"OPTIONS * HTTP/1.1", HealthRequest("OPTIONS", "*", "", closes_connection=False)),
        (
            b"PROPFIND //x/../y HTTP/1.1",
            HealthRequest("PROPFIND", "//x/../y", "", closes_connection=False),
        ),
        (
            b"GET /" + b"x" * 4095 + b" HTTP/1.1",
            HealthRequest("GET", "/" + "x" * 4095, "", closes_connection=False),
        ),
    ],
    ids=lambda value: value[:40].decode() if isinstance(value, bytes) else "",
)
def test_the_first_line_says_what_is_asked_for(line: bytes, request_: HealthRequest) -> None:
    assert request_ == parse_request(line)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"GET",
        b"GET /health",
        b"GET  /health HTTP/1.1",
        b" GET /health HTTP/1.1",
        b"GET /health HTTP/1.1 ",
        b"GET /he alth HTTP/1.1",
        b"get /health HTTP/1.1",
        b"G\x00T /health HTTP/1.1",
        b"GET /h\xc3\xa4 HTTP/1.1",
        b"GET /health\x7f HTTP/1.1",
        b"GET /health HTTP/2.0",
        b"GET /health HTTP/1.2",
        b"GET /health HTTP/1.1\n",
        b"GET /health\nHost: x HTTP/1.1",
        b"X" * 21 + b" / HTTP/1.1",
        b"GET /" + b"x" * 4096 + b" HTTP/1.1",
        b"PRI * HTTP/2.0",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"SSH-2.0-OpenSSH_9.2",
    ],
    ids=lambda line: repr(line[:30]),
)
def test_another_first_line_is_no_request(line: bytes) -> None:
    assert parse_request(line) is None


@pytest.mark.parametrize(
    "header", [b"Host: x", b"X-Empty:", b"x!#$%&'*+-.^_`|~1: \xff \t", b"Cookie: a=b; c=d:e"]
)
def test_a_header_has_a_name_a_colon_and_any_value(header: bytes) -> None:
    assert parse_request(head(header)) is not None


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"Host",
        b": x",
        b"Host : x",
        b" Host: x",
        b"\tfolded",
        b"H\xc3\xb6st: x",
        b"Host: x\ny",
        b"Host: x\x00",
        b"Host: x\ry",
    ],
    ids=repr,
)
def test_a_line_that_is_no_header_makes_it_no_request(header: bytes) -> None:
    assert parse_request(head(b"Accept: */*", header, b"Host: x")) is None


@given(noise=st.binary(max_size=200))
def test_noise_never_raises(noise: bytes) -> None:
    parse_request(noise)
    parse_request(head(noise))


@pytest.mark.parametrize(
    "headers",
    [
        [b"Connection: close"],
        [b"connection:CLOSE"],
        [b"Connection: TE, close"],
        [b"Connection: close", b"Connection: TE"],
        [b"Content-Length: 1"],
        [b"Content-Length: nonsense"],
        [b"Content-Length: 5", b"Content-Length: 0"],
        [b"content-length: 0", b"content-length: 5"],
        [b"Transfer-Encoding: chunked"],
    ],
    ids=repr,
)
def test_a_client_that_says_so_or_has_sent_a_body_is_closed(headers: list[bytes]) -> None:
    assert closes(*headers)


@pytest.mark.parametrize(
    "header",
    [b"Host: close", b"Connection: keep-alive", b"Content-Length: 0", b"Content-Length:0 "],
)
def test_any_other_client_of_http_1_1_is_kept(header: bytes) -> None:
    assert not closes(header)


def test_a_client_of_http_1_0_is_kept_only_if_it_asks() -> None:
    line = b"GET / HTTP/1.0"
    assert closes(line=line)
    assert not closes(b"Connection: Keep-Alive", line=line)


class _Received:
    """Enough of a socket for the client of the standard library."""

    def __init__(self, sent: bytes) -> None:
        self._sent = sent

    def makefile(self, *_: object) -> io.BytesIO:
        return io.BytesIO(self._sent)


def received(sent: bytes, *, method: str = "GET") -> tuple[http.client.HTTPResponse, bytes]:
    response = http.client.HTTPResponse(_Received(sent), method=method)  # type: ignore[arg-type]  # it only makes a file of it
    response.begin()
    body = response.read()
    response.close()
    return response, body


@given(
    body=st.binary(max_size=300),
    closes=st.booleans(),
    status=st.sampled_from([200, 400, 404, 405, 431, 503]),
)
def test_an_answer_is_http_that_others_understand(body: bytes, closes: bool, status: int) -> None:  # noqa: FBT001 - drawn
    response, read = received(
        render_response(HealthResponse(status, body, TEXT_TYPE), closes_connection=closes)
    )
    assert (status, HTTPStatus(status).phrase, body, closes) == (
        response.status,
        response.reason,
        read,
        response.will_close,
    )


def test_the_headers_of_an_answer() -> None:
    response, _ = received(render_response(HealthResponse(200, b"{}"), closes_connection=False))
    assert [
        ("Content-Type", "application/json"),
        ("Content-Length", "2"),
        ("Cache-Control", "no-store"),
    ] == response.getheaders()


@pytest.mark.parametrize(
    "answer",
    [
        BAD_REQUEST,
        TOO_LARGE,
        NOT_FOUND,
        NOT_ALLOWED,
        HealthResponse(200, b"", METRICS_TYPE),
        HealthResponse(503, b"no", TEXT_TYPE),
    ],
)
def test_a_head_alone_is_that_of_the_whole_answer(answer: HealthResponse) -> None:
    whole = render_response(answer, closes_connection=False)
    assert whole == render_response(answer, closes_connection=False, head_only=True) + answer.body
    assert (
        b""
        == received(
            render_response(answer, closes_connection=False, head_only=True), method="HEAD"
        )[1]
    )


@pytest.mark.parametrize(
    ("answer", "status"),
    [(BAD_REQUEST, 400), (TOO_LARGE, 431), (NOT_FOUND, 404), (NOT_ALLOWED, 405)],
    ids=["400", "431", "404", "405"],
)
def test_every_refusal_is_json(answer: HealthResponse, status: int) -> None:
    response, body = received(render_response(answer, closes_connection=True))
    assert (status, JSON_TYPE.decode(), True) == (
        response.status,
        response.getheader("Content-Type"),
        body.startswith(b'{"error": "'),
    )


def test_a_wrong_method_is_told_which_ones_there_are() -> None:
    assert "GET, HEAD" == received(render_response(NOT_ALLOWED, closes_connection=False))[
        0
    ].getheader("Allow")
