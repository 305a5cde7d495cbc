"""One delivery of one message, and what can be done with it."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum, auto
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from longwatch.engine.claim_source import RowOutcome, Settlement
from longwatch.errors import (
    MessageFinalizedError,
    ReceiptHandleExpiredError,
    ReplyNotAvailableError,
)
from longwatch.mailbox import validation
from longwatch.mailbox.backend import mailbox_errors
from longwatch.mailbox.records import MessageRecord
from longwatch.store.claims import Claim

if TYPE_CHECKING:
    from longwatch.mailbox.mailbox import Mailbox

BodyT = TypeVar("BodyT")


class SettleResult(StrEnum):
    """How one settlement of several went."""

    SETTLED = auto()
    EXPIRED = auto()


class Message(Generic[BodyT]):
    """A delivery: it is yours until its lease ends. Settling it with a receipt that is stale
    raises and changes nothing.
    """

    __slots__ = ("_finalized", "_mailbox", "_record", "body", "receipt")

    def __init__(
        self, mailbox: Mailbox[BodyT], receipt: Claim, record: MessageRecord, body: BodyT
    ) -> None:
        self.body = body
        self.receipt = receipt
        self._mailbox = mailbox
        self._record = record
        self._finalized = False

    @property
    def id(self) -> str:
        return self._record.id

    @property
    def delivery_count(self) -> int:
        """1 for the first delivery."""
        return self._record.deliveries

    @property
    def failures(self) -> int:
        """How often the work on it has failed before: what a retry is spaced by."""
        return self._record.failures

    @property
    def enqueued_at(self) -> datetime:
        return datetime.fromtimestamp(self._record.enqueued_at, UTC)

    @property
    def reply_to(self) -> str | None:
        return self._record.reply_to

    @property
    def is_finalized(self) -> bool:
        """Whether it was acknowledged or given back through this object."""
        return self._finalized

    def acknowledge(self) -> None:
        """It is done: remove it."""
        self._settle(Settlement(claim=self.receipt, outcome=RowOutcome.DONE))

    def nack(self, *, visibility_timeout: float = 0, reason: str | None = None) -> None:
        """Give it back, to be delivered again after the timeout. With a reason that is a
        failure, without one nobody's fault.
        """
        delay = validation.validate_visibility(visibility_timeout)
        error = None if reason is None else validation.validate_reason(reason)
        outcome = RowOutcome.RELEASED if error is None else RowOutcome.FAILED
        self._settle(Settlement(claim=self.receipt, outcome=outcome, delay=delay, error=error))

    def reject(self, reason: str) -> None:
        """It will never succeed: to the dead letters with it, as `permanent`, with its history."""
        error = validation.validate_reason(reason)
        self._settle(
            Settlement(claim=self.receipt, outcome=RowOutcome.DEAD, reason="permanent", error=error)
        )

    def extend_visibility(self, seconds: float) -> None:
        """Keep it for at least so long from now; a lease that lasts longer already stays as it
        is.
        """
        self._require_unsettled()
        lease_seconds = validation.validate_visibility(seconds)
        with mailbox_errors():
            extended = self._mailbox.backend.renew_one(self.receipt, lease_seconds=lease_seconds)
        if not extended:
            raise self._expired_error()

    def reply(self, body: Any) -> str:
        """Send an answer to where the message says; its id."""
        self._require_unsettled()
        target = None if self.reply_to is None else self._mailbox.reply_mailbox(self.reply_to)
        if target is None or target.closed:
            raise ReplyNotAvailableError(
                f"message {self.id} has nowhere to reply to; send it with reply_to="
            )
        return target.send(body)

    def finalize(self) -> None:
        """Nothing more can be done with this delivery."""
        self._finalized = True

    def __repr__(self) -> str:
        return f"<Message {self.id} of {self._mailbox.name!r}, delivery {self.delivery_count}>"

    def _settle(self, settlement: Settlement) -> None:
        self._require_unsettled()
        if not self._mailbox.settle_one(settlement):
            raise self._expired_error()
        self.finalize()

    def _require_unsettled(self) -> None:
        if self._finalized:
            raise MessageFinalizedError(
                f"message {self.id} was settled already; receive it again to do more"
            )

    def _expired_error(self) -> ReceiptHandleExpiredError:
        return ReceiptHandleExpiredError(
            f"the lease of message {self.id} was lost, nothing was changed; use a longer "
            f"visibility_timeout, or extend it in time"
        )
