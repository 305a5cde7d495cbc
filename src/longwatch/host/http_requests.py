"""HTTP/1.1 as far as a health endpoint needs it: the head of a request, and an answer. Pure:
bytes in, bytes out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus

LONGEST_HEAD = 8192
_LINE = re.compile(rb"([A-Z]{1,20}) ([\x21-\x7e]{1,4096}) HTTP/1\.([01])")
_HEADER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\x00\r\n]*")

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
METRICS = b"text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request. `closes`: nothing more is read from this client, because it says so
    or has sent a body.
    """

    method: str
    path: str
    query: str
    closes: bool


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    kind: bytes = JSON
    more: bytes = b""
    """Further header lines, each with its end."""


BAD_REQUEST = Answer(HTTPStatus.BAD_REQUEST, b'{"error": "bad request"}')
TOO_LARGE = Answer(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, b'{"error": "request header too large"}'
)
NOT_FOUND = Answer(HTTPStatus.NOT_FOUND, b'{"error": "not found"}')
NOT_ALLOWED = Answer(
    HTTPStatus.METHOD_NOT_ALLOWED, b'{"error": "method not allowed"}', more=b"Allow: GET, HEAD\r\n"
)


def parse(head: bytes) -> Request | None:
    """The request of a head without its empty line; None if it is none."""
    first, *lines = head.split(b"\r\n")
    matched = _LINE.fullmatch(first)
    if matched is None or not all(map(_HEADER.fullmatch, lines)):
        return None
    method, target, minor = matched.groups()
    path, _, query = target.decode("ascii").partition("?")
    return Request(method.decode("ascii"), path, query, closes=_closes(lines, is_old=minor == b"0"))


def _closes(lines: list[bytes], *, is_old: bool) -> bool:
    fields = [
        (name.lower(), value.strip().lower())
        for name, _, value in (line.partition(b":") for line in lines)
    ]
    said = b",".join(value for name, value in fields if name == b"connection")
    has_body = any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in fields
    )
    return has_body or b"close" in said or (is_old and b"keep-alive" not in said)


def render(answer: Answer, *, closes: bool, head_only: bool = False) -> bytes:
    """The whole answer, to be sent in one write."""
    status = HTTPStatus(answer.status)
    return b"".join(
        (
            f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode(),
            b"Content-Type: " + answer.kind + b"\r\n",
            f"Content-Length: {len(answer.body)}\r\n".encode(),
            b"Cache-Control: no-store\r\n",
            answer.more,
            b"Connection: close\r\n\r\n" if closes else b"\r\n",
            b"" if head_only else answer.body,
        )
    )
