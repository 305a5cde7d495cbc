"""The HTTP/1.1 of a health endpoint: parses requests and builds the response of each path.

Pure: bytes in, bytes out. Every body ends with a newline, for clients on a terminal.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from http import HTTPStatus

from longwatch.core.health import Aspect, CheckResult, HealthReport

MAX_HEAD_BYTES = 8192
_REQUEST_LINE = re.compile(rb"([A-Z]{1,20}) ([\x21-\x7e]{1,4096}) HTTP/1\.([01])")
_HEADER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\x00\r\n]*")

JSON_TYPE = b"application/json"
TEXT_TYPE = b"text/plain; charset=utf-8"
METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class HealthRequest:
    """The head of a request.

    `closes_connection`: nothing more is read from this client, because it asked to close or sent a
    body.
    """

    method: str
    path: str
    query: str
    closes_connection: bool


@dataclass(frozen=True, slots=True)
class HealthResponse:
    status: int
    body: bytes
    content_type: bytes = JSON_TYPE
    extra_headers: bytes = b""
    """More header lines, each with its line end."""


BAD_REQUEST = HealthResponse(HTTPStatus.BAD_REQUEST, b'{"error": "bad request"}\n')
TOO_LARGE = HealthResponse(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, b'{"error": "request header too large"}\n'
)
NOT_FOUND = HealthResponse(HTTPStatus.NOT_FOUND, b'{"error": "not found"}\n')
NOT_ALLOWED = HealthResponse(
    HTTPStatus.METHOD_NOT_ALLOWED,
    b'{"error": "method not allowed"}\n',
    extra_headers=b"Allow: GET, HEAD\r\n",
)


def parse_request(head: bytes) -> HealthRequest | None:
    """Parse a request head without its final empty line; None if it is not valid."""
    first, *lines = head.split(b"\r\n")
    matched = _REQUEST_LINE.fullmatch(first)
    if matched is None or not all(map(_HEADER.fullmatch, lines)):
        return None
    method, target, minor = matched.groups()
    path, _, query = target.decode("ascii").partition("?")
    return HealthRequest(
        method.decode("ascii"),
        path,
        query,
        closes_connection=_closes_connection(lines, is_http_1_0=minor == b"0"),
    )


def _closes_connection(lines: list[bytes], *, is_http_1_0: bool) -> bool:
    fields = [
        (name.lower(), value.strip().lower())
        for name, _, value in (line.partition(b":") for line in lines)
    ]
    connection = b",".join(value for name, value in fields if name == b"connection")
    has_body = any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in fields
    )
    return has_body or b"close" in connection or (is_http_1_0 and b"keep-alive" not in connection)


def render_response(
    response: HealthResponse, *, closes_connection: bool, head_only: bool = False
) -> bytes:
    """Render the whole response, to be sent in one write."""
    status = HTTPStatus(response.status)
    return b"".join(
        (
            f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode(),
            b"Content-Type: " + response.content_type + b"\r\n",
            f"Content-Length: {len(response.body)}\r\n".encode(),
            b"Cache-Control: no-store\r\n",
            response.extra_headers,
            b"Connection: close\r\n\r\n" if closes_connection else b"\r\n",
            b"" if head_only else response.body,
        )
    )


ASPECT_BY_PATH = {
    "/health": Aspect.LIVE,
    "/health/live": Aspect.LIVE,
    "/livez": Aspect.LIVE,
    "/healthz": Aspect.LIVE,
    "/health/ready": Aspect.READY,
    "/readyz": Aspect.READY,
    "/health/startup": Aspect.STARTED,
    "/startupz": Aspect.STARTED,
}
METRICS_PATH = "/metrics"
_PLAIN_TEXT_WORDS = {"/livez": "OK", "/healthz": "OK", "/readyz": "Ready", "/startupz": "Started"}
_HEALTHY = HealthResponse(HTTPStatus.OK, b'{"status": "healthy"}\n')
_UNHEALTHY = HealthResponse(HTTPStatus.SERVICE_UNAVAILABLE, b'{"status": "unhealthy"}\n')


def response_for(path: str, report: HealthReport, *, verbose: bool) -> HealthResponse:
    """Render the report in the format of this path."""
    if path in _PLAIN_TEXT_WORDS:
        return _plain_text(_PLAIN_TEXT_WORDS[path], report, verbose=verbose)
    if not verbose:
        return _HEALTHY if report.ok else _UNHEALTHY
    body = {
        "status": "healthy" if report.ok else "unhealthy",
        "checks": [
            {"name": result.name, "ok": result.ok, "reason": result.reason.value}
            for result in report.results
        ],
    }
    return HealthResponse(_status(report), json.dumps(body).encode() + b"\n", JSON_TYPE)


def _plain_text(word: str, report: HealthReport, *, verbose: bool) -> HealthResponse:
    """Render the word, or the text of a healthy check in its place; else the failing checks in one
    line.
    """
    word = next((result.text for result in report.results if result.ok and result.text), word)
    if verbose:
        lines = [
            f"{'[+]' if result.ok else '[-]'} {result.name}: {_words(result)}"
            for result in report.results
        ]
        return _text(report, "\n".join([*lines, word if report.ok else "failed"]))
    return _text(report, word if report.ok else "; ".join(map(_describe, report.failing)))


def _describe(result: CheckResult) -> str:
    """Return the check and its reason, or one of them if they are the same word."""
    words = _words(result)
    return result.name if result.name == words else f"{result.name}: {words}"


def _words(result: CheckResult) -> str:
    return result.text or result.reason.value


def _text(report: HealthReport, text: str) -> HealthResponse:
    body = f"{text}\n".encode(errors="backslashreplace")
    return HealthResponse(_status(report), body, TEXT_TYPE)


def _status(report: HealthReport) -> HTTPStatus:
    return HTTPStatus.OK if report.ok else HTTPStatus.SERVICE_UNAVAILABLE
