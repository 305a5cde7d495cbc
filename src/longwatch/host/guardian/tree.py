"""Trees: which processes belong to which child, and how a tree is killed until nothing of it is
left.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from enum import StrEnum, auto

from longwatch.host.guardian.cgroups import Cgroup
from longwatch.host.guardian.limits import ran_out
from longwatch.host.guardian.proctable import Process, ProcTable, descendants

MARK = "LONGWATCH_OWNER"
_STUBBORN_AFTER = 5.0
_HUNT_SECONDS = 0.01
_AGAIN = 0.002


class Phase(StrEnum):
    """Where a tree is in its life; see the package's prose."""

    SPAWNING = auto()
    RUNNING = auto()
    LINGERING = auto()
    KILLING = auto()


ENDING = frozenset({Phase.LINGERING, Phase.KILLING})


class Tree:
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
        self.mark = f"{MARK}={mark}".encode()
        """As it stands in the environment."""
        self.cgroup = cgroup
        self.leader = leader
        self.leader_alive = leader_alive
        self.verdict: int | None = None
        """The pipe that tells how the exec went; None once it has told."""
        self.phase = Phase.SPAWNING
        self.data_limit: int | None = None
        """How many bytes of data each process may have, where that is how memory is limited."""
        self.session_over = False
        self.met: set[tuple[int, int]] = set()
        """Whom SIGKILL was sent to."""
        self.killing_since: float | None = None
        self.told = False
        """Whether the host was told that it is cleared, or cannot be."""

    def note_session(self, members: list[Process]) -> None:
        """Once the leader has ended and its session is empty, its number may be given to
        somebody else: it says nothing then.
        """
        self.session_over = self.session_over or not (
            self.leader_alive or any(p.session == self.leader for p in members)
        )

    def start_killing(self) -> None:
        self.phase = Phase.KILLING
        self.killing_since = self.killing_since or time.monotonic()

    @property
    def caged(self) -> bool:
        """Whether the kernel says that something of it lives."""
        return self.cgroup is not None and self.cgroup.populated

    def ran_out_of_memory(self, status: int, max_rss: int) -> bool:
        """Whether its leader, which ended so, ended for want of memory that it may not have."""
        if self.data_limit is not None:
            return ran_out(status, max_rss, self.data_limit)
        return status != 0 and self.cgroup is not None and self.cgroup.out_of_memory

    @property
    def stubborn(self) -> bool:
        """Whether it has been killed for so long that its survivors have to be told."""
        return (
            self.killing_since is not None
            and time.monotonic() - self.killing_since > _STUBBORN_AFTER
        )


class Signs:
    """What tells trees apart, to be looked up: whose leader a pid is, whose session a number,
    whose mark an environment's entry.
    """

    def __init__(self, trees: Iterable[Tree]) -> None:
        self.trees = list(trees)
        self.leaders = {tree.leader: tree for tree in self.trees if tree.leader_alive}
        self.sessions = {tree.leader: tree for tree in self.trees if not tree.session_over}
        self.marks = {tree.mark: tree for tree in self.trees}


class Forest:
    """All trees of one guardian, told apart by one look at /proc."""

    def __init__(self, table: ProcTable | None = None) -> None:
        self.table = table or ProcTable()
        self.unclear = False
        """Set when somebody was met whose mark could not be read at that moment; the asker
        clears it.
        """

    def members(self, trees: Iterable[Tree]) -> dict[Tree, list[Process]]:
        """The living processes of every tree, from one scan; the prose of the package says what
        belongs to whom.
        """
        known = Signs(trees)
        found: dict[Tree, list[Process]] = {tree: [] for tree in known.trees}
        caged = {pid: tree for tree in known.trees if tree.cgroup for pid in tree.cgroup.pids()}
        owners: dict[int, Tree | None] = {}
        for process in descendants(self.table.read(), self.table.own_key):
            owner = caged.get(process.pid) or self._owner(
                process, known, owners.get(process.parent)
            )
            owners[process.key] = owner
            if owner is not None:
                found[owner].append(process)
        for tree, processes in found.items():
            tree.note_session(processes)
        return found

    def _owner(self, process: Process, known: Signs, parents: Tree | None) -> Tree | None:
        """By the rules after the first: leader and ancestors, session, mark, the only tree."""
        owner = known.leaders.get(process.pid) or parents or known.sessions.get(process.session)
        if owner is not None:
            return owner
        return known.trees[0] if len(known.trees) == 1 else self._marked(process, known)

    def _marked(self, process: Process, known: Signs) -> Tree | None:
        environment = self.table.environment(process)
        if environment is None:
            self.unclear = True
            return None
        return next((known.marks[entry] for entry in environment if entry in known.marks), None)

    def kill(self, doomed: list[Tree], trees: Iterable[Tree]) -> dict[Tree, list[Process]]:
        """SIGKILL to every member of the doomed trees: the cgroup, then every process group, then
        one by one; returns whom it met.

        The first two are done by the kernel at one stroke, also to what is being forked just then:
        something that multiplies faster than we can list it is caught by them or not at all.
        """
        members = self.members(trees)
        for tree in doomed:
            if tree.cgroup:
                tree.cgroup.kill()
            self._strike(tree, members[tree])
        return {tree: members[tree] for tree in doomed}

    def hunt(self, doomed: list[Tree], trees: Iterable[Tree]) -> None:
        """Kill orphans of the doomed trees as fast as we can look: for one that has forked and
        gone whenever a scan comes to it.
        """
        known = Signs(trees)
        until = time.monotonic() + _HUNT_SECONDS
        while time.monotonic() < until:
            for process in self.table.own_children():
                owner = self._owner(process, known, None)
                if owner in doomed and owner is not None:
                    self._strike(owner, [process])

    def _strike(self, tree: Tree, prey: list[Process]) -> None:
        strike(self.table, prey)
        tree.met.update((process.pid, process.start) for process in prey)

    def kill_everything(self) -> None:
        """SIGKILL to whatever hangs below this process."""
        for process in [
            *descendants(self.table.read(), self.table.own_key),
            *self.table.own_children(),
        ]:
            self.table.signal(process, signal.SIGKILL)


def kill_marked(
    marks: Iterable[str],
    *,
    leaders: Iterable[tuple[int, int]] = (),
    cage: Cgroup | None = None,
    below: bool = False,
) -> int:
    """Kill whatever bears one of these marks, wherever it hangs, until nothing does; for a host
    that lost its guardian.

    With `leaders`, pids and start times, first the process groups of those that lived just now;
    with `cage`, also what is in this cgroup, which is removed; with `below`, also whatever hangs
    below this process. How many were met, those that died by themselves included.
    """
    table = ProcTable()
    wanted = {f"{MARK}={mark}".encode() for mark in marks}
    met: set[tuple[int, int]] = set()
    groups = dict(leaders)
    until = time.monotonic() + _STUBBORN_AFTER
    while time.monotonic() < until:
        found, unclear = _marked(table, wanted, cage, below=below)
        if not (found or unclear or groups or (cage is not None and cage.populated)):
            break
        _strike_groups(table, groups)
        if cage is not None:
            cage.kill()
        strike(table, found)
        met |= {(process.pid, process.start) for process in found}
        groups = {}
        time.sleep(_AGAIN)
    if cage is not None:
        cage.remove()
    return len(met)


def _marked(
    table: ProcTable, wanted: set[bytes], cage: Cgroup | None, *, below: bool
) -> tuple[list[Process], bool]:
    """Who bears a mark, is in the cage or hangs below us; and whether there is somebody of whom
    that cannot be told now.
    """
    processes = table.read()
    ours = {process.key for process in descendants(processes, table.own_key)} if below else set()
    caged = cage.pids() if cage else set()
    others = [process for process in processes.values() if process.key != table.own_key]
    environments = {process: table.environment(process) for process in others} if wanted else {}
    found = [
        p
        for p in others
        if p.key in ours or p.pid in caged or wanted.intersection(environments.get(p) or ())
    ]
    return found, None in environments.values()


def strike(table: ProcTable, prey: Iterable[Process]) -> None:
    """SIGKILL to their process groups, then to each.

    The group of a tree's member holds nobody else: groups live inside sessions, and the session was
    made inside the tree.
    """
    prey = list(prey)
    by_age = sorted(prey, key=lambda process: process.start)
    _strike_groups(
        table, {process.group: process.start for process in by_age if process.group != os.getpgrp()}
    )
    for process in prey:
        table.signal(process, signal.SIGKILL)


def _strike_groups(table: ProcTable, groups: dict[int, int]) -> None:
    """SIGKILL to process groups, each given with the start time of somebody who was seen in it.

    The number may be somebody else's by now, if we were held up: numbers come round within seconds
    where much is forked. Then a process bears it that is younger than the one that was seen.
    """
    for group, seen in groups.items():
        if group > 1 and not table.is_younger(group, seen):
            with suppress(OSError):
                os.killpg(group, signal.SIGKILL)
