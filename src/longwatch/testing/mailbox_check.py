"""One shared suite that certifies any mailbox: that it keeps every rule of the contract."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from longwatch.testing.mailbox_suite import (
    admin_checks,
    blame_checks,
    concurrency_checks,
    dead_letter_checks,
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
    """Raise AssertionError, which names the rule, unless the mailboxes that the factory opens keep
    the contract.

    `factory(name, body_type, *, limits)` opens a mailbox of one store, as
    `functools.partial(open_mailbox, store)` does; the suite uses names of its own and leaves
    nothing but leases behind. It needs hypothesis.

    `jump(mailbox, lease_seconds, wall_seconds)` moves the two clocks of the mailbox's store, also
    back; without it time has to pass really, which takes a minute or two, and what tells the clocks
    apart goes unchecked. `reopen` opens the same mailboxes like the factory, but from another
    process: it has to be picklable; without it only threads are tried. `transact` is the store's,
    if it has transactions; without it `tx=` has to be refused.
    """
    for check in CHECKS:
        _run(check, MailboxHarness(factory, jump=jump, reopen=reopen, transact=transact))


def _run(check: Callable[[MailboxHarness], None], harness: MailboxHarness) -> None:
    """One check, that has to end, and end well."""
    title = check.__name__.replace("_", " ")
    try:
        await_thread(start_thread(partial(check, harness)), title, times=5)
    finally:
        harness.clean_up()
