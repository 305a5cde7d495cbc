"""The tools of a mailbox check: its own mailboxes, the clocks of the store and assertions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from longwatch.core.clock import SystemClock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.core.fake_clock import FakeClock
from longwatch.engine.claim_source import ClaimedRow
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.message import Message
from longwatch.mailbox.records import DeadLetter
from longwatch.store.claims import RowSelection

T = TypeVar("T")
ErrorT = TypeVar("ErrorT", bound=BaseException)

MailboxFactory = Callable[..., Mailbox[Any]]
JumpClocks = Callable[[Mailbox[Any], float, float], None]
Transact = Callable[[Callable[[Any], Any]], Any]

TIMEOUT = 60.0
"""Real seconds after which a thread or a condition counts as hanging."""
FOREVER = 40_000.0
"""A wait or a lease that outlasts every check."""


class MailboxHarness:
    """The mailboxes of one check, under unique names, and the clocks of their store.

    `unit` is the length of time in which checks count: long where clocks can be jumped, as short as
    is safe where real time passes.
    """

    def __init__(
        self,
        factory: MailboxFactory,
        *,
        jump: JumpClocks | None,
        reopen: MailboxFactory | None,
        transact: Transact | None,
    ) -> None:
        self.can_jump = jump is not None
        self.reopen = reopen
        self.transact = transact
        self.unit = 100.0 if self.can_jump else 2.0
        self._factory = factory
        self._jump = jump
        self._jumped = [0.0, 0.0]
        self._opened: list[Mailbox[Any]] = []

    def open(
        self, name: str = "", body_type: Any = Any, *, limits: MailboxLimits | None = None
    ) -> Mailbox[Any]:
        """Open a new mailbox, or with a name another handle on that mailbox."""
        mailbox = self._factory(name or f"check-{os.urandom(6).hex()}", body_type, limits=limits)
        self._opened.append(mailbox)
        return mailbox

    def frozen(self, mailbox: Mailbox[Any]) -> tuple[Mailbox[Any], FakeClock]:
        """Open another handle whose clock stands still, so that only a wakeup ends a wait on it."""
        clock = FakeClock()
        handle: Mailbox[Any] = Mailbox(mailbox.name, mailbox.backend, clock=clock)
        self._opened.append(handle)
        return handle, clock

    def pass_time(self, mailbox: Mailbox[Any], units: float) -> None:
        """Let time pass for the store, and let it sweep."""
        self.move_clocks(mailbox, lease=units, wall=units)
        mailbox.backend.sweep()

    def move_clocks(self, mailbox: Mailbox[Any], *, lease: float = 0.0, wall: float = 0.0) -> None:
        """Move the clocks of the store, in units. Moving one alone needs clocks that can be
        jumped.
        """
        if self._jump is None:
            expect(lease == wall, "both clocks move together where they cannot be jumped")
            SystemClock().wait(Wakeup(), lease * self.unit)
            return
        self._jump(mailbox, lease * self.unit, wall * self.unit)
        self._jumped = [self._jumped[0] + lease * self.unit, self._jumped[1] + wall * self.unit]

    def clean_up(self) -> None:
        """Remove all messages and dead letters that are not leased, and restore the clocks."""
        for mailbox in self._opened:
            mailbox.purge()
            mailbox.dead_letters.drop_all()
            mailbox.close()
        if self._jump is not None and self._opened and any(self._jumped):
            self._jump(self._opened[0], -self._jumped[0], -self._jumped[1])


def expect(condition: object, rule: str) -> None:
    """Raise AssertionError with the rule unless the condition holds, also under -O."""
    if not condition:
        raise AssertionError(f"rule broken: {rule}")


def expect_equal(expected: object, actual: object, rule: str) -> None:
    if expected != actual:
        raise AssertionError(f"rule broken: {rule}; expected {expected!r}, got {actual!r}")


def expect_error(kind: type[ErrorT], call: Callable[[], object], rule: str) -> ErrorT:
    """Return the error that the call raises. Raises AssertionError if it is of another kind."""
    try:
        result = call()
    except kind as error:
        return error
    except Exception as error:
        raise AssertionError(
            f"rule broken: {rule}; expected {kind.__name__}, got {type(error).__name__}: {error}"
        ) from error
    raise AssertionError(f"rule broken: {rule}; expected {kind.__name__}, got {result!r}")


def receive_one(
    mailbox: Mailbox[Any], rule: str = "a message is there", **options: Any
) -> Message[Any]:
    """Receive the next message. Raises AssertionError unless exactly one is received."""
    messages = mailbox.receive(
        visibility_timeout=options.pop("visibility_timeout", FOREVER), **options
    )
    expect(len(messages) == 1, f"{rule}, but {len(messages)} were received")
    return messages[0]


def claim_rows(
    mailbox: Mailbox[Any],
    owner: int,
    *,
    want: int = 1000,
    duration: float = FOREVER,
    selection: RowSelection = RowSelection.ANY,
) -> list[ClaimedRow]:
    """Claim rows as the engine does."""
    return mailbox.backend.exchange(
        (), owner=owner, limit=want, lease_seconds=duration, selection=selection
    ).claimed


def row_bodies(claimed: Iterable[ClaimedRow]) -> list[bytes]:
    return [each.item.body for each in claimed]


def unseen_process() -> Incarnation:
    """Return a process of another host, whose end shows only when its leases end."""
    return replace(Incarnation.current(), namespace=1)


def only_dead_letter(mailbox: Mailbox[Any]) -> DeadLetter:
    dead_letters = list(mailbox.dead_letters)
    expect(len(dead_letters) == 1, f"there is one dead letter, not {len(dead_letters)}")
    return dead_letters[0]


def wait_until(condition: Callable[[], object], rule: str) -> None:
    clock = SystemClock()
    end = clock.monotonic() + TIMEOUT / 2
    while not condition():
        expect(clock.monotonic() < end, rule)
        clock.wait(Wakeup(), 0.02)


def bodies(messages: Iterable[Message[T]]) -> list[T]:
    return [message.body for message in messages]


def start_thread(work: Callable[[], object]) -> BackgroundThread:
    thread = BackgroundThread(work, name="check-mailbox")
    thread.start()
    return thread


def await_thread(thread: BackgroundThread, title: str, *, times: float = 1) -> None:
    """Wait for the end of a thread, for `times` the usual timeout. Raises its error with the
    title.
    """
    clock, patience = SystemClock(), TIMEOUT * times
    expect(
        thread.wait(clock, Deadline.after(patience, clock)),
        f"{title}: it ends within {patience:g} s",
    )
    if thread.error is not None:
        raise AssertionError(f"{title}: {thread.error}") from thread.error
