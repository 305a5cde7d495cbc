"""Eager lease: a new attempt is leased to a worker of this process by the statement that inserts
it.

Without it, a transaction queues a new attempt, the commit notifies the workers, and one of them
claims the attempt in a second transaction. With it, the attempt belongs to a worker at the commit.
That saves the claim: one commit of two between a `set` and the first line of the node's code, and
one round trip of an exchange with a server. A worker whose open attempts were all leased this way
also knows their execution without a load (`execution_cache.py`). A caller that begins to wait for a
value within 50 ms of that commit knows that a read would find none, and waits for the settlement.
Nothing but the speed differs.

Where it is entered
    a change    `Flow.write_execution` (start, set, unset, retry, abandon, cancel):
                `LocalWorkers.reserve` finds a worker of this process with free slots, and
                `EagerWrite.write` runs the change for it. Without such a worker the change
                queues its attempts.
    a result    `FlowClaimSource.exchange`: while the queues are known to be empty,
                `EagerLeaser.exchange` settles without a claim, and leases the attempts that the
                results open. Otherwise the exchange settles and claims from the queues.
Where it ends
    `Reservation.deliver` hands the leased rows to the engine of a local worker.
    `ExchangeResult.claimed` hands them to the engine that asked.

States of a new attempt
    queued      no room here, delayed, the firing of a tick, a suspect, in a queue with a cap, or
                rows of the queue may wait: inserted as usual. A suspect has to run with no other
                row beside it, and caps are counted by claims only. An engine that runs suspects
                leases nothing eagerly.
    leased      inserted with owner and term, as a claim would have left it. From there on it is
                renewed, settled, swept and fenced like any claimed row.

Invariants
    1. A leased row equals a claimed row: same columns, the next term of its node.
    2. It never overtakes for long: it needs a poll that found the queues empty, at most 50 ms ago
       and without a notification since (`claimer.QueueCache`).
    3. A worker gets no more rows than its slots have room for, and four per change at most.
    4. Rows are delivered after the commit only, and a reservation is closed in any case.
    5. A cached execution is used once, and only if the transaction proves it unchanged: its count
       of changes is the same, and the claims hold. Otherwise the exchange runs again with a load.

Failure cases
    The reply to the commit is lost: the rows are leased, but their terms are unknown. The exchange
    raises StoreError, or the reservation becomes uncertain, and the engine compares its rows with
    the store.
    The caller gives up waiting before its change is written: the reservation is closed, the worker
    may have ended. The rows are released in the same transaction.
    A sweeper deleted the owner while it held nothing: the insert reports it. SQLite registers the
    owner in the same transaction, a server right after the commit.
    Another process changes an execution after that commit, before a caller begins to wait: the
    caller was not subscribed and does not read. It reads at the next wakeup of the store, at most a
    second later, as after a lost notification.
    The process forks: a worker belongs to the pid that runs it, so a child reserves nothing.

To remove it, delete this package and
    `flow.py`          the first statement of `Flow.write_execution`, and `local_workers`
    `execution.py`     `_is_computing_here`, and the call of `forget` in `_change`
    `worker.py`        the registration of the engine in `_while_running`
    `claim_source.py`  `eager_leaser` and the first branch of `exchange`; `write_recalling` becomes
                       `database.write_inline`
    `settler.py`       `cache` and `recall`
    `claimer.py`       `QueueCache.is_known_empty` and `record_poll`
    `records.py`       `AttemptTaker`, `require_unchanged`, and two queries: `insert_leased_attempt`
                       and `unchanged`
    the engine         `reservations.py`, whose only user this is
"""
