"""Records the spans of a test with the SDK of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from longwatch.observe import tracing
from polling import eventually


class SpanRecorder:
    """The spans that ended, in the order of their ends."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only span of this name, which may be about to end."""
        assert eventually(lambda: name in self.names), self.names
        [span] = self.named(name)
        return span


@contextmanager
def recording() -> Iterator[SpanRecorder]:
    """Tracing is on inside the block."""
    recorder = SpanRecorder()
    tracing.install(recorder.provider)
    try:
        yield recorder
    finally:
        tracing.uninstall()
        recorder.provider.shutdown()


def traceparent(span: ReadableSpan) -> str:
    """The header that makes this span the parent."""
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def is_child(child: ReadableSpan, parent: ReadableSpan) -> bool:
    context = parent.get_span_context()
    return (
        child.parent is not None
        and context is not None
        and ((child.parent.trace_id, child.parent.span_id) == (context.trace_id, context.span_id))
    )


def facts(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})
