"""Mailboxes, messages and dead letters as JSON. The keys are API."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from longwatch.errors import SerializationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from longwatch.mailbox.records import DeadLetter, MailboxStats, MessageRecord

JsonObject = dict[str, Any]


def mailbox_json(name: str, stats: MailboxStats) -> JsonObject:
    return {"mailbox": name, **stats._asdict()}


def message_json(delivery: MessageRecord) -> JsonObject:
    from longwatch.mailbox.headers import decode_headers  # noqa: PLC0415 - help must not wait for what only commands need

    counters = {
        "deliveries": delivery.deliveries,
        "failures": delivery.failures,
        "crashes": delivery.crashes,
        "lost": delivery.lost,
        "releases": delivery.releases,
    }
    facts = {
        "id": delivery.id,
        "enqueued_at": utc(delivery.enqueued_at),
        **counters,
        "reply_to": delivery.reply_to,
        "headers": headers_json(decode_headers(delivery.headers)),
    }
    return facts | body_json(delivery.body)


def dead_letter_json(dead_letter: DeadLetter) -> JsonObject:
    """Everything but the body and the traceback."""
    facts = dead_letter._asdict()
    del facts["body"], facts["traceback"]
    return facts | {
        "died_at": utc(dead_letter.died_at),
        "enqueued_at": utc(dead_letter.enqueued_at),
        "headers": headers_json(dead_letter.headers),
    }


def headers_json(headers: Mapping[str, str]) -> JsonObject:
    """The headers with their secrets masked."""
    from longwatch.core.masking import mask_mapping  # noqa: PLC0415 - help must not wait for what only commands need

    return mask_mapping(headers)


def body_json(data: bytes) -> JsonObject:
    """The body as JSON. A body that is not JSON is null, and `raw` has its bytes in base64."""
    from longwatch.app.mailboxes import decode_body  # noqa: PLC0415 - help must not wait for what only commands need

    try:
        return {"body": decode_body(data), "raw": None}
    except SerializationError:
        return {"body": None, "raw": base64.b64encode(data).decode()}


def utc(moment: float) -> str:
    return (
        datetime.fromtimestamp(moment, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )
