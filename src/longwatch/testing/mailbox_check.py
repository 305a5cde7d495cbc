"""The conformance suite that any mailbox backend must pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from longwatch.testing.mailbox_suite import (
    admin_checks,
    blame_checks,
    concurrency_checks,
    dead_letter_checks,
    header_checks,
    lease_checks,
    model_checks,
    receive_checks,
    retry_checks,
    send_checks,
    transaction_checks,
)
from longwatch.testing.mailbox_suite.harness import (
    JumpClocks,
    MailboxFactory,
    MailboxHarness,
    Transact,
    await_thread,
    start_thread,
)

CHECKS: tuple[Callable[[MailboxHarness], None], ...] = (
    *send_checks.CHECKS,
    *receive_checks.CHECKS,
    *admin_checks.CHECKS,
    *lease_checks.CHECKS,
    *retry_checks.CHECKS,
    *dead_letter_checks.CHECKS,
    *header_checks.CHECKS,
    *blame_checks.CHECKS,
    *transaction_checks.CHECKS,
    *concurrency_checks.CHECKS,
    *model_checks.CHECKS,
)


def check_mailbox(
    factory: MailboxFactory,
    *,
    jump: JumpClocks | None = None,
    reopen: MailboxFactory | None = None,
    transact: Transact | None = None,
) -> None:
    """Raise AssertionError, which names the broken rule, unless the factory's mailboxes keep the
    contract.

    `factory(name, body_type, *, limits)` opens a mailbox of one store, as
    `functools.partial(open_mailbox, store)` does. The suite uses its own mailbox names and leaves
    only leases behind. It needs hypothesis.

    `jump(mailbox, lease_seconds, wall_seconds)` moves the two clocks of the mailbox's store, also
    back. Without it the suite waits in real time for a minute or two, and skips the checks that
    move one clock alone. `reopen` opens the same mailboxes from another process and must be
    picklable. Without it only threads are checked. `transact` is the store's method, if it has
    transactions. Without it `tx=` must raise UnsupportedError.
    """
    for check in CHECKS:
        _run(check, MailboxHarness(factory, jump=jump, reopen=reopen, transact=transact))


def _run(check: Callable[[MailboxHarness], None], harness: MailboxHarness) -> None:
    """Run one check. Raises AssertionError if it fails or does not end in time."""
    title = check.__name__.replace("_", " ")
    try:
        await_thread(start_thread(partial(check, harness)), title, times=5)
    finally:
        harness.clean_up()
