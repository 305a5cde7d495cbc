"""One shared suite that certifies any mailbox: that it keeps every rule of the contract."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from longwatch.testing.mailbox_suite import (
    blame,
    crowds,
    endings,
    leases,
    managing,
    model,
    processes,
    receiving,
    sending,
    transactions,
)
from longwatch.testing.mailbox_suite.bench import (
    Bench,
    Factory,
    Jump,
    Transact,
    await_errand,
    in_thread,
)

CHECKS: tuple[Callable[[Bench], None], ...] = (
    *sending.CHECKS,
    *receiving.CHECKS,
    *managing.CHECKS,
    *leases.CHECKS,
    *blame.CHECKS,
    *endings.CHECKS,
    *transactions.CHECKS,
    *crowds.CHECKS,
    *processes.CHECKS,
    *model.CHECKS,
)


def check_mailbox(
    factory: Factory,
    *,
    jump: Jump | None = None,
    reopen: Factory | None = None,
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
        _run(check, Bench(factory, jump=jump, reopen=reopen, transact=transact))


def _run(check: Callable[[Bench], None], bench: Bench) -> None:
    """One check, that has to end, and end well."""
    title = check.__name__.replace("_", " ")
    try:
        await_errand(in_thread(partial(check, bench)), title, times=5)
    finally:
        bench.clean_up()
