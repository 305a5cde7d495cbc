"""The public mailbox: a named queue with leases and at-least-once delivery.

Every delivery has a new receipt. Settling with the receipt of a lost lease changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Generic, Self, TypeVar

from longwatch.core.cancel import CancelToken
from longwatch.core.clock import Clock, SystemClock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.core.tracing import active as active_tracer
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.errors import (
    InvalidParameterError,
    MailboxClosedError,
    SerializationError,
    UnsupportedError,
)
from longwatch.mailbox import validation
from longwatch.mailbox.backend import Backend, mailbox_errors
from longwatch.mailbox.dead_letters import DeadLetters
from longwatch.mailbox.headers import encode_headers
from longwatch.mailbox.message import Message, SettleResult
from longwatch.mailbox.records import MailboxStats, MessageRecord, NewMessage, new_id
from longwatch.mailbox.spans import put_in_span
from longwatch.store.json_codec import Codec

BodyT = TypeVar("BodyT")

_SWEEP_SECONDS = 0.5
"""Seconds between two sweeps for dead owners and ended leases while a receiver waits."""
_POLL_SECONDS = 1.0
"""Seconds between two polls for messages, because a notification may get lost."""


class Mailbox(Generic[BodyT]):
    """Sends and receives the messages of one named queue. Thread-safe.

    The constructor opens nothing. After a fork the child opens its own connections. `max_failures`,
    `max_crashes` and `max_size` belong to the backend. `router` opens the mailbox that a `reply_to`
    names.
    """

    def __init__(
        self,
        name: str,
        backend: Backend,
        *,
        codec: Codec[BodyT] | None = None,
        clock: Clock | None = None,
        router: Callable[[str], Mailbox[Any]] | None = None,
    ) -> None:
        self.name = validation.validate_name(name)
        self.backend = backend
        self.codec: Codec[BodyT] = codec or Codec()
        self.clock = clock or SystemClock()
        self.dead_letters = DeadLetters(name, backend)
        self._router = router
        self._closed = Wakeup()
        self._swept_at = -_SWEEP_SECONDS

    # --- sending ---

    def send(  # noqa: PLR0913 - the contract
        self,
        body: BodyT,
        *,
        reply_to: Mailbox[Any] | str | None = None,
        delay_seconds: float = 0,
        expires_in: float | None = None,
        keep_expired: bool = False,
        dedupe_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        tx: Any = None,
    ) -> str:
        """Store a message durably and return its id. If a message with the same `dedupe_key` is
        still queued or leased, return its id instead.

        A message that no worker claims within `expires_in` seconds is counted and removed. With
        `keep_expired` it becomes a dead letter. `headers` are short texts by lower-case name, at
        most 8 KiB together, which the message keeps through retries and as a dead letter.
        """
        [stored] = self.send_many(
            [body],
            reply_to=reply_to,
            delay_seconds=delay_seconds,
            expires_in=expires_in,
            keep_expired=keep_expired,
            dedupe_keys=[dedupe_key],
            headers=headers,
            tx=tx,
        )
        return stored

    def send_many(  # noqa: PLR0913 - the contract
        self,
        bodies: Iterable[BodyT],
        *,
        reply_to: Mailbox[Any] | str | None = None,
        delay_seconds: float = 0,
        expires_in: float | None = None,
        keep_expired: bool = False,
        dedupe_keys: Sequence[str | None] | None = None,
        headers: Mapping[str, str] | None = None,
        tx: Any = None,
    ) -> list[str]:
        """Store several messages in one transaction, all or none. Return their ids. Each has the
        same `headers`.
        """
        self._require_open()
        delay = validation.validate_delay(delay_seconds)
        expiry = validation.validate_expiry(expires_in)
        reply_name = self._reply_name(reply_to)
        encoded_headers = encode_headers(headers)
        encoded = [self.codec.encode(body) for body in bodies]
        keys = (
            [None] * len(encoded)
            if dedupe_keys is None
            else validation.validate_dedupe_keys(dedupe_keys, count=len(encoded))
        )
        messages = [
            NewMessage(
                id=new_id(),
                body=data,
                delay=delay,
                expires_in=expiry,
                keep_expired=keep_expired,
                dedupe_key=key,
                reply_to=reply_name,
                headers=encoded_headers,
            )
            for data, key in zip(encoded, keys, strict=True)
        ]
        return self._put(messages, tx) if messages else []

    # --- receiving ---

    def receive(
        self,
        *,
        max_messages: int = 1,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 0,
        cancel: CancelToken | None = None,
    ) -> list[Message[BodyT]]:
        """Lease up to `max_messages` messages as soon as there is at least one. Blocks for at most
        `wait_time_seconds`. Returns `[]` after that, or when the mailbox is closed or `cancel` set.
        """
        limit = validation.validate_max_messages(max_messages)
        lease_seconds = validation.validate_visibility(visibility_timeout)
        deadline = Deadline.after(validation.validate_wait(wait_time_seconds), self.clock)
        self._require_open()
        with self._subscribed(cancel) as wakeup:
            while not self._should_stop(wakeup, cancel):
                if messages := self._claim_or_sweep(limit, lease_seconds):
                    return messages
                if deadline.expired:
                    return []
                self.clock.wait(wakeup, self._wait_seconds(deadline))
        return []

    def acknowledge_many(
        self, messages: Iterable[Message[Any]], tx: Any = None
    ) -> list[SettleResult]:
        """Acknowledge several messages at once. Return `settled` or `expired` for each.

        With `tx` the result holds once the transaction commits. Until then, and if it rolls back,
        the messages are not finalized.
        """
        messages = list(messages)
        settlements = [
            Settlement(claim=message.receipt, outcome=RowOutcome.DONE) for message in messages
        ]
        with mailbox_errors():
            settled = self.backend.settle(settlements, tx=tx)
        _finalize(messages, tx)
        return [SettleResult.SETTLED if done else SettleResult.EXPIRED for done in settled]

    # --- inspecting and managing ---

    def approximate_count(self) -> int:
        """Return how many messages are ready, delayed or leased."""
        stats = self.stats()
        return stats.ready + stats.delayed + stats.leased

    def stats(self) -> MailboxStats:
        with mailbox_errors():
            return self.backend.stats()

    def cancel(self, message_id: str) -> bool:
        """Remove a queued message by its id. Return False if it does not exist or is leased."""
        with mailbox_errors():
            return self.backend.cancel(validation.validate_message_id(message_id))

    def pause(self) -> None:
        """Stop claims from this mailbox in every process until `resume`."""
        with mailbox_errors():
            self.backend.pause(paused=True)

    def resume(self) -> None:
        with mailbox_errors():
            self.backend.pause(paused=False)

    def notify(self) -> None:
        """Wake those that wait for messages. Call it after the commit of a psycopg transaction of
        your own: messages sent in it are found at once, instead of within a second.
        """
        with mailbox_errors():
            self.backend.notify()

    def purge(self) -> int:
        """Remove every message that is not leased. Return how many."""
        with mailbox_errors():
            return self.backend.purge()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def on_close(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` when the mailbox is closed, at once if it is closed already. Return a
        function that removes the listener.
        """
        return self._closed.subscribe(listener)

    def close(self) -> None:
        """Wake waiting receivers and accept no more calls to send or receive. Idempotent.

        The messages stay, and received messages can still be settled. The store closes when no
        reference to it is left, or by its own `close`.
        """
        self._closed.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Mailbox {self.name!r}{' closed' if self.closed else ''}>"

    # --- for messages and the engine ---

    def decode(self, record: MessageRecord) -> BodyT:
        return self.codec.decode(record.body)

    def _put(self, messages: Sequence[NewMessage], tx: Any) -> list[str]:
        with mailbox_errors():
            if (tracer := active_tracer()) is None:
                return self.backend.put(messages, tx=tx)
            return put_in_span(tracer, self.name, messages, partial(self.backend.put, tx=tx))

    def settle_one(self, settlement: Settlement) -> bool:
        with mailbox_errors():
            return self.backend.settle([settlement])[0]

    def reply_mailbox(self, name: str) -> Mailbox[Any] | None:
        """Return the mailbox of that name in the same store; None without a router."""
        return None if self._router is None else self._router(name)

    def _should_stop(self, wakeup: Wakeup, cancel: CancelToken | None) -> bool:
        """Return whether the mailbox is closed or the receive cancelled. Clears the wakeup first,
        so that a later notification sets it again.
        """
        wakeup.clear()
        return self._closed.is_set() or (cancel is not None and cancel.cancelled)

    def _claim_or_sweep(self, limit: int, lease_seconds: float) -> list[Message[BodyT]]:
        """Claim messages. Sweep first when a sweep is due, so that a busy queue hides no ended
        lease. Sweep and claim again when the queue is empty.
        """
        if self.clock.monotonic() - self._swept_at >= _SWEEP_SECONDS:
            self._sweep()
        return self._claim(limit, lease_seconds) or (
            self._claim(limit, lease_seconds) if self._sweep() else []
        )

    def _sweep(self) -> int:
        self._swept_at = self.clock.monotonic()
        with mailbox_errors():
            return self.backend.sweep()

    def _claim(self, limit: int, lease_seconds: float) -> list[Message[BodyT]]:
        """Claim messages and dead-letter those whose body cannot be decoded. Claim again if none is
        left.
        """
        while True:
            with mailbox_errors():
                claimed = self.backend.exchange(
                    (), owner=self.backend.default_owner(), limit=limit, lease_seconds=lease_seconds
                ).claimed
            messages = [message for each in claimed if (message := self._decoded(each)) is not None]
            if messages or not claimed:
                return messages

    def _decoded(self, claimed: ClaimedRow) -> Message[BodyT] | None:
        try:
            return Message(self, claimed.claim, claimed.item, self.decode(claimed.item))
        except SerializationError as error:
            self.settle_one(
                Settlement(
                    claim=claimed.claim,
                    outcome=RowOutcome.DEAD,
                    reason="undecodable",
                    error=str(error),
                )
            )
            return None

    def _wait_seconds(self, deadline: Deadline) -> float:
        """Return the seconds until the next due message, sweep, poll or the deadline."""
        with mailbox_errors():
            due = self.backend.next_due()
        waits = [
            _SWEEP_SECONDS,
            _POLL_SECONDS,
            *(wait for wait in (due, deadline.remaining()) if wait is not None),
        ]
        return max(min(waits), 0.001)

    @contextmanager
    def _subscribed(self, cancel: CancelToken | None) -> Iterator[Wakeup]:
        wakeup = Wakeup()
        with ExitStack() as ends:
            ends.callback(self._closed.subscribe(wakeup.set))
            if cancel is not None:
                ends.callback(cancel.on_cancel(wakeup.set))
            with mailbox_errors():
                ends.callback(self.backend.listen(wakeup))
            yield wakeup

    def _reply_name(self, reply_to: Mailbox[Any] | str | None) -> str | None:
        """Return the name of the reply mailbox, which must be in the same store."""
        if reply_to is None:
            return None
        if isinstance(reply_to, str):
            return validation.validate_name(reply_to)
        if not isinstance(reply_to, Mailbox):
            raise InvalidParameterError(
                f"reply_to must be a Mailbox or the name of a mailbox, not of type "
                f"{type(reply_to).__name__}"
            )
        if reply_to.backend.store_identity != self.backend.store_identity:
            raise UnsupportedError(
                f"a reply to {reply_to.name!r} would not arrive: it is in another store than "
                f"{self.name!r}; open both in one store"
            )
        return reply_to.name

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise MailboxClosedError(f"mailbox {self.name!r} is closed; open it again")


def _finalize(messages: Sequence[Message[Any]], tx: Any) -> None:
    """Finalize messages now, or once the transaction commits. A transaction on the user's own
    connection has no commit hook, so its messages are never finalized.
    """

    def finalize() -> None:
        for message in messages:
            message.finalize()

    if tx is None:
        finalize()
    elif after_commit := getattr(tx, "after_commit", None):
        after_commit(finalize)
