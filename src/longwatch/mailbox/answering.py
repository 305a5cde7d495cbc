"""An answer and the settlement of what it answers, as close together as the store allows.

In one SQL store both are one transaction: whoever has lost the lease sends nothing, and who settles
has sent. Elsewhere the answer goes first, because a message that is gone without its answer would
be lost work; then it may come twice, with the same request id.
"""

from __future__ import annotations

from typing import Any

from longwatch.mailbox.backend import connecting
from longwatch.mailbox.letters import Letter, new_id
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.sql import SqlBackend
from longwatch.store.database import Transaction
from longwatch.work.context import WorkContext
from longwatch.work.pending import Settled
from longwatch.work.source import Settlement


def answer_and_settle(
    mailbox: Mailbox[Any],
    target: Mailbox[Any],
    body: Any,
    settlement: Settlement,
    context: WorkContext,
) -> Settlement | Settled:
    """Send `body` to the target; what is left to settle, or that it is settled."""
    here, there = mailbox.backend, target.backend
    if not (
        isinstance(here, SqlBackend) and isinstance(there, SqlBackend) and here.home == there.home
    ):
        target.send(body)
        return settlement
    letter = Letter(id=new_id(), body=target.codec.encode(body))
    with connecting():
        context.settled = here.database.write(lambda tx: _both(tx, here, there, letter, settlement))
    return (
        Settled(settlement.outcome) if context.settled else settlement
    )  # the engine is refused as well, and tells


def _both(
    tx: Transaction, here: SqlBackend, there: SqlBackend, letter: Letter, settlement: Settlement
) -> bool:
    [settled] = here.settle([settlement], tx=tx)
    if settled:
        there.put([letter], tx=tx)
    return settled
