"""The spans of messages: one around a send, whose headers travel with the messages, and one around
the work on a message. Names and attributes are those of the messaging conventions of OpenTelemetry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from longwatch.core.tracing import AttributeValue, SpanKind, Tracer, Work
from longwatch.mailbox.headers import add_headers, decode_headers
from longwatch.mailbox.records import MessageRecord, NewMessage


def put_in_span(
    tracer: Tracer,
    mailbox: str,
    messages: Sequence[NewMessage],
    put: Callable[[Sequence[NewMessage]], list[str]],
) -> list[str]:
    """Call `put` inside a span, with messages that carry the headers of the span."""
    count = len(messages)
    facts = _facts("send", mailbox, {} if count == 1 else {"messaging.batch.message_count": count})
    work = Work(
        name=f"send {mailbox}",
        kind=SpanKind.PRODUCER,
        attributes=facts,
        parent=decode_headers(messages[0].headers),
    )
    with tracer.span(work) as span:
        added = span.headers()
        stored = put(
            [message._replace(headers=add_headers(message.headers, added)) for message in messages]
        )
        if count == 1:
            span.set({"messaging.message.id": stored[0]})
        return stored


def message_work(mailbox: str, record: MessageRecord) -> Work:
    """Describe the work on a message that was received. The send is its parent."""
    facts: dict[str, AttributeValue] = {
        "messaging.message.id": record.id,
        "messaging.message.body.size": len(record.body),
        "messaging.longwatch.message.delivery_count": record.deliveries,
    }
    return Work(
        name=f"process {mailbox}",
        kind=SpanKind.CONSUMER,
        attributes=_facts("process", mailbox, facts),
        parent=decode_headers(record.headers),
    )


def _facts(
    operation: str, mailbox: str, more: Mapping[str, AttributeValue]
) -> dict[str, AttributeValue]:
    return {
        "messaging.system": "longwatch",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": mailbox,
        **more,
    }
