"""SQL stores: one small interface over the databases, migrations, named SQL, and `claims`, the one
mechanism of leased rows.

Claimable rows: states, invariants, failure cases
    A message and a computation are both rows that a worker leases for a time. Any table with
    these columns is claimable:

    | column        | meaning                                                                    |
    |---------------|----------------------------------------------------------------------------|
    | `seq`         | the row's number, in the order of inserts                                  |
    | `queue`       | the rows it waits with: those of a mailbox, or of a graph                  |
    | `lease_state` | 0 free; 1 delayed until `ready_at`; 2 leased                               |
    | `ready_at`    | wall time before which it is not claimed                                   |
    | `owner`       | the incarnation that holds the lease; null unless leased                   |
    | `term`        | raised by every claim: the fencing token                                   |
    | `lease_until` | when the lease ends, on the store's lease clock; null unless leased        |
    | `deliveries`, `failures`, `crashes`, `releases`
                    | how often it was claimed, and how that ended                               |

    free ──claim──► leased ──settle──► gone
     ▲ ▲              │  ▲ └─renew─┘
     │ └──release─────┤
     │                └──release with a delay──► delayed ──due──► free
     └──sweep: the lease has ended, or its owner has

    Invariants
    1. A row is leased by at most one (owner, term). A claim raises the term, at least to the
       store's time in microseconds: a pair never comes back, not even when an older state of the
       store was restored and rows get the same numbers again.
    2. Settle, release and renew name row, owner and term, and change nothing unless all three are
       the row's own. Owner *and* term, because a clock can be set back with the state; owners are
       random numbers.
    3. Only the store's clock says that a lease has ended. Durations come from clients, moments
       never do.
    4. A lease that has ended is still its owner's until the sweep releases it: a late settle that
       comes before the sweep counts, one that comes after changes nothing. Work is never both
       redelivered and settled by the owner that lost it.
    5. Renewing never shortens.
    6. A free row keeps its place: rows are claimed in the order of `seq`, whatever happened to them
       before.

    Failure cases
    - The owner dies: a sweeper that shares its PID namespace sees it at once (`host.incarnation`),
      any other when the lease ends. Once its rows are released, a later sweep deletes the owner and
      its beat page, so that a sweep that fails halfway can still blame the right rows. An owner
      that this process cannot see is deleted when it has held nothing for long; if it lives, it
      registers again.
    - The machine restarts: SQLite's lease clock is CLOCK_BOOTTIME, which starts anew, so every
      lease names its boot; a lease of another boot has ended.
    - The wall clock jumps: leases do not notice. Delays and expiry times do, which is what wall
      time means.
    - The response to a settle is lost: the caller does not know. It settles again; the row is gone
      or not its own any more, which is the same response that a stale receipt gets. So such a
      settle is reported as unknown, never as lost.
    - Two sweepers run at once: each row is released by one of them (a single writer on SQLite, SKIP
      LOCKED on PostgreSQL).
    - The store is full or gone in the middle: the transaction did not happen, and every caller in
      it gets the error.
    - The process forks: the child opens the store anew and is an owner of its own (`forks`).
"""
