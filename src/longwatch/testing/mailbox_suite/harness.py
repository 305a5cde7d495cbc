"""What a check of a mailbox works with."""

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
"""Real seconds after which something that should have happened counts as hanging."""
FOREVER = 40_000.0
"""A wait or a lease that outlasts every check."""


class MailboxHarness:
    """Mailboxes of one check, under names nobody else has, and the clocks of their store.

    `unit` is the length of time the checks count in: long where clocks can be jumped, as short as
    is safe where it really passes.
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
        """A mailbox; without a name a new one, with one another handle on that."""
        mailbox = self._factory(name or f"check-{os.urandom(6).hex()}", body_type, limits=limits)
        self._opened.append(mailbox)
        return mailbox

    def frozen(self, mailbox: Mailbox[Any]) -> tuple[Mailbox[Any], FakeClock]:
        """Another handle, whose time stands still: a wait on it ends only because it was woken."""
        clock = FakeClock()
        handle: Mailbox[Any] = Mailbox(mailbox.name, mailbox.backend, clock=clock)
        self._opened.append(handle)
        return handle, clock

    def pass_time(self, mailbox: Mailbox[Any], units: float) -> None:
        """Let time pass for the store, and let it sweep."""
        self.move_clocks(mailbox, lease=units, wall=units)
        mailbox.backend.sweep()

    def move_clocks(self, mailbox: Mailbox[Any], *, lease: float = 0.0, wall: float = 0.0) -> None:
        """Move the clocks of the store, in units; one without the other only where they can be
        jumped.
        """
        if self._jump is None:
            expect(lease == wall, "the clocks of this store cannot be jumped one by one")
            SystemClock().wait(Wakeup(), lease * self.unit)
            return
        self._jump(mailbox, lease * self.unit, wall * self.unit)
        self._jumped = [self._jumped[0] + lease * self.unit, self._jumped[1] + wall * self.unit]

    def clean_up(self) -> None:
        """Leave the store as it was found, but for what is leased."""
        for mailbox in self._opened:
            mailbox.purge()
            mailbox.dead_letters.drop_all()
            mailbox.close()
        if self._jump is not None and self._opened and any(self._jumped):
            self._jump(self._opened[0], -self._jumped[0], -self._jumped[1])


def expect(condition: object, rule: str) -> None:
    """An assert that also holds under -O."""
    if not condition:
        raise AssertionError(f"not so: {rule}")


def expect_equal(expected: object, actual: object, rule: str) -> None:
    if expected != actual:
        raise AssertionError(f"not so: {rule}; expected {expected!r}, got {actual!r}")


def expect_error(kind: type[ErrorT], call: Callable[[], object], rule: str) -> ErrorT:
    """The error that the call raises, which is of that kind."""
    try:
        result = call()
    except kind as error:
        return error
    except Exception as error:
        raise AssertionError(
            f"not so: {rule}; expected {kind.__name__}, got {type(error).__name__}: {error}"
        ) from error
    raise AssertionError(f"not so: {rule}; expected {kind.__name__}, got {result!r}")


def receive_one(
    mailbox: Mailbox[Any], rule: str = "a message is there", **options: Any
) -> Message[Any]:
    """The one message that is received next."""
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
    """What the engine would be given."""
    return mailbox.backend.exchange(
        (), owner=owner, limit=want, lease_seconds=duration, selection=selection
    ).claimed


def row_bodies(claimed: Iterable[ClaimedRow]) -> list[bytes]:
    return [each.item.body for each in claimed]


def unseen_process() -> Incarnation:
    """A process that this one cannot see: only the end of its leases says that it is gone."""
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
    """Wait for its end, so many times the usual patience; what it raised comes out with the
    title.
    """
    clock, patience = SystemClock(), TIMEOUT * times
    expect(
        thread.wait(clock, Deadline.after(patience, clock)),
        f"{title}: it ends within {patience:g} s",
    )
    if thread.error is not None:
        raise AssertionError(f"{title}: {thread.error}") from thread.error
