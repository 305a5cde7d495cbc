"""The tracer that makes spans of OpenTelemetry; imported only when tracing is switched on.

An error of the library, of a span processor or of a propagator costs a span, never the work.
Headers are read and written by the propagator that is configured: by default W3C Trace Context and
W3C Baggage. Exceptions are recorded with their secrets masked.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from contextvars import Token
from types import TracebackType

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter, Setter
from opentelemetry.trace import INVALID_SPAN, Status, StatusCode, TracerProvider

from longwatch import __version__
from longwatch.core.clock import SystemClock
from longwatch.core.deadline import Deadline
from longwatch.core.error_text import describe_error, error_text
from longwatch.core.masking import mask_text
from longwatch.core.traceback_text import describe_traceback
from longwatch.core.tracing import AttributeValue, Span, SpanKind, Work
from longwatch.host.background_thread import BackgroundThread

_LOGGER = logging.getLogger("longwatch.observe.tracing")
_KINDS = {
    SpanKind.PRODUCER: trace.SpanKind.PRODUCER,
    SpanKind.CONSUMER: trace.SpanKind.CONSUMER,
}


class OpenTelemetryTracer:
    """A `core.tracing.Tracer`."""

    import_path = "longwatch.observe.tracing:install"

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("longwatch", __version__, provider)

    def span(self, work: Work) -> AbstractContextManager[Span]:
        return _SpanBlock(self._tracer, work)

    def continued(self, headers: Mapping[str, str]) -> AbstractContextManager[object]:
        return _AttachedContext(_extract(headers))

    def log_fields(self) -> dict[str, str]:
        context = trace.get_current_span().get_span_context()
        if not context.is_valid:
            return {}
        return {
            "trace_id": trace.format_trace_id(context.trace_id),
            "span_id": trace.format_span_id(context.span_id),
        }


class OpenTelemetrySpan:
    """A `core.tracing.Span`, with the context that has it as the current span."""

    def __init__(self, span: trace.Span, context: Context) -> None:
        self.span = span
        self.context = context
        self._has_failed = False

    def set(self, attributes: Mapping[str, AttributeValue]) -> None:
        with suppress(Exception):
            self.span.set_attributes(attributes)

    def record_error(self, error: BaseException) -> None:
        with suppress(Exception):
            self.span.add_event(
                "exception",
                {
                    "exception.type": _type_name(error),
                    "exception.message": error_text(error),
                    "exception.stacktrace": describe_traceback(error),
                },
            )
        self.fail(_type_name(error), describe_error(error))

    def fail(self, kind: str, text: str) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        with suppress(Exception):
            self.span.set_attribute("error.type", kind)
            self.span.set_status(Status(StatusCode.ERROR, mask_text(text)))

    def headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        with suppress(Exception):
            propagate.inject(headers, self.context, _LowerCaseSetter())
        return headers


class _AttachedContext:
    """Makes a context the current one inside a block."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._token: Token[Context] | None = None

    def __enter__(self) -> None:
        self._token = otel_context.attach(self._context)

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            otel_context.detach(self._token)


class _SpanBlock:
    """Opens a span for a block, and makes it the current one there."""

    def __init__(self, tracer: trace.Tracer, work: Work) -> None:
        self._tracer = tracer
        self._work = work

    def __enter__(self) -> OpenTelemetrySpan:
        self._span = self._start()
        self._attached = _AttachedContext(self._span.context)
        self._attached.__enter__()
        return self._span

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._span.record_error(error)
        self._attached.__exit__()
        try:
            self._span.span.end()
        except Exception:
            _LOGGER.debug("a span could not be ended", exc_info=True)

    def _start(self) -> OpenTelemetrySpan:
        """Start the span; one that is not recorded if that fails."""
        work, parent = self._work, otel_context.get_current()
        try:
            if work.parent and not (work.kind is SpanKind.PRODUCER and _has_current_span()):
                parent = _extract(work.parent)
            span = self._tracer.start_span(
                work.name,
                parent,
                kind=_KINDS[work.kind],
                attributes=work.attributes,
                record_exception=False,
                set_status_on_exception=False,
            )
        except Exception:
            _LOGGER.debug("a span could not be started", exc_info=True)
            span = INVALID_SPAN
        return OpenTelemetrySpan(span, trace.set_span_in_context(span, parent))


class _LowerCaseSetter(Setter[dict[str, str]]):
    """Writes headers under names that a message may have."""

    def set(self, carrier: dict[str, str], key: str, value: str) -> None:
        carrier[key.lower()] = value


class _LowerCaseGetter(Getter[Mapping[str, str]]):
    """Reads what `_LowerCaseSetter` has written."""

    def get(self, carrier: Mapping[str, str], key: str) -> list[str] | None:
        value = carrier.get(key.lower())
        return None if value is None else [value]

    def keys(self, carrier: Mapping[str, str]) -> list[str]:
        return list(carrier)


def _has_current_span() -> bool:
    return trace.get_current_span().get_span_context().is_valid


def _extract(headers: Mapping[str, str]) -> Context:
    """The context of these headers; the current one if they are garbage."""
    current = otel_context.get_current()
    try:
        return propagate.extract(headers, current, _LowerCaseGetter())
    except Exception:  # noqa: BLE001 - a propagator may be user code, and headers are foreign
        return current


def flush_provider(timeout: float) -> None:
    """Export the ended spans of the global provider, if it can. The SDK does not keep to the
    timeout while an exporter hangs, so it gets a thread of its own.
    """
    provider = trace.get_tracer_provider()
    force_flush = getattr(provider, "force_flush", None)
    if force_flush is None:
        return
    clock = SystemClock()
    flushing = BackgroundThread(lambda: force_flush(int(timeout * 1000)), name="trace-flush")
    flushing.start(inline_fallback=True)
    flushing.wait(clock, Deadline.after(timeout, clock))


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
