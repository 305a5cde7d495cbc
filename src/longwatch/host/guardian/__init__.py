"""The guardian: a small single-threaded process that owns every child of the host.

It exists so that no child outlives the host and none is left behind. The host starts it by exec,
because a process with threads cannot fork safely, and holds one end of a socket pair, the
*control*. The guardian uses the standard library alone, in isolated mode. The host decides when to
stop, how long to wait and what to restart. The guardian spawns, signals, reaps, finds the members
of a tree and kills them.

Which process belongs to which tree
    Every child is the leader of a new session and the root of a *tree*. The guardian is the
    subreaper of all of them: it becomes the parent of a process whose parent died. A process below
    the guardian belongs to the tree

    1. whose cgroup it is in, where the guardian could make a cgroup v2 for the tree, else
    2. whose leader is among its ancestors, else
    3. whose session it is in, else
    4. whose mark is in its environment (`LONGWATCH_OWNER`, random, one per tree), else
    5. of its parent. A process that none of these rules assigns belongs to the only tree if there
       is just one.

    The guardian never touches processes that are not below it.

From fork to exec
    The child does these steps in order: fork · session, cgroup, default signals · open files and
    nice, while it is privileged · groups, group, user · death signal, which the kernel clears when
    the user changes · umask, directory, streams, as that user · data limit · exec. The guardian
    reports the step that fails.

    A memory limit is set on the cgroup of the tree if the cgroup around all trees has the memory
    controller. It counts for the whole tree, and the kernel kills the whole tree at once. Elsewhere
    it limits the data (not the address space) of each process. Then an end counts as out of memory
    if it is a failure or a crash with at least four fifths of the limit used.

States of a tree
    spawning   forked; the exec has neither succeeded nor failed yet
    running    the leader lives
    lingering  the leader has ended and is reported (`ended`); other members may still run
    killing    every member gets SIGKILL, repeatedly, until a scan finds none
    cleared    no member is left; reported (`cleared`) and forgotten

    A tree goes from running to lingering when its leader ends. The host (`kill`) or the loss of the
    host moves it to killing. The guardian checks the trees after it has reaped a process, and in
    any case every quarter of a second.

Failure cases
    The host dies, by any signal: its pidfd and the control become readable. The guardian kills
    every tree and exits when none is left.
    The guardian dies: PDEATHSIG kills every leader at once. The host finds the other members by
    their cgroups and marks and kills them. A host that is a subreaper also kills every process it
    then inherits.
    Both die at once: only the leaders are killed. The next guardian removes the cgroups that were
    left, which it recognises because each guardian holds a lock on its own.
    A process forks faster than it is killed: SIGKILL to its cgroup or its process group also kills
    the processes that are being forked. A process that keeps forking, leaving its group and exiting
    is missed by every scan. But the guardian reaps its orphans, so an empty scan proves nothing
    while orphans die. The guardian then looks for the latest copy among its own children.
    A process executes a program, or dies, during a scan: its mark cannot be read, so the guardian
    does not take any tree for empty then.
    A process cannot die (uninterruptible sleep): after 5 s the guardian reports its tree as
    cleared with the number of survivors, and goes on killing.
    The kernel reuses a pid between scan and kill: signals go through a pidfd whose start time was
    compared. The pid of a leader that has ended names its session and its group only while a scan
    finds members in them.
"""
