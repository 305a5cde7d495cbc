"""The headers of a message: short texts by name, stored beside its body.

Headers describe the message to programs that do not know its body: the trace that it belongs to
(`core/tracing.py`), its tenant, its schema. They stay with the message through every retry, as a
dead letter and when it is replayed. A reply does not inherit them.

A backend stores them as one JSON object, null if there are none. So a message without headers costs
nothing, and every message of an older version has none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from longwatch.core.sanitize import is_storable
from longwatch.errors import InvalidParameterError

MAX_HEADERS_BYTES = 8 << 10
"""Bytes of all headers of a message as JSON."""
MAX_HEADER_NAME_LENGTH = 200
_NAME_PATTERN = re.compile(rf"[a-z0-9!#$%&'*+.^_`|~-]{{1,{MAX_HEADER_NAME_LENGTH}}}")
_DECODER = msgspec.json.Decoder(dict[str, str])


def encode_headers(headers: Mapping[str, str] | None) -> str | None:
    """Encode headers as JSON; None if there are none. Raises InvalidParameterError for a name or a
    value that is not allowed, and for more than 8 KiB.
    """
    if not headers:
        if headers is None or isinstance(headers, Mapping):
            return None
        raise _not_a_mapping(headers)
    if not isinstance(headers, Mapping):
        raise _not_a_mapping(headers)
    for name, value in headers.items():
        _validate_header(name, value)
    encoded = msgspec.json.encode(dict(headers))
    if len(encoded) > MAX_HEADERS_BYTES:
        raise InvalidParameterError(
            f"the headers of a message have at most {MAX_HEADERS_BYTES} bytes as JSON, not "
            f"{len(encoded)}; put large values into the body"
        )
    return encoded.decode()


def decode_headers(encoded: str | None) -> dict[str, str]:
    """Decode stored headers. Headers that another program has damaged count as none, because the
    message can be handled without them.
    """
    if encoded is None:
        return {}
    try:
        return _DECODER.decode(encoded)
    except msgspec.MsgspecError:
        return {}


def add_headers(encoded: str | None, added: Mapping[str, str]) -> str | None:
    """Add the headers of a trace to encoded ones, in order, as long as they fit. They replace those
    of another trace, as in a message that is sent on with the headers it was received with. A
    tracestate belongs to its traceparent, so that of another trace is removed.
    """
    headers = decode_headers(encoded)
    if added.get("traceparent", headers.get("traceparent")) != headers.get("traceparent"):
        headers.pop("tracestate", None)
    for name, value in added.items():
        wider = {**headers, name: value}
        if is_storable(value) and len(msgspec.json.encode(wider)) <= MAX_HEADERS_BYTES:
            headers = wider
    return msgspec.json.encode(headers).decode() if headers else None


def _validate_header(name: Any, value: Any) -> None:
    if not isinstance(name, str) or not _NAME_PATTERN.fullmatch(name):
        raise InvalidParameterError(
            f"the name of a header has 1 to {MAX_HEADER_NAME_LENGTH} lower-case letters, digits or "
            f"!#$%&'*+.^_`|~- ; got {ascii(name)[:100]}"
        )
    if not isinstance(value, str) or not is_storable(value):
        raise InvalidParameterError(
            f"the value of header {name!r} must be text without zero bytes or lone surrogates, not "
            f"{ascii(value)[:100]}; pass numbers as str(…), and other data in the body"
        )


def _not_a_mapping(headers: Any) -> InvalidParameterError:
    return InvalidParameterError(
        f"headers must be a mapping of names to texts, such as {{'tenant': 'acme'}}, not of type "
        f"{type(headers).__name__}"
    )
