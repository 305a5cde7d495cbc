"""What `--json` tells about mailboxes, messages and dead letters. The keys are API."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from longwatch.errors import SerializationError

if TYPE_CHECKING:
    from longwatch.mailbox.letters import DeadLetter, Delivery, Stats

Facts = dict[str, Any]


def of_mailbox(name: str, stats: Stats) -> Facts:
    return {"mailbox": name, **stats._asdict()}


def of_message(delivery: Delivery) -> Facts:
    counters = {
        "deliveries": delivery.deliveries,
        "failures": delivery.failures,
        "crashes": delivery.crashes,
    }
    facts = {
        "id": delivery.id,
        "enqueued_at": utc(delivery.enqueued_at),
        **counters,
        "reply_to": delivery.reply_to,
    }
    return facts | of_body(delivery.body)


def of_dead(letter: DeadLetter) -> Facts:
    """Everything but the body."""
    facts = letter._asdict()
    del facts["body"]
    return facts | {"died_at": utc(letter.died_at), "enqueued_at": utc(letter.enqueued_at)}


def of_body(data: bytes) -> Facts:
    """`body` is what the JSON says; for one that is not JSON it is null, and `raw` has the bytes
    in base64.
    """
    from longwatch.app.mailboxes import read_body  # noqa: PLC0415 - help must not wait for what only commands need

    try:
        return {"body": read_body(data), "raw": None}
    except SerializationError:
        return {"body": None, "raw": base64.b64encode(data).decode()}


def utc(moment: float) -> str:
    return (
        datetime.fromtimestamp(moment, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )
