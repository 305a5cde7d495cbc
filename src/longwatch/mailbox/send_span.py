"""The span around a send, whose headers travel with the messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from longwatch.core.tracing import SpanKind, Tracer, Work
from longwatch.mailbox.headers import add_headers
from longwatch.mailbox.records import NewMessage

SYSTEM = "longwatch"


def put_in_span(
    tracer: Tracer,
    mailbox: str,
    messages: Sequence[NewMessage],
    put: Callable[[Sequence[NewMessage]], list[str]],
) -> list[str]:
    """Call `put` inside a span, with messages that carry the headers of the span."""
    with tracer.span(_sending(mailbox, messages)) as span:
        added = span.headers()
        stored = put(
            [replace(message, headers=add_headers(message.headers, added)) for message in messages]
        )
        if len(messages) == 1:
            span.set({"messaging.message.id": stored[0]})
        return stored


def _sending(mailbox: str, messages: Sequence[NewMessage]) -> Work:
    batch = {} if len(messages) == 1 else {"messaging.batch.message_count": len(messages)}
    return Work(
        name=f"send {mailbox}",
        kind=SpanKind.PRODUCER,
        attributes={
            "messaging.system": SYSTEM,
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": mailbox,
            **batch,
        },
    )
