"""The guardian: one small single-threaded process that owns every child, so that none outlives us
and none is left behind.

The host starts it by exec (a threaded host may not fork safely) and holds one end of a socket pair,
the *control*. The guardian runs on the standard library alone, in isolated mode, and knows no
policy: when to stop, how long to wait and what to restart is decided by the host; the guardian
spawns, signals, reaps, finds the members of a tree and kills them.

What belongs to whom
    Every child is the leader of a new session and the root of a *tree*. The guardian is the
    subreaper of all of them, so a process whose parent died hangs below the guardian and nowhere
    else. A process below the guardian belongs to the tree

    1. whose cgroup it is in, where a cgroup v2 could be made for the tree, else
    2. whose leader is among its ancestors, else
    3. whose session it is in, else
    4. whose mark stands in its environment (`LONGWATCH_OWNER`, random, one a tree), else
    5. of its parent; and a stranger that shows none of these belongs to the only tree if there is
       just one.

    Processes that are not below the guardian are never touched.

The way to a program
    fork · session, cgroup, default signals · open files and nice, while we may · groups, group,
    user · death signal, which the kernel forgets when the user changes · umask, directory, streams,
    as that user · data limit · exec. The step that fails is told.

    Memory is limited by the cgroup where the one around all trees is given the memory controller:
    for the whole tree, which then dies as one. Elsewhere it is data (not address space), for each
    process; then an end is put down to memory if it is a failure or a crash with four fifths of the
    limit used.

The life of a tree
    spawning   forked; the exec has neither succeeded nor failed yet
    running    the leader lives
    lingering  the leader has ended and is reported (`ended`); other members may still be at work
    killing    every member gets SIGKILL, again and again, until a scan finds none
    cleared    no member is left; reported (`cleared`) and forgotten

    running → lingering happens by itself; to killing the host leads (`kill`), or the loss of the
    host. A tree is checked when a process below the guardian was reaped, and every quarter of a
    second as a net below that.

Failure cases
    The host dies, by whatever signal: its pidfd and the control tell. Every tree is killed; the
    guardian ends when none is left. The guardian dies: PDEATHSIG kills every leader at once, the
    host finds the rest by their cgroups and marks and kills them; a host that is a subreaper also
    kills whatever it then inherits. If both die at once, only the leaders are killed, and the next
    guardian removes the cgroups that were left: each guardian holds a lock on its own. A process
    forks faster than it is killed: SIGKILL to its cgroup or its process group reaches at one stroke
    also what is being forked. One that forks, leaves its group and exits without end is missed by
    every scan, but not unnoticed: the guardian reaps what it leaves behind, so an empty scan proves
    nothing while orphans die, and its latest copy is hunted among our children. A process executes
    a program, or dies, just when it is looked at: its mark cannot be read, so no tree is believed
    empty then. A process cannot die (uninterruptible): after five seconds the tree is reported as
    cleared with its survivors counted, and the killing goes on. A pid is used again between scan
    and kill: signals go through a pidfd whose start time was compared. The number of a leader that
    has ended names its session and its group only as long as a scan finds somebody in them.
"""
