"""Sends a reply and settles the request, in one transaction where the store has transactions.

In one SQL store both happen or none: a worker that lost the lease sends no reply. In other stores
the reply is sent first, because a request that is settled without its reply is lost work. There a
reply may be sent twice, with the same request id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from longwatch.core.tracing import active as active_tracer
from longwatch.engine.claim_source import Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.coroutines import AlreadySettled
from longwatch.mailbox.backend import mailbox_errors
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.records import NewMessage, new_id
from longwatch.mailbox.spans import put_in_span
from longwatch.mailbox.sql import SqlBackend
from longwatch.store.database import Transaction


def reply_and_settle(
    mailbox: Mailbox[Any],
    target: Mailbox[Any],
    body: Any,
    settlement: Settlement,
    context: RowContext,
) -> Settlement | AlreadySettled:
    """Send `body` to the target. Return the settlement that is still to be done, or that it is
    done already.
    """
    origin, destination = mailbox.backend, target.backend
    if not (
        isinstance(origin, SqlBackend)
        and isinstance(destination, SqlBackend)
        and origin.store_identity == destination.store_identity
    ):
        target.send(body)
        return settlement
    message = NewMessage(id=new_id(), body=target.codec.encode(body))

    def send_and_settle(messages: Sequence[NewMessage]) -> list[str]:
        context.settled = origin.database.write(
            lambda tx: _send_and_settle(tx, origin, destination, messages, settlement)
        )
        return [message.id]

    with mailbox_errors():
        if (tracer := active_tracer()) is None:
            send_and_settle([message])
        else:
            put_in_span(tracer, target.name, [message], send_and_settle)
    return (
        AlreadySettled.by(settlement) if context.settled else settlement
    )  # after a lost lease the engine's settlement fails too, and the engine emits that


def _send_and_settle(
    tx: Transaction,
    origin: SqlBackend,
    destination: SqlBackend,
    messages: Sequence[NewMessage],
    settlement: Settlement,
) -> bool:
    [settled] = origin.settle([settlement], tx=tx)
    if settled:
        destination.put(messages, tx=tx)
    return settled
