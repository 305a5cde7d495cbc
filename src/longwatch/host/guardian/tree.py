"""Process trees: assigns processes to the tree of a child, and kills every member of a tree."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import StrEnum, auto

from longwatch.host.guardian.cgroups import Cgroup
from longwatch.host.guardian.proctable import Process, ProcTable, descendants

OWNER_VARIABLE = "LONGWATCH_OWNER"
_KILL_TIMEOUT = 5.0
_ORPHAN_KILL_SECONDS = 0.01
_KILL_SCAN_INTERVAL = 0.002
_NEAR_LIMIT = 0.8
_CRASH_SIGNALS = frozenset(
    {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGTRAP, signal.SIGILL}
)
"""Signals that end a program which does not handle a failed allocation."""


class TreeState(StrEnum):
    """State of a process tree; the package docstring describes the states."""

    SPAWNING = auto()
    RUNNING = auto()
    LINGERING = auto()
    KILLING = auto()


ENDING_STATES = frozenset({TreeState.LINGERING, TreeState.KILLING})


class ProcessTree:
    """One child process and all its descendants."""

    def __init__(
        self,
        number: int,
        mark: str,
        cgroup: Cgroup | None = None,
        *,
        leader: int = 0,
        leader_alive: bool = True,
    ) -> None:
        self.id = number
        self.mark = f"{OWNER_VARIABLE}={mark}".encode()
        """The entry in the environment, `NAME=value`."""
        self.cgroup = cgroup
        self.leader = leader
        self.leader_alive = leader_alive
        self.exec_pipe: int | None = None
        """The pipe with the result of the exec; None once it was read."""
        self.state = TreeState.SPAWNING
        self.data_limit: int | None = None
        """Bytes of data that each process may have; None if the cgroup limits memory, or nothing
        does.
        """
        self.session_over = False
        self.killed: set[tuple[int, int]] = set()
        """Pid and start time of the processes that got SIGKILL."""
        self.killing_since: float | None = None
        self.reported = False
        """Whether the host was notified that the tree is cleared, or cannot be."""

    def update_session(self, members: list[Process]) -> None:
        """Record whether the leader has ended and its session is empty.

        From then on the kernel may reuse the session's number, so the number identifies no member.
        """
        self.session_over = self.session_over or not (
            self.leader_alive or any(p.session == self.leader for p in members)
        )

    def start_killing(self) -> None:
        self.state = TreeState.KILLING
        self.killing_since = self.killing_since or time.monotonic()

    @property
    def has_populated_cgroup(self) -> bool:
        """Whether its cgroup contains a living process."""
        return self.cgroup is not None and self.cgroup.populated

    def ran_out_of_memory(self, status: int, max_rss: int) -> bool:
        """Whether the leader, which ended with this status, ended because of its memory limit."""
        if self.data_limit is not None:
            return likely_out_of_memory(status, max_rss, self.data_limit)
        return status != 0 and self.cgroup is not None and self.cgroup.out_of_memory

    @property
    def kill_timed_out(self) -> bool:
        """Whether the killing has lasted so long that the survivors must be reported."""
        return (
            self.killing_since is not None and time.monotonic() - self.killing_since > _KILL_TIMEOUT
        )


class OwnershipIndex:
    """Lookup tables that assign a process to a tree: by leader pid, session number and mark."""

    def __init__(self, trees: Iterable[ProcessTree]) -> None:
        self.trees = list(trees)
        self.leaders = {tree.leader: tree for tree in self.trees if tree.leader_alive}
        self.sessions = {tree.leader: tree for tree in self.trees if not tree.session_over}
        self.marks = {tree.mark: tree for tree in self.trees}


class TreeScanner:
    """Finds and kills the members of all trees of one guardian, by scans of /proc."""

    def __init__(self, table: ProcTable | None = None) -> None:
        self.table = table or ProcTable()
        self.environment_unreadable = False
        """Set when a scan met a process whose mark could not be read at that moment; the caller
        clears it.
        """

    def members(
        self, trees: Iterable[ProcessTree], *, root: int | None = None
    ) -> dict[ProcessTree, list[Process]]:
        """Return the living processes of every tree, from one scan.

        The package docstring has the rules of ownership. `root` is the pid of the guardian, a child
        of this process; None if this process is the guardian.
        """
        index = OwnershipIndex(trees)
        found: dict[ProcessTree, list[Process]] = {tree: [] for tree in index.trees}
        in_cgroup = {pid: tree for tree in index.trees if tree.cgroup for pid in tree.cgroup.pids()}
        owners: dict[int, ProcessTree | None] = {}
        processes = self.table.read()
        root_key = self.table.own_key
        if root is not None:
            root_key = _child_key(root_key, root, processes)
        for process in descendants(processes, root_key):
            owner = in_cgroup.get(process.pid) or self._owner(
                process, index, owners.get(process.parent)
            )
            owners[process.key] = owner
            if owner is not None:
                found[owner].append(process)
        for tree, living in found.items():
            tree.update_session(living)
        return found

    def _owner(
        self, process: Process, index: OwnershipIndex, parent_owner: ProcessTree | None
    ) -> ProcessTree | None:
        """Apply the rules after the cgroup rule: leader and ancestors, session, mark, the only
        tree.
        """
        owner = (
            index.leaders.get(process.pid) or parent_owner or index.sessions.get(process.session)
        )
        if owner is not None:
            return owner
        return index.trees[0] if len(index.trees) == 1 else self._owner_by_mark(process, index)

    def _owner_by_mark(self, process: Process, index: OwnershipIndex) -> ProcessTree | None:
        environment = self.table.environment(process)
        if environment is None:
            self.environment_unreadable = True
            return None
        return next((index.marks[entry] for entry in environment if entry in index.marks), None)

    def kill(
        self, killing: list[ProcessTree], trees: Iterable[ProcessTree]
    ) -> dict[ProcessTree, list[Process]]:
        """Send SIGKILL to every member of the trees in `killing`: cgroup, process groups, single
        processes.

        Returns the members it found. The kernel kills a cgroup or a group at once, including
        processes that are being forked. Nothing else catches processes that fork faster than they
        can be listed.
        """
        members = self.members(trees)
        for tree in killing:
            if tree.cgroup:
                tree.cgroup.kill()
            self._kill_processes(tree, members[tree])
        return {tree: members[tree] for tree in killing}

    def kill_orphans(self, killing: list[ProcessTree], trees: Iterable[ProcessTree]) -> None:
        """Kill orphans of the trees in `killing` in a tight loop of 10 ms.

        This catches a process that has always forked and exited when a scan reaches it.
        """
        index = OwnershipIndex(trees)
        until = time.monotonic() + _ORPHAN_KILL_SECONDS
        while time.monotonic() < until:
            for process in self.table.own_children():
                owner = self._owner(process, index, None)
                if owner in killing and owner is not None:
                    self._kill_processes(owner, [process])

    def _kill_processes(self, tree: ProcessTree, processes: list[Process]) -> None:
        kill_processes(self.table, processes)
        tree.killed.update((process.pid, process.start) for process in processes)

    def kill_everything(self) -> None:
        """Send SIGKILL to every process below this one."""
        for process in [
            *descendants(self.table.read(), self.table.own_key),
            *self.table.own_children(),
        ]:
            self.table.signal(process, signal.SIGKILL)


def _child_key(parent: int, pid: int, processes: dict[int, Process]) -> int:
    """The key of the child with this pid; 0, which has no descendants, if there is none. In other
    namespaces there are processes with the same pid.
    """
    children = (process for process in processes.values() if process.parent == parent)
    return next((child.key for child in children if child.pid == pid), 0)


def kill_marked(  # noqa: PLR0913 - each is optional and has its own meaning
    marks: Iterable[str],
    *,
    leaders: Iterable[tuple[int, int]] = (),
    cgroup: Cgroup | None = None,
    include_descendants: bool = False,
    is_spared: Callable[[int], bool] = lambda _: False,
    variable: str = OWNER_VARIABLE,
) -> int:
    """Kill every process that has one of these marks, repeatedly until none is left or 5 s have
    passed.

    For a host that lost its guardian. Blocks. A process has a mark if it is the value of `variable`
    in its environment. `leaders` are pids and start times of leaders that were alive just now:
    their process groups are killed first. With `cgroup`, every process in it is killed too, and the
    cgroup is removed. With `include_descendants`, every descendant of this process is killed too,
    except those for whose pid `is_spared` returns True, and their descendants. Returns how many
    processes it found, including those that ended by themselves.
    """
    table = ProcTable()
    wanted = {f"{variable}={mark}".encode() for mark in marks}
    killed: set[tuple[int, int]] = set()
    groups = dict(leaders)
    until = time.monotonic() + _KILL_TIMEOUT
    while time.monotonic() < until:
        found, unclear = _find_marked(
            table, wanted, cgroup, include_descendants=include_descendants, is_spared=is_spared
        )
        if not (found or unclear or groups or (cgroup is not None and cgroup.populated)):
            break
        _kill_groups(table, groups)
        if cgroup is not None:
            cgroup.kill()
        kill_processes(table, found)
        killed |= {(process.pid, process.start) for process in found}
        groups = {}
        time.sleep(_KILL_SCAN_INTERVAL)
    if cgroup is not None:
        cgroup.remove()
    return len(killed)


def _find_marked(
    table: ProcTable,
    wanted: set[bytes],
    cgroup: Cgroup | None,
    *,
    include_descendants: bool,
    is_spared: Callable[[int], bool],
) -> tuple[list[Process], bool]:
    """Return the processes that have a mark, are in the cgroup or descend from this process.

    The second value says whether the environment of some process could not be read now.
    """
    processes = table.read()
    ours = _own_descendants(processes, table.own_key, is_spared) if include_descendants else set()
    in_cgroup = cgroup.pids() if cgroup else set()
    others = [process for process in processes.values() if process.key != table.own_key]
    environments = {process: table.environment(process) for process in others} if wanted else {}
    found = [
        p
        for p in others
        if p.key in ours or p.pid in in_cgroup or wanted.intersection(environments.get(p) or ())
    ]
    return found, None in environments.values()


def _own_descendants(
    processes: dict[int, Process], root: int, is_spared: Callable[[int], bool]
) -> set[int]:
    """Return the keys of this process's descendants, without spared ones and their descendants."""
    ours = list(descendants(processes, root))
    spared = [process for process in ours if is_spared(process.pid)]
    kept = {process.key for process in spared}
    for process in spared:
        kept |= {each.key for each in descendants(processes, process.key)}
    return {process.key for process in ours} - kept


def kill_processes(table: ProcTable, processes: Iterable[Process]) -> None:
    """Send SIGKILL to their process groups, then to each process.

    The group of a tree's member contains no other processes: a group lies inside a session, and the
    session was created inside the tree.
    """
    processes = list(processes)
    by_age = sorted(processes, key=lambda process: process.start)
    _kill_groups(
        table, {process.group: process.start for process in by_age if process.group != os.getpgrp()}
    )
    for process in processes:
        table.signal(process, signal.SIGKILL)


def _kill_groups(table: ProcTable, groups: dict[int, int]) -> None:
    """Send SIGKILL to process groups, each given with the start time of a process seen in it.

    The number may belong to another group by now, if this process was delayed: pids wrap around
    within seconds where many processes are forked. Then the process with that pid is younger than
    the one seen.
    """
    for group, seen in groups.items():
        if group > 1 and not table.started_after(group, seen):
            with suppress(OSError):
                os.killpg(group, signal.SIGKILL)


def likely_out_of_memory(status: int, max_rss: int, limit: int) -> bool:
    """Whether a process with limited data probably ended because of the limit.

    That is: it failed or crashed with its memory nearly used up.
    """
    code = os.waitstatus_to_exitcode(status)
    return (code > 0 or -code in _CRASH_SIGNALS) and max_rss >= _NEAR_LIMIT * limit
