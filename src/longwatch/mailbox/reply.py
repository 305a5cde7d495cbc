"""Sends a reply and settles the request, in one transaction where the store has transactions.

In one SQL store both happen or none: a worker that lost the lease sends no reply. In other stores
the reply is sent first, because a request that is settled without its reply is lost work. There a
reply may be sent twice, with the same request id.
"""

from __future__ import annotations

from typing import Any

from longwatch.engine.claim_source import Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.coroutines import AlreadySettled
from longwatch.mailbox.backend import mailbox_errors
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.records import NewMessage, new_id
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
    with mailbox_errors():
        context.settled = origin.database.write(
            lambda tx: _send_and_settle(tx, origin, destination, message, settlement)
        )
    return (
        AlreadySettled.by(settlement) if context.settled else settlement
    )  # after a lost lease the engine's settlement fails too, and the engine emits that


def _send_and_settle(
    tx: Transaction,
    origin: SqlBackend,
    destination: SqlBackend,
    message: NewMessage,
    settlement: Settlement,
) -> bool:
    [settled] = origin.settle([settlement], tx=tx)
    if settled:
        destination.put([message], tx=tx)
    return settled
