"""An answer and the settlement of what it answers, as close together as the store allows.

In one SQL store both are one transaction: whoever has lost the lease sends nothing, and who settles
has sent. Elsewhere the answer goes first, because a message that is gone without its answer would
be lost work; then it may come twice, with the same request id.
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
    """Send `body` to the target; what is left to settle, or that it is settled."""
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
    )  # the engine is refused as well, and emits that


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
