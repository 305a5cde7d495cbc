"""Trees: which processes belong to which child, and how a tree is killed until nothing of it is
left.
"""

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
    """Where a tree is in its life; see the package's prose."""

    SPAWNING = auto()
    RUNNING = auto()
    LINGERING = auto()
    KILLING = auto()


ENDING_STATES = frozenset({TreeState.LINGERING, TreeState.KILLING})


class ProcessTree:
    """One child and everything that came out of it."""

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
        """As it stands in the environment."""
        self.cgroup = cgroup
        self.leader = leader
        self.leader_alive = leader_alive
        self.exec_pipe: int | None = None
        """The pipe that tells how the exec went; None once it has told."""
        self.state = TreeState.SPAWNING
        self.data_limit: int | None = None
        """How many bytes of data each process may have, where that is how memory is limited."""
        self.session_over = False
        self.killed: set[tuple[int, int]] = set()
        """Whom SIGKILL was sent to."""
        self.killing_since: float | None = None
        self.reported = False
        """Whether the host was told that it is cleared, or cannot be."""

    def update_session(self, members: list[Process]) -> None:
        """Once the leader has ended and its session is empty, its number may be given to
        somebody else: it says nothing then.
        """
        self.session_over = self.session_over or not (
            self.leader_alive or any(p.session == self.leader for p in members)
        )

    def start_killing(self) -> None:
        self.state = TreeState.KILLING
        self.killing_since = self.killing_since or time.monotonic()

    @property
    def has_populated_cgroup(self) -> bool:
        """Whether the kernel says that something of it lives."""
        return self.cgroup is not None and self.cgroup.populated

    def ran_out_of_memory(self, status: int, max_rss: int) -> bool:
        """Whether its leader, which ended so, ended for want of memory that it may not have."""
        if self.data_limit is not None:
            return likely_out_of_memory(status, max_rss, self.data_limit)
        return status != 0 and self.cgroup is not None and self.cgroup.out_of_memory

    @property
    def kill_timed_out(self) -> bool:
        """Whether it has been killed for so long that its survivors have to be told."""
        return (
            self.killing_since is not None and time.monotonic() - self.killing_since > _KILL_TIMEOUT
        )


class OwnershipIndex:
    """What tells trees apart, to be looked up: whose leader a pid is, whose session a number,
    whose mark an environment's entry.
    """

    def __init__(self, trees: Iterable[ProcessTree]) -> None:
        self.trees = list(trees)
        self.leaders = {tree.leader: tree for tree in self.trees if tree.leader_alive}
        self.sessions = {tree.leader: tree for tree in self.trees if not tree.session_over}
        self.marks = {tree.mark: tree for tree in self.trees}


class TreeScanner:
    """All trees of one guardian, told apart by one look at /proc."""

    def __init__(self, table: ProcTable | None = None) -> None:
        self.table = table or ProcTable()
        self.environment_unreadable = False
        """Set when somebody was met whose mark could not be read at that moment; the asker
        clears it.
        """

    def members(self, trees: Iterable[ProcessTree]) -> dict[ProcessTree, list[Process]]:
        """The living processes of every tree, from one scan; the prose of the package says what
        belongs to whom.
        """
        index = OwnershipIndex(trees)
        found: dict[ProcessTree, list[Process]] = {tree: [] for tree in index.trees}
        in_cgroup = {pid: tree for tree in index.trees if tree.cgroup for pid in tree.cgroup.pids()}
        owners: dict[int, ProcessTree | None] = {}
        for process in descendants(self.table.read(), self.table.own_key):
            owner = in_cgroup.get(process.pid) or self._owner(
                process, index, owners.get(process.parent)
            )
            owners[process.key] = owner
            if owner is not None:
                found[owner].append(process)
        for tree, processes in found.items():
            tree.update_session(processes)
        return found

    def _owner(
        self, process: Process, index: OwnershipIndex, parent_owner: ProcessTree | None
    ) -> ProcessTree | None:
        """By the rules after the first: leader and ancestors, session, mark, the only tree."""
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
        """SIGKILL to every member of the doomed trees: the cgroup, then every process group, then
        one by one; returns whom it met.

        The first two are done by the kernel at one stroke, also to what is being forked just then:
        something that multiplies faster than we can list it is caught by them or not at all.
        """
        members = self.members(trees)
        for tree in killing:
            if tree.cgroup:
                tree.cgroup.kill()
            self._kill_processes(tree, members[tree])
        return {tree: members[tree] for tree in killing}

    def kill_orphans(self, killing: list[ProcessTree], trees: Iterable[ProcessTree]) -> None:
        """Kill orphans of the doomed trees as fast as we can look: for one that has forked and
        gone whenever a scan comes to it.
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
        """SIGKILL to whatever hangs below this process."""
        for process in [
            *descendants(self.table.read(), self.table.own_key),
            *self.table.own_children(),
        ]:
            self.table.signal(process, signal.SIGKILL)


def kill_marked(  # noqa: PLR0913 - each is optional and has its own meaning
    marks: Iterable[str],
    *,
    leaders: Iterable[tuple[int, int]] = (),
    cgroup: Cgroup | None = None,
    include_descendants: bool = False,
    is_spared: Callable[[int], bool] = lambda _: False,
    variable: str = OWNER_VARIABLE,
) -> int:
    """Kill whatever bears one of these marks, wherever it hangs, until nothing does; for a host
    that lost its guardian.

    A process bears a mark as the value of `variable` in its environment. With `leaders`, pids and
    start times, first the process groups of those that lived just now; with `cgroup`, also every
    process in it, and the cgroup is removed; with `include_descendants`, also every descendant of
    this process, but for those of which `is_spared` says so by their pid, and what descends from
    them. How many were met, those that died by themselves included.
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
    """The processes that bear a mark, are in the cgroup or descend from us; and whether there is
    a process of which that cannot be said now.
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
    """The keys of what descends from us, without what is spared and descends from that."""
    ours = list(descendants(processes, root))
    spared = [process for process in ours if is_spared(process.pid)]
    kept = {process.key for process in spared}
    for process in spared:
        kept |= {each.key for each in descendants(processes, process.key)}
    return {process.key for process in ours} - kept


def kill_processes(table: ProcTable, processes: Iterable[Process]) -> None:
    """SIGKILL to their process groups, then to each.

    The group of a tree's member holds nobody else: groups live inside sessions, and the session was
    made inside the tree.
    """
    processes = list(processes)
    by_age = sorted(processes, key=lambda process: process.start)
    _kill_groups(
        table, {process.group: process.start for process in by_age if process.group != os.getpgrp()}
    )
    for process in processes:
        table.signal(process, signal.SIGKILL)


def _kill_groups(table: ProcTable, groups: dict[int, int]) -> None:
    """SIGKILL to process groups, each given with the start time of somebody who was seen in it.

    The number may be somebody else's by now, if we were held up: numbers come round within seconds
    where much is forked. Then a process bears it that is younger than the one that was seen.
    """
    for group, seen in groups.items():
        if group > 1 and not table.started_after(group, seen):
            with suppress(OSError):
                os.killpg(group, signal.SIGKILL)


def likely_out_of_memory(status: int, max_rss: int, limit: int) -> bool:
    """Whether a process with limited data probably ended because of the limit: it failed or crashed
    with its memory nearly used up.
    """
    code = os.waitstatus_to_exitcode(status)
    return (code > 0 or -code in _CRASH_SIGNALS) and max_rss >= _NEAR_LIMIT * limit
