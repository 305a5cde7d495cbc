"""SQL stores: one small seam over the engines, migrations, named SQL, and `claims`, the one
mechanism of leased rows.

Claimable rows: states, invariants, failure cases
    A message and a computation are both rows that somebody may work on for a time. Any table with
    these columns is claimable:

    | column        | meaning                                                                    |
    |---------------|----------------------------------------------------------------------------|
    | `seq`         | the row's number, in the order of its making                               |
    | `lane`        | what it waits in line with: a mailbox, a graph                             |
    | `held`        | 0 free; 1 not yet: delayed until `ready_at`; 2 leased                      |
    | `ready_at`    | wall time before which it is not taken                                     |
    | `owner`       | the incarnation that holds the lease; null unless leased                   |
    | `term`        | raised by every claim: the fencing number                                  |
    | `lease_until` | when the lease ends, on the store's lease clock; null unless leased        |
    | `deliveries`, `failures`, `crashes`, `releases`
                    | how often it was handed out, and how that ended                            |

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
       numbers by chance.
    3. Only the store's clock says that a lease has ended. Durations come from clients, moments
       never do.
    4. A lease that has ended is still its owner's until the sweep takes it: a late settle that
       comes before the sweep counts, one that comes after changes nothing. Work is never both
       redelivered and settled by the one who lost it.
    5. Renewing never shortens.
    6. A free row keeps its place: rows are claimed in the order of `seq`, whatever happened to them
       before.

    Failure cases The owner dies: a sweeper that shares its PID namespace sees it at once
    (`host.incarnation`), any other when the lease ends. Once its rows are back, a later sweep
    strikes it off and removes its beat page, so that one that fails halfway can still blame justly.
    An owner that nobody here can see is struck off when it has held nothing for long; if it lives,
    it enters again. The machine restarts: SQLite's lease clock is CLOCK_BOOTTIME, which starts
    anew, so every lease names its boot; another boot's lease has ended. The wall clock jumps:
    leases do not notice, delays and expiry times do, which is what wall time means. The answer to a
    settle is lost: the caller does not know. It asks again; the row is gone or not its own any
    more, which is the same answer that a stale receipt gets, so such a settle is reported as
    unknown, never as lost. Two sweepers meet: each row is taken by one of them (a single writer on
    SQLite, SKIP LOCKED on PostgreSQL). The store is full or gone in the middle: the transaction did
    not happen; every caller in it is told. The process forks: the child opens the store anew and is
    an owner of its own (`forks`).
"""
