"""The one engine that runs claimed rows: slots, prefetch, context, lease renewal, batched
settle, drain.

Who does what in one engine
    fetcher        settles finished rows and claims the next ones, in one exchange with the source
                   (`fetcher.py`). It has one thread. While that rests, the slot that has finished
                   the only running row does the exchange.
    slots          N threads that run user code, one row at a time each (`slot_pool.py`). Code that
                   is `async def` runs on one loop thread while its slot waits, and is cancelled
                   there when its context is (`coroutines.py`).
    lease renewer  one thread that renews every lease in one call, at a third of the lease, with
                   quick retries (`lease_renewer.py`). It says when leases are no longer trusted
                   (`lease_trust.py`).
    sweeper        looks periodically for dead owners and lapsed leases, so that any worker reclaims
                   the rows of another. It pauses while its own leases are not trusted: otherwise it
                   would reclaim them, before they are renewed, as soon as the store is back.
    One start is an `EngineRun` (`engine_run.py`): a new incarnation, a beat page, these threads.
    `engine.py` is the service that users hold.

The life of a row
    claimed (leased, in line for a slot) → begun (marked on the beat page) → run → settled, in the
    next exchange.
    Rows are begun in the order of the source. Finished rows are settled together: a few
    milliseconds after the first of them, or when enough are finished, or at once when the slots
    have nothing left to do. A claim that gave less than was wanted is followed by the next when the
    first of it is done, or after as many milliseconds: two exchanges, not three, for a message that
    comes alone. Ahead of the slots is held what they can begin within a quarter of a second
    (`prefetch.py`). Rows that turn out to wait behind long work are handed back: nothing waits here
    while another worker could run it. A row that has crashed a process before runs alone: it waits
    until every slot is idle, in every engine of the process that shares an `ExclusiveLock`, and no
    other is begun beside it. If that takes long, it is left to other workers for as long.

How the work on a row ends (`error_policy.py`)
    it returns                      done; or nothing, if it has settled the row by itself
    it raises                       a failure: back after the backoff; exits and interrupts are
                                    failures like any other
    it raises a PermanentError      dead letter, at once
    it raises after being cancelled back, nobody's fault
    it is async, and has no loop    back after a while, nobody's fault
    its lease was lost meanwhile    back, whatever it says; if somebody else has the row, that
                                    changes nothing

Invariants
    1. What is claimed and not begun is given back on drain, at once, and spends nothing.
    2. No result counts once the lease is not trusted any more: the context says `lease_lost`,
       nothing in line is begun, and nothing is claimed until the leases are renewed again. The
       store would refuse it anyway; this side knows earlier.
    3. Leases are kept until the last row is settled, also during a drain, and after a stop that
       gave up. Only a row whose code has given no beat for `stale_after` is not: its lease runs
       out, and it is to blame.
    4. An exchange that failed leaves its settlements in line; making them again is safe, because
       they are fenced. If the row is gone then, that is told as unknown: the first try may have
       counted. One settlement that cannot be made does not keep the others.
    5. A lease that this side knows nothing of (an exchange without an answer, a store that was set
       back), and a row that is not ours any more though we think so, are found by comparing with
       the store: after every exchange that failed, after every renewal, and as often when nothing
       is held here. Renewing by owner would otherwise keep the first for ever.
    6. The fetcher never waits for user code, the lease renewer never waits for the store, user code
       waits for neither (but for its own calls). Whatever a source or user code raises, none of
       these threads ends by it.

Drain (`drain.py` is the table)
    running ⇄ draining ──stop──► stopping ──cancel──► cancelling ──► stopped
    A stop tells the time once: what runs may finish until shortly before the deadline, then it is
    cancelled, and at the deadline it is given up. Its threads are left behind, its page says
    draining, so nobody is blamed if the process ends; a later end of it still counts, and another
    stop tries again.
"""
