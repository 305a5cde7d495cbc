"""A claimed message, which its receiver acknowledges, releases, rejects, extends or replies to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum, auto
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from longwatch.core.tracing import active as active_tracer
from longwatch.engine.claim_source import RowOutcome, Settlement
from longwatch.errors import (
    MessageFinalizedError,
    ReceiptHandleExpiredError,
    ReplyNotAvailableError,
)
from longwatch.mailbox import validation
from longwatch.mailbox.backend import mailbox_errors
from longwatch.mailbox.headers import decode_headers
from longwatch.mailbox.records import MessageRecord
from longwatch.mailbox.spans import message_work
from longwatch.store.claims import Claim

if TYPE_CHECKING:
    from longwatch.mailbox.mailbox import Mailbox

BodyT = TypeVar("BodyT")


class SettleResult(StrEnum):
    """The result of one settlement: `expired` means that the lease was lost."""

    SETTLED = auto()
    EXPIRED = auto()


class Message(Generic[BodyT]):
    """A message that its receiver has leased. Settling it after the lease was lost raises
    ReceiptHandleExpiredError and changes nothing.
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
        """How often the message was delivered, this delivery included."""
        return self._record.deliveries

    @property
    def failures(self) -> int:
        """How often the work on it has failed before, which sets the delay of a retry."""
        return self._record.failures

    @property
    def enqueued_at(self) -> datetime:
        return datetime.fromtimestamp(self._record.enqueued_at, UTC)

    @property
    def reply_to(self) -> str | None:
        return self._record.reply_to

    @property
    def headers(self) -> dict[str, str]:
        """The headers that the sender gave the message, and those of its trace."""
        return decode_headers(self._record.headers)

    @property
    def is_finalized(self) -> bool:
        """Whether the message was settled through this object."""
        return self._finalized

    def acknowledge(self) -> None:
        """Remove the message, because its work is done."""
        self._settle(Settlement(claim=self.receipt, outcome=RowOutcome.DONE))

    def nack(self, *, visibility_timeout: float = 0, reason: str | None = None) -> None:
        """Release the message, to be delivered again after the timeout. With a reason this counts
        as a failure. Without a reason it spends no budget.
        """
        delay = validation.validate_visibility(visibility_timeout)
        error = None if reason is None else validation.validate_reason(reason)
        outcome = RowOutcome.RELEASED if error is None else RowOutcome.FAILED
        self._settle(Settlement(claim=self.receipt, outcome=outcome, delay=delay, error=error))

    def reject(self, reason: str) -> None:
        """Dead-letter the message as `permanent`, with its history: no retry would succeed."""
        error = validation.validate_reason(reason)
        self._settle(
            Settlement(claim=self.receipt, outcome=RowOutcome.DEAD, reason="permanent", error=error)
        )

    def extend_visibility(self, seconds: float) -> None:
        """Extend the lease to `seconds` from now, never shortening it."""
        self._require_unsettled()
        lease_seconds = validation.validate_visibility(seconds)
        with mailbox_errors():
            extended = self._mailbox.backend.renew_one(self.receipt, lease_seconds=lease_seconds)
        if not extended:
            raise self._expired_error()

    def reply(self, body: Any) -> str:
        """Send a reply to the mailbox that `reply_to` names. Return its id."""
        self._require_unsettled()
        target = None if self.reply_to is None else self._mailbox.reply_mailbox(self.reply_to)
        if target is None or target.closed:
            raise ReplyNotAvailableError(
                f"message {self.id} names no open mailbox to reply to; send it with reply_to="
            )
        return target.send(body)

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Make the block the work on this message, in a trace. Does nothing while tracing is off.
        A loop does this by itself.
        """
        if (tracer := active_tracer()) is None:
            yield
        else:
            with tracer.span(message_work(self._mailbox.name, self._record)):
                yield

    def finalize(self) -> None:
        """Mark the message as settled. Settling, extending or replying later raises
        MessageFinalizedError.
        """
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
                f"message {self.id} was settled already; settle it once, and extend it or reply "
                f"to it before"
            )

    def _expired_error(self) -> ReceiptHandleExpiredError:
        return ReceiptHandleExpiredError(
            f"the lease of message {self.id} was lost and nothing was changed; use a longer "
            f"visibility_timeout, or call extend_visibility() before it ends"
        )
