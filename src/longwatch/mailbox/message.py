"""One delivery of one message, and what can be done with it."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum, auto
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from longwatch.errors import (
    MessageFinalizedError,
    ReceiptHandleExpiredError,
    ReplyNotAvailableError,
)
from longwatch.mailbox import bounds
from longwatch.mailbox.backend import connecting
from longwatch.mailbox.letters import Delivery
from longwatch.store.claims import Claim
from longwatch.work.source import Outcome, Settlement

if TYPE_CHECKING:
    from longwatch.mailbox.mailbox import Mailbox

BodyT = TypeVar("BodyT")


class Verdict(StrEnum):
    """How one settlement of several went."""

    SETTLED = auto()
    EXPIRED = auto()


class Message(Generic[BodyT]):
    """A delivery: it is yours until its lease ends. Settling it with a receipt that is stale
    raises and changes nothing.
    """

    __slots__ = ("_delivery", "_finalized", "_mailbox", "body", "receipt")

    def __init__(
        self, mailbox: Mailbox[BodyT], receipt: Claim, delivery: Delivery, body: BodyT
    ) -> None:
        self.body = body
        self.receipt = receipt
        self._mailbox = mailbox
        self._delivery = delivery
        self._finalized = False

    @property
    def id(self) -> str:
        return self._delivery.id

    @property
    def delivery_count(self) -> int:
        """1 for the first delivery."""
        return self._delivery.deliveries

    @property
    def failures(self) -> int:
        """How often the work on it has failed before: what a retry is spaced by."""
        return self._delivery.failures

    @property
    def enqueued_at(self) -> datetime:
        return datetime.fromtimestamp(self._delivery.enqueued_at, UTC)

    @property
    def reply_to(self) -> str | None:
        return self._delivery.reply_to

    @property
    def is_finalized(self) -> bool:
        """Whether it was acknowledged or given back through this object."""
        return self._finalized

    def acknowledge(self) -> None:
        """It is done: remove it."""
        self._settle(Settlement(claim=self.receipt, outcome=Outcome.DONE))

    def nack(self, *, visibility_timeout: float = 0, reason: str | None = None) -> None:
        """Give it back, to be delivered again after the timeout. With a reason that is a
        failure, without one nobody's fault.
        """
        delay = bounds.check_visibility(visibility_timeout)
        error = None if reason is None else bounds.check_reason(reason)
        outcome = Outcome.BACK if error is None else Outcome.FAILED
        self._settle(Settlement(claim=self.receipt, outcome=outcome, delay=delay, error=error))

    def reject(self, reason: str) -> None:
        """It will never succeed: to the dead letters with it, as `permanent`, with its history."""
        error = bounds.check_reason(reason)
        self._settle(
            Settlement(claim=self.receipt, outcome=Outcome.DEAD, reason="permanent", error=error)
        )

    def extend_visibility(self, seconds: float) -> None:
        """Keep it for at least so long from now; a lease that lasts longer already stays as it
        is.
        """
        self._require_open()
        duration = bounds.check_visibility(seconds)
        with connecting():
            extended = self._mailbox.backend.extend(self.receipt, duration=duration)
        if not extended:
            raise self._expired()

    def reply(self, body: Any) -> str:
        """Send an answer to where the message says; its id."""
        self._require_open()
        target = None if self.reply_to is None else self._mailbox.route(self.reply_to)
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
        self._require_open()
        if not self._mailbox.settle_one(settlement):
            raise self._expired()
        self.finalize()

    def _require_open(self) -> None:
        if self._finalized:
            raise MessageFinalizedError(
                f"message {self.id} was settled already; receive it again to do more"
            )

    def _expired(self) -> ReceiptHandleExpiredError:
        return ReceiptHandleExpiredError(
            f"the lease of message {self.id} was lost, nothing was changed; use a longer "
            f"visibility_timeout, or extend it in time"
        )
