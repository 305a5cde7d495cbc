"""Reads the JSON of a stream event.

    severity    required: a word or a number (`severity.py`)
    resource    required: what the event is about, a text or an object
    cluster     the name of the source where it is left out
    faultId     names the fault; events with the same one repeat each other
    faultType   with `resource` it names the fault where there is no faultId
    context, timestamp, and every other field: kept unchanged

The text of an event is stored unchanged, so nothing of it gets lost. Reading never raises: a text
that is not a stream event gives the reason instead. Depth and size are limited, because agents in
any language parse the same text.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from longwatch.core.sanitize import is_storable, printable, sanitize
from longwatch.runner.policy import Severity
from longwatch.runner.severity import parse_severity

MAX_DEPTH = 64
"""The deepest nesting of arrays and objects."""
HASH_BYTES = 16
MAX_REASON_CHARS = 200
_OPENERS_OR_TEXT = re.compile(r'"(?:[^"\\]++|\\.)*+"|[\[{]|[\]}]', re.DOTALL)
"""Possessive, so that a text of megabytes needs no memory for backtracking."""
_ODD_NUMBER = re.compile(rb"[0-9][eE][+-]?[0-9]{3}|[0-9]{300}")
"""Matches a number that may be out of range, because fields that are not read are not checked
otherwise.
"""


class _EventFields(msgspec.Struct, gc=False):
    """The fields that the runner reads."""

    severity: Any
    resource: Any
    cluster: Any = None
    fault_id: Any = msgspec.field(default=None, name="faultId")
    fault_type: Any = msgspec.field(default=None, name="faultType")


class StreamEvent(NamedTuple):
    """One parsed item of a stream. `problem`: why it is not a stream event; empty if it is one."""

    data: str
    data_hash: bytes
    severity: Severity
    fault_key: str | None = None
    problem: str = ""
    is_oversize: bool = False


_DECODER = msgspec.json.Decoder(_EventFields)
_DOCUMENT_DECODER = msgspec.json.Decoder(dict[str, Any])
_SEVERITY_TYPES, _RESOURCE_TYPES = (str, int), (str, dict)
_CANONICAL = msgspec.json.Encoder(order="deterministic")


def parse_event(data: str, *, max_bytes: int) -> StreamEvent:
    """Read one item of a stream. Does not raise."""
    try:
        raw = data.encode()
    except UnicodeEncodeError:
        return _malformed(data, "it has lone surrogates, which UTF-8 cannot encode")
    if len(raw) > max_bytes:
        return _oversize(data, raw, max_bytes)
    data_hash = blake2b(raw, digest_size=HASH_BYTES).digest()
    try:
        fields = _DECODER.decode(raw)
        if _ODD_NUMBER.search(raw):
            _DOCUMENT_DECODER.decode(raw)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        return _malformed(data, str(error))
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and _is_too_deep(data):
        return _malformed(data, f"it is nested deeper than {MAX_DEPTH}")
    if problem := _find_problem(fields):
        return _malformed(data, problem)
    return StreamEvent(data, data_hash, parse_severity(fields.severity), _fault_key(fields))


def event_document(data: str, *, source: str) -> dict[str, Any]:
    """Return a stored event as agents get it: all its fields, and `cluster` filled in."""
    document = _DOCUMENT_DECODER.decode(data)
    if not document.get("cluster"):
        document["cluster"] = source
    return document


def _find_problem(fields: _EventFields) -> str:
    severity, resource = fields.severity, fields.resource
    if type(severity) not in _SEVERITY_TYPES or severity == "":
        return f"expected a word or a number as `severity`, got {_shown(severity)}"
    if type(resource) not in _RESOURCE_TYPES or not resource:
        return f"expected a text or an object as `resource`, got {_shown(resource)}"
    return ""


def _is_too_deep(data: str) -> bool:
    depth = 0
    for match in _OPENERS_OR_TEXT.finditer(data):
        found = match[0]
        if found in "{[":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif found in "}]":
            depth -= 1
    return False


def _fault_key(fields: _EventFields) -> str:
    """Return a key that is equal for events that repeat each other. It is a hash, because that has
    a fixed size and every store accepts it.
    """
    fault_id = fields.fault_id
    if fault_id or fault_id == 0:
        named = f"id\n{_text(fault_id)}"
    else:
        named = f"{_text(fields.resource)}\n{_text(fields.fault_type)}"
    return blake2b(named.encode(errors="surrogatepass"), digest_size=HASH_BYTES).hexdigest()


def _text(value: Any) -> str:
    return value if type(value) is str else _CANONICAL.encode(value).decode()


def _shown(value: Any) -> str:
    return printable(repr(value), max_chars=MAX_REASON_CHARS // 2)


def _malformed(data: str, problem: str) -> StreamEvent:
    stored = data if is_storable(data) else sanitize(data, max_length=2 * len(data))
    data_hash = blake2b(data.encode(errors="surrogatepass"), digest_size=HASH_BYTES).digest()
    reason = printable(problem, max_chars=MAX_REASON_CHARS)
    return StreamEvent(stored, data_hash, Severity.OTHER, problem=reason)


def _oversize(data: str, raw: bytes, max_bytes: int) -> StreamEvent:
    """Return an event that is too large, with only the beginning of its text."""
    return StreamEvent(
        sanitize(data, max_length=MAX_REASON_CHARS),
        blake2b(raw, digest_size=HASH_BYTES).digest(),
        Severity.OTHER,
        problem=f"it has {len(raw)} bytes, and {max_bytes} are allowed",
        is_oversize=True,
    )
