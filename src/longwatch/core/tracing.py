"""The seam between the features and a tracing library: spans, and the headers that carry them.

Off by default: `active()` is None, and every caller tests that first. So without tracing a message
costs one comparison, and no tracing library is imported. `observe/tracing.py` has the tracer that
writes to OpenTelemetry. Only this module is known to the features.

Where spans are, and how one trace goes through several processes

    work              span                     parent
    Mailbox.send      send NAME                the caller's span
    a reply           send NAME                the span of the message that it answers
    a handled         process NAME             the span that sent it, by the headers of the message
    message
    Flow.start and    start GRAPH,             the caller's span
    changes           change GRAPH
    an attempt        compute GRAPH/NODE       the span that started or last changed the execution,
                                               by its row
    an agent run      run SOURCE               none: an event from outside begins a trace

    A node with isolation="process" and an agent get the headers of their span in the variables of
    `environment`: TRACEPARENT, TRACESTATE, BAGGAGE. In the child of an isolated node the span is
    also the current one.

Invariants
    1. Tracing changes no work: a tracer never raises, and headers that are garbage mean no parent.
    2. A span is current in the thread that opened it, and in the coroutines that it starts.
    3. The parent of a message, an attempt or a run is read from the store. So it holds after a
       retry, a crash, a dead letter and its replay.

Left out: a span per settlement, per received batch and per renewal; the attempt that queued an
attempt as its parent (all attempts are beside each other below the start, ordered by time); links
between the attempts of one message.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Protocol

TRACE_HEADERS = ("traceparent", "tracestate", "baggage")
"""The headers that carry a span, by W3C Trace Context and W3C Baggage."""

AttributeValue = str | int | float | bool


class SpanKind(StrEnum):
    """The side of a message that a span is on."""

    PRODUCER = auto()
    CONSUMER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work that a span describes. `parent`: headers of the span before it. The span of a
    producer prefers the current span to them, that of a consumer prefers them.
    """

    name: str
    kind: SpanKind
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    parent: Mapping[str, str] = field(default_factory=dict)


class Span(Protocol):
    """An open span. No method raises."""

    def set(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Add attributes to the span."""

    def record_error(self, error: BaseException) -> None:
        """Add an exception with its traceback, and the status ERROR."""

    def fail(self, kind: str, text: str) -> None:
        """Give the span the status ERROR without an exception. An error recorded before stays."""

    def headers(self) -> dict[str, str]:
        """The headers from which another process continues this span."""


class Tracer(Protocol):
    """Makes spans. Thread-safe; no method raises."""

    import_path: str
    """`module:function` that switches the same tracing on in another process; empty: none."""

    def span(self, work: Work) -> AbstractContextManager[Span]:
        """Open a span, which is the current one inside the block. An exception that leaves the
        block is recorded.
        """

    def continued(self, headers: Mapping[str, str]) -> AbstractContextManager[object]:
        """Make the span of these headers, of another process, the current one inside the block."""

    def log_fields(self) -> dict[str, str]:
        """`trace_id` and `span_id` of the current span; empty without one."""


class _Installed:
    """The tracer of this process."""

    tracer: Tracer | None = None


def active() -> Tracer | None:
    """Return the tracer of this process; None while tracing is off."""
    return _Installed.tracer


def install(tracer: Tracer | None) -> None:
    """Switch tracing on with this tracer, or off with None."""
    _Installed.tracer = tracer


def environment(headers: Mapping[str, str]) -> dict[str, str]:
    """The variables by which a child process continues a span: TRACEPARENT and so on."""
    return {name.upper(): headers[name] for name in TRACE_HEADERS if name in headers}
