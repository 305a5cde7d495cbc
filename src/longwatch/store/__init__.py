"""SQL stores: one protocol over SQLite and PostgreSQL, migrations, named SQL, and `claims`, which
leases rows.

    database.py     the protocol: transactions, clocks, notifications
    sqlite/         one file, one writer thread, group commit
    postgres/       a server: connections, transactions, retries
    notify/         the listener that wakes receivers, and datagrams between local processes
    claims.py       claim, renew, release, settle
    scan_bound.py   keeps claims fast while another session holds an old snapshot
    blame.py        decides which counter of a row rises when a claim ends unsettled; suspects
    sweep.py        reclaims the rows of dead owners and of ended leases
    lapse_guard.py  delays the reclaim of ended leases after a step of the store's clock
    sweep_turns.py  the one engine of a fleet that sweeps a queue or a table
    host_owners.py  finds the dead owners of a host, in one of its processes
    host_lock.py    the lock of that process
    retry.py        retries a call until a deadline
    migrations.py   brings the schema up to date
    forks.py        closes inherited connections in a forked child

Claimable rows: states, invariants, failure cases
    A worker leases a message or a computation for a time. Both are rows. Any table with these
    columns is claimable:

    | column        | meaning                                                                    |
    |---------------|----------------------------------------------------------------------------|
    | `seq`         | the number of the row, in the order of insertion                           |
    | `queue`       | names the rows that wait together: those of one mailbox or graph           |
    | `lease_state` | 0 free; 1 delayed until `ready_at`; 2 leased                               |
    | `ready_at`    | wall time before which the row is not claimed                              |
    | `owner`       | the incarnation that holds the lease; null unless leased                   |
    | `term`        | the fencing token; every claim raises it                                   |
    | `lease_until` | when the lease ends, on the store's lease clock; null unless leased        |
    | `deliveries`, `failures`, `crashes`, `lost`, `releases`
                    | how often the row was claimed, and how each claim ended (`blame`)          |
    | `error`, `traceback`
                    | of the last failure                                                        |

    free ──claim──► leased ──settle──► gone
     ▲ ▲              │  ▲ └─renew─┘
     │ └──release─────┤
     │                └──release with a delay──► delayed ──due──► free
     └──sweep: the lease or its owner has ended

    Invariants
    1. At most one (owner, term) leases a row. A claim raises the term at least to the store's time
       in microseconds. So a pair never repeats, not even after an older state of the store was
       restored and new rows get the same numbers.
    2. Settle, release and renew name row, owner and term, and change nothing unless all three
       match. The term alone does not suffice: a clock can be set back with the state. Owners are
       random numbers.
    3. Only the store's clock decides that a lease has ended. Clients send durations, never times.
    4. An ended lease still belongs to its owner until the sweep reclaims it. A late settle before
       the sweep counts; after the sweep it changes nothing. Work is never both redelivered and
       settled by the owner that lost it.
    5. A renewal never shortens a lease.
    6. A free row keeps its place: rows are claimed in the order of `seq`, whatever happened to them
       before. A claim of a selection passes over the rows outside it.
    7. A claim that takes a suspect (`blame`) takes no other row.
    8. No transaction reads files or processes. A sweep first inspects the owners that may be gone.
       Then it finds their rows again and reclaims those that they still lease.

    Failure cases
    - The owner dies. A sweeper in the same PID namespace sees that at once (`host.incarnation`);
      any other reclaims when the lease ends. The owner's row names its beat page and its parent,
      and records whether it drains. The row and the page decide the blame. A later sweep deletes
      the owner and its page, only after its rows are free. So a sweep that fails halfway can
      still assign the blame.
    - An owner that this machine cannot see is deleted when it has held no lease for long. If it
      lives, its next claim registers it again.
    - The machine restarts. SQLite's lease clock is CLOCK_BOOTTIME, which starts again, so every
      lease names its boot. A lease of another boot has ended.
    - The wall clock jumps. Leases do not change; delays and expiry times do.
    - The lease clock jumps: a step of the server's clock, a failover, a machine that was suspended.
      Leases lapse though their owners live. The sweeper waits one renewal interval, in which those
      owners renew (`lapse_guard`).
    - The reply to a settle is lost. The caller retries and gets the reply of a stale claim, because
      the row is gone. So the settle is reported as unknown, never as lost.
    - Two sweepers meet. Each row is reclaimed by one of them: SQLite has a single writer, and
      PostgreSQL skips locked rows.
    - The disk fills up or the connection breaks during a transaction. The transaction is rolled
      back, and every caller in it gets the error.
    - The process forks. The child opens the store again and registers as another owner (`forks`).

Notify: a commit notifies the channels that its transaction named, in this process and in others. A
    notification only wakes receivers that wait, and it may get lost. So every receiver is also
    woken once a second and polls (`notify.listener`). Engines of a PostgreSQL store poll every ten
    seconds instead: the one that has the turn of a queue looks once a second, and notifies if a row
    waits (`sweep_turns`). Processes do not know of each other. On
    PostgreSQL a process sends at most one notification in 10 ms, for all its channels
    (`postgres.notify_throttle`), and has one listener for each URL (`postgres.shared_clients`).
"""
