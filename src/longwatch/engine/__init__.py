"""The engine: claims rows from one source, runs user code on them, settles them.

The parts of one engine
    exchange loop  One thread. It settles finished rows and claims the next ones, in one exchange
                   with the source (`exchange_loop.py`). The settler keeps the settlements to make
                   (`settler.py`). The fetcher decides how many rows to claim and when, and passes
                   them to the slots (`fetcher.py`, `prefetch.py`, `poll_budget.py`).
    slots          N places that run user code, one row at a time each (`slot_pool.py`).
                   `row_life.py` describes how a slot runs a row. Each slot has a thread, unless the
                   code is `async def`.
    async slots    Coroutines run on one loop thread, and are cancelled there when their context is
                   (`coroutines.py`). The slots share a few threads, which begin rows and turn the
                   ends of coroutines into settlements (`async_slot_pool.py`, `async_slot.py`).
                   Whether an engine is async depends on its runner: `handle` or one node is `async
                   def`. A `def handle` that returns an awaitable keeps the thread of its slot.
    lease renewer  One thread. It renews every lease in one call, at a third of the lease, with
                   quick retries, and decides when leases are no longer trusted
                   (`lease_renewer.py`, `lease_trust.py`).
    sweeper        One periodic thread (`sweep_loop.py`). It reclaims the rows of dead owners and
                   lapsed leases of any worker. It pauses while the engine's own leases are not
                   trusted. Otherwise it would reclaim them, when the store is back, before they
                   are renewed. In a store that many machines share, engines take turns
                   (`store.sweep_turns`).
    hint gate      Wakes the exchange loop on notifications. In a shared store an idle engine
                   answers only some of those of other processes (`hint_gate.py`).
    Sources with many queues claim from them in turn, and within caps (`fair_claims.py`).
    One start of an engine is an `EngineRun` (`engine_run.py`): a new incarnation, a beat page,
    these threads. `engine.py` is the service that users hold, `engine_loop.py` the blocking `run`
    that groups use.

The life of a row
    exchange_loop   claimed in an exchange, held, put into the queue of the slots
    row_life        begun (marked on the beat page) → run → ended, with its one settlement
    async_slot      the same in three steps: begun in one thread → on the loop → ended in another
    exchange_loop   handed in → collected → settled in the next exchange
    Rows begin in the order of the source. Finished rows are settled together: a few milliseconds
    after the first of them, or when a batch is full, or at once when no row waits for a slot. A
    slot that has finished the only row of the engine makes the exchange itself. The engine holds as
    many rows beyond its slots as can begin within a quarter of a second. It releases rows that turn
    out to wait behind long work, so that another worker can run them.
    A suspect (`store.blame`) runs alone (`exclusive.py`). It waits until every slot is idle, in
    every engine that shares its `ExclusiveLock`. If that takes too long, the engine releases it
    with a delay, for other workers. Under a parent an engine claims no suspects. Its sweeper
    reports free suspects to the parent, which runs them in processes with one slot.

How a row ends (`row_life.py`, `error_policy.py`)
    its code returns                    done, or nothing if the code has settled the row itself
    its code raises                     failed, retried after the backoff; exits and interrupts, too
    its code raises a PermanentError    dead-lettered at once
    its code raises after a cancel      released, which counts as no failure
    its code is async without a loop    released with a delay, which counts as no failure
    its settlement was forced           settled that way, whatever the code did
    its lease was lost                  released; refused by the source if another worker owns it

Invariants
    1. Each piece of state has one owner that changes it: the settler the settlements, the fetcher
       the held claims, the exchange loop its flags and lock, a slot its context, `BeginGate`
       whether rows may begin, `DrainMachine` the state of the drain.
    2. A row that was claimed and never began is released on drain, at once, and spends nothing.
    3. No result counts once the lease is not trusted. No waiting row begins, and nothing is claimed
       or swept until the leases are renewed. If the store did not reply in time, `lease_lost` is
       set on the context. After a gap it is set only if the row is lost, and nothing is settled
       before the renewal (`lease_trust.py`). The store would refuse the result anyway. The engine
       only knows earlier.
    4. Leases are renewed until the last row is settled, also during a drain and after a stop that
       timed out. The exception is a row whose code has sent no heartbeat for `stale_after`: its
       lease ends, and the row is to blame.
    5. A failed exchange keeps its settlements. Making them again is safe, because they are fenced.
       If the source then refuses one, its outcome is reported as unknown.
    6. An audit finds leases that only the store or only the engine knows of. It runs after every
       failed exchange and every renewal, and as often while nothing is held (`lease_audit.py`).
       Renewal by owner would keep unknown leases for ever.
    7. The exchange loop never waits for user code. The lease renewer never waits for the store.
       User code waits for neither. No exception of a source or of user code ends one of these
       threads.
    8. The loop thread runs coroutines only. No settlement, reply or event is made there, and no
       other part of the engine waits for it, except the stop after the last row.
    9. A slot means the same with and without a thread: a number on the beat page, a heartbeat, a
       context. So leases, blame, stalls, drains and exclusive rows do not depend on the kind of
       slot.

What an async row looks like in each failure
    cancelled             its task is cancelled on the loop. Code that goes on keeps its slot, and a
                          stop waits for it until the deadline.
    lease lost            as cancelled; its settlement becomes a release
    no heartbeat          its slot is as old as its last beat. The watchdog ends the process. The
                          saved stacks contain those of all tasks, each named after its row.
    blocks the loop       all coroutines of the engine stop beating. The stack of the loop thread
                          shows the code.
    process killed        the beat page names the rows of all slots whose coroutines ran or were
                          not concluded
    loop cannot run it    the row is released with a delay, like any row that could not start
    store does not reply  replies keep their threads. Other rows wait for a thread, and those that
                          have not begun are released.

Drain (`drain.py` is the table)
    running ⇄ draining ──stop──► stopping ──cancel──► cancelling ──► stopped
    A stop has one deadline. Running rows may finish until shortly before it. Then they are
    cancelled. At the deadline the stop returns False and leaves its threads running. The beat page
    says draining, so no row is blamed if the process ends. A row that ends later is still settled,
    and another stop tries again.
"""
