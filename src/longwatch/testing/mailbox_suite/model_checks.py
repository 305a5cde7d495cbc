"""Compares a mailbox with a simple model: hypothesis searches for a sequence of calls after which
the two differ.

The model is a list of messages in the order they were sent, and two clocks that stand still unless
they are jumped. A receive of the mailbox may return fewer messages than the model allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from longwatch.errors import MailboxFullError, ReceiptHandleExpiredError
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.message import Message, SettleResult
from longwatch.testing.mailbox_suite.harness import MailboxHarness, expect, expect_equal

LIMITS = MailboxLimits(max_failures=2, max_crashes=3, max_size=8)
STEP = 10.0
"""Seconds of one clock jump. Leases, delays and expiry end half-way between two jumps, so that real
time does not matter.
"""


@dataclass(slots=True, eq=False, kw_only=True)
class ModelMessage:
    """One message of the model."""

    id: str
    body: int
    key: str | None = None
    ready_at: float = 0.0
    expires_at: float | None = None
    keep_expired: bool = False
    lease_until: float | None = None
    deliveries: int = 0
    failures: int = 0
    crashes: int = 0
    releases: int = 0

    @property
    def dead_reason(self) -> str | None:
        """The reason of the budget that the message has spent; None if it has spent none."""
        if self.crashes >= LIMITS.max_crashes:
            return "poison"
        return "failed" if self.failures >= LIMITS.max_failures else None

    @property
    def history(self) -> tuple[object, ...]:
        return self.id, self.deliveries, self.failures, self.crashes, self.releases

    @property
    def is_suspect(self) -> bool:
        return self.crashes == LIMITS.max_crashes - 1


@dataclass(slots=True)
class MailboxModel:
    """The simplest mailbox that keeps the rules."""

    queue: list[ModelMessage] = field(default_factory=list)
    dead: dict[str, tuple[str, ModelMessage]] = field(default_factory=dict)
    lease_now: float = 0.0
    wall_now: float = 0.0
    paused: bool = False
    expired: int = 0

    def send(self, entries: list[ModelMessage]) -> list[str]:
        """Store messages and return their ids. Raises MailboxFullError."""
        ids: list[str] = []
        fresh: list[ModelMessage] = []
        for entry in entries:
            first = next(
                (
                    each
                    for each in self.queue + fresh
                    if entry.key is not None and each.key == entry.key
                ),
                None,
            )
            ids.append(entry.id if first is None else first.id)
            fresh += [entry] if first is None else []
        if len(self.queue) + len(fresh) > (LIMITS.max_size or 0):
            raise MailboxFullError
        self.queue += fresh
        return ids

    def ready(self) -> list[ModelMessage]:
        return [
            entry
            for entry in self.queue
            if entry.lease_until is None and entry.ready_at <= self.wall_now
        ]

    def deliverable(self, count: int) -> list[ModelMessage]:
        """Return the most that a receive may return: the oldest messages, or a suspect alone."""
        found: list[ModelMessage] = []
        for entry in self.ready():
            if len(found) == count or (entry.is_suspect and found):
                break
            found.append(entry)
            if entry.is_suspect:
                break
        return [] if self.paused else found

    def jump(self, *, lease: float, wall: float) -> None:
        self.lease_now += lease
        self.wall_now += wall

    def sweep(self) -> None:
        for entry in self.queue:
            if entry.lease_until is not None and entry.lease_until < self.lease_now:
                entry.lease_until = None
                entry.crashes += 1
        self.dead_letter_spent()
        overdue = [
            each
            for each in self.queue
            if each.lease_until is None and each.expires_at and each.expires_at <= self.wall_now
        ]
        for entry in overdue:
            self.expired += 1
            self.queue.remove(entry)
            if entry.keep_expired:
                self.dead[entry.id] = ("expired", entry)

    def dead_letter_spent(self) -> None:
        """Give up the messages that have spent a budget."""
        for entry in [each for each in self.queue if each.dead_reason is not None]:
            self.queue.remove(entry)
            self.dead[entry.id] = (entry.dead_reason or "", entry)

    def counts(self) -> tuple[object, ...]:
        leased = sum(entry.lease_until is not None for entry in self.queue)
        ready = len(self.ready())
        return (
            ready,
            len(self.queue) - leased - ready,
            leased,
            len(self.dead),
            self.paused,
            self.expired,
        )


class MailboxWithModel:
    """A mailbox and its model. Every call goes to both, and their results are compared."""

    def __init__(self, harness: MailboxHarness) -> None:
        self.harness = harness
        self.mailbox: Mailbox[Any] = harness.open(limits=LIMITS)
        self.model = MailboxModel()
        self.held: list[tuple[Message[Any], ModelMessage, int]] = []
        self._numbers = iter(range(1_000_000))

    def send(
        self, count: int, *, delay: float, expires_in: float | None, keep: bool, key: str | None
    ) -> None:
        numbers = [next(self._numbers) for _ in range(count)]
        keys = [key] * count
        try:
            ids = self.mailbox.send_many(
                numbers,
                delay_seconds=delay,
                expires_in=expires_in,
                keep_expired=keep,
                dedupe_keys=keys,
            )
        except MailboxFullError:
            ids = None
        entries = [self._entry(number, key, delay, expires_in, keep) for number in numbers]
        for entry, sent in zip(entries, ids or [], strict=False):
            entry.id = sent
        try:
            expected = self.model.send(entries)
        except MailboxFullError:
            expected = None
        expect_equal(expected, ids, "send_many() returns what the model returns")

    def receive(self, count: int, *, lease: float) -> None:
        messages = self.mailbox.receive(max_messages=count, visibility_timeout=lease)
        possible = self.model.deliverable(count)
        expect_equal(
            [entry.id for entry in possible[: len(messages)]],
            [message.id for message in messages],
            "receive() returns the oldest messages first",
        )
        expect(messages or not possible, f"receive() returns one of {len(possible)} messages")
        for message, entry in zip(messages, possible, strict=False):
            entry.deliveries += 1
            entry.lease_until = self.model.lease_now + lease
            expect_equal(
                (entry.body, entry.deliveries),
                (message.body, message.delivery_count),
                "a received message is that of the model",
            )
            self.held.append((message, entry, entry.deliveries))

    def acknowledge(self, index: int) -> None:
        for message, entry, current in self._pick(index):
            [verdict] = self.mailbox.acknowledge_many([message])
            expect_equal(
                SettleResult.SETTLED if current else SettleResult.EXPIRED,
                verdict,
                "only the claimant of a message may settle it",
            )
            if current:
                self.model.queue.remove(entry)

    def nack(self, index: int, *, delay: float, reason: str | None) -> None:
        for message, entry, current in self._pick(index):
            try:
                message.nack(visibility_timeout=delay, reason=reason)
            except ReceiptHandleExpiredError:
                expect(not current, "the claimant of a message may release it")
                continue
            expect(current, "a stale receipt releases nothing")
            entry.lease_until = None
            entry.ready_at = self.model.wall_now + delay if delay else 0.0
            entry.failures += reason is not None
            entry.releases += reason is None
            self.model.dead_letter_spent()

    def extend(self, index: int, *, lease: float) -> None:
        for message, entry, current in self._pick(index, keep=True):
            try:
                message.extend_visibility(lease)
            except ReceiptHandleExpiredError:
                expect(not current, "the claimant of a message may extend its lease")
                continue
            expect(current, "a stale receipt extends nothing")
            entry.lease_until = max(entry.lease_until or 0.0, self.model.lease_now + lease)

    def cancel(self, index: int) -> None:
        if self.model.queue:
            entry = self.model.queue[index % len(self.model.queue)]
            expect_equal(
                entry.lease_until is None,
                self.mailbox.cancel(entry.id),
                "a message that is not leased can be cancelled",
            )
            if entry.lease_until is None:
                self.model.queue.remove(entry)

    def pause(self) -> None:
        self.mailbox.pause()
        self.model.paused = True

    def resume(self) -> None:
        self.mailbox.resume()
        self.model.paused = False

    def purge(self) -> None:
        idle = [entry for entry in self.model.queue if entry.lease_until is None]
        expect_equal(len(idle), self.mailbox.purge(), "purge() removes all but leased messages")
        self.model.queue = [entry for entry in self.model.queue if entry not in idle]

    def replay(self, index: int) -> None:
        for message_id in self._pick_dead(index):
            expect_equal(
                [True, False],
                self.mailbox.dead_letters.replay(message_id, "unknown"),
                "a dead letter can be replayed",
            )
            _, entry = self.model.dead.pop(message_id)
            self.model.queue.append(ModelMessage(id=entry.id, body=entry.body))

    def drop(self, index: int) -> None:
        for message_id in self._pick_dead(index):
            expect_equal(
                [True, False],
                self.mailbox.dead_letters.drop(message_id, "unknown"),
                "a dead letter can be dropped",
            )
            del self.model.dead[message_id]

    def jump(self, *, lease: float, wall: float) -> None:
        self.harness.move_clocks(
            self.mailbox, lease=lease / self.harness.unit, wall=wall / self.harness.unit
        )
        self.model.jump(lease=lease, wall=wall)

    def compare(self) -> None:
        """Sweep both, and compare their counts and dead letters."""
        self.mailbox.backend.sweep()
        self.model.sweep()
        stats = self.mailbox.stats()
        counts = (stats.ready, stats.delayed, stats.leased, stats.dead, stats.paused, stats.expired)
        expect_equal(
            self.model.counts(),
            counts,
            "ready, delayed, leased, dead, paused and expired are as in the model",
        )
        dead = [
            (dead_letter.reason, (dead_letter.id, *dead_letter[6:10]))
            for dead_letter in self.mailbox.dead_letters
        ]
        expected = {(reason, entry.history) for reason, entry in self.model.dead.values()}
        expect_equal(expected, set(dead), "dead letters have the histories of the model")

    def finish(self) -> None:
        """Settle and remove every message, so that later runs have nothing to sweep."""
        self.mailbox.acknowledge_many([message for message, _, _ in self.held])
        self.mailbox.purge()
        self.mailbox.dead_letters.drop_all()

    def _entry(
        self,
        number: int,
        key: str | None,
        delay: float,
        expires_in: float | None,
        keep: bool,  # noqa: FBT001
    ) -> ModelMessage:
        now = self.model.wall_now
        ready_at = now + delay if delay else 0.0
        return ModelMessage(
            id="",
            body=number,
            key=key,
            ready_at=ready_at,
            expires_at=None if expires_in is None else now + expires_in,
            keep_expired=keep,
        )

    def _pick(
        self, index: int, *, keep: bool = False
    ) -> Iterator[tuple[Message[Any], ModelMessage, bool]]:
        """Return one delivery, if there is any, and whether its claim still matches."""
        if self.held:
            place = index % len(self.held)
            message, entry, delivery = self.held[place] if keep else self.held.pop(place)
            leased = entry in self.model.queue and entry.lease_until is not None
            yield message, entry, leased and entry.deliveries == delivery

    def _pick_dead(self, index: int) -> list[str]:
        ids = list(self.model.dead)
        return [ids[index % len(ids)]] if ids else []


def every_sequence_of_calls_ends_as_in_the_model(harness: MailboxHarness) -> None:
    """Runs only where clocks can be jumped."""
    if not harness.can_jump:
        return
    from longwatch.testing.mailbox_suite.state_machine import run_state_machine  # noqa: PLC0415 - only the suite needs hypothesis

    run_state_machine(harness)


CHECKS = (every_sequence_of_calls_ends_as_in_the_model,)
