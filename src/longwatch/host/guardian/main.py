"""The guardian's own loop: one poll over the control, the host's pidfd, the signals' pipe and
the pipes of pending execs.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from longwatch.host.guardian.cgroups import Cgroups
from longwatch.host.guardian.kernel import become_subreaper
from longwatch.host.guardian.proctable import Process
from longwatch.host.guardian.spawn import Request, exec_error, spawn
from longwatch.host.guardian.tree import ENDING, Forest, Phase, Tree
from longwatch.host.guardian.wire import Inbox, Message, Outbox

_NET = 0.25
"""How often lingering trees are looked at though nothing was reaped, in seconds."""
_AGAIN = 0.003
"""How soon a tree that is being killed is looked at again."""


class Guardian:
    """Spawns, signals, reaps and clears trees as the host asks; kills them all when the host is
    gone.
    """

    def __init__(self, control: socket.socket, host: int, cgroups: Cgroups | None) -> None:
        self.control = control
        self.host = host
        self.host_descriptor = -1
        self.cgroups = cgroups
        self.forest = Forest()
        self.trees: dict[int, Tree] = {}
        self.stillborn: dict[int, Tree] = {}
        """By leader: those that could not start, until they are reaped."""
        self.inbox = Inbox()
        self.outbox = Outbox()
        self.poll = select.poll()
        self.readers: dict[int, Callable[[], None]] = {}
        self.host_gone = False
        self.next_look = 0.0
        self.members: dict[Tree, list[Process]] = {}
        self.signals = -1
        self.childless = False
        self.orphans_reaped = 0
        self.restless = False

    def run(self) -> None:
        """Serve until the host is gone and every tree is cleared."""
        self._watch(self.control.fileno(), self._hear)
        self._watch_host()
        self._watch_signals()
        while not self.host_gone or self.trees:
            self._turn()
        while not self.childless:
            self.forest.kill_everything()
            time.sleep(_AGAIN)
            self._collect()

    def _turn(self) -> None:
        for descriptor, _ in self.poll.poll(self._timeout()):
            if descriptor in self.readers:
                self.readers[descriptor]()
        self.members = {}
        if time.monotonic() >= self.next_look:
            self._look()
        self._speak()

    def _timeout(self) -> int | None:
        if not any(tree.phase in ENDING for tree in self.trees.values()):
            self.next_look = time.monotonic() + _NET
            return None
        return max(0, int((self.next_look - time.monotonic()) * 1000) + 1)

    # --- the host ---

    def _hear(self) -> None:
        if not self.inbox.receive(self.control):
            self._host_is_gone()
        for message, descriptors in self.inbox.take():
            getattr(self, f"_on_{message['op']}")(message, descriptors)

    def _host_is_gone(self) -> None:
        """Nobody is left to work for: kill everything, then end."""
        self.host_gone = True
        for descriptor in (self.control.fileno(), self.host_descriptor):
            self._forget(descriptor)
        for tree in self.trees.values():
            tree.start_killing()
        self.next_look = 0.0

    def _speak(self) -> None:
        if self.host_gone:
            self.outbox.discard()
            return
        try:
            drained = self.outbox.flush(self.control)
        except OSError:
            self._host_is_gone()
            return
        self.poll.modify(self.control, select.POLLIN if drained else select.POLLIN | select.POLLOUT)

    def _tell(self, event: str, tree: Tree, **facts: object) -> None:
        self.outbox.put({"event": event, "id": tree.id, **facts})

    def _on_spawn(self, message: Message, stdio: tuple[int, ...]) -> None:
        cgroup = self.cgroups.make(str(message["id"])) if self.cgroups else None
        tree = Tree(message["id"], message["mark"], cgroup)
        request = Request(message, stdio)
        self._limit_memory(request, tree)
        try:
            tree.leader, verdict = spawn(request, cgroup)
        except OSError as error:
            self._tell(
                "spawn_failed",
                tree,
                errno=error.errno,
                error=f"cannot fork: {os.strerror(error.errno or 0)}",
            )
            self._remove_cgroup(tree)
            return
        finally:
            for descriptor in stdio:
                os.close(descriptor)
        self.trees[tree.id] = tree
        tree.verdict = verdict
        self._watch(verdict, lambda: self._exec_done(tree, verdict))

    def _limit_memory(self, request: Request, tree: Tree) -> None:
        """By its cgroup if that can be, else for each of its processes."""
        if request.memory is None:
            return
        if self.cgroups is not None and tree.cgroup is not None:
            request.caged = self.cgroups.limit_memory(tree.cgroup, request.memory)
        tree.data_limit = None if request.caged else request.memory

    def _on_signal(self, message: Message, _: tuple[int, ...]) -> None:
        """To the leader's process group, or to the leader alone; a number that may be somebody
        else's by now is not signalled.
        """
        tree = self.trees.get(message["id"])
        if tree is None or not (tree.leader_alive or (message["group"] and self._has_group(tree))):
            return
        with suppress(OSError):  # nobody left to hear it, which the reaping tells soon
            (os.killpg if message["group"] else os.kill)(tree.leader, message["signal"])

    def _on_signal_rest(self, message: Message, _: tuple[int, ...]) -> None:
        """To what a leader has left behind, wherever it went: sessions of its own heard nothing
        of what the group was told.
        """
        if tree := self.trees.get(message["id"]):
            for process in self._members(tree):
                self.forest.table.signal(process, message["signal"])

    def _has_group(self, tree: Tree) -> bool:
        """Whether somebody is left in the process group of a leader that has ended."""
        return any(process.group == tree.leader for process in self._members(tree))

    def _members(self, tree: Tree) -> list[Process]:
        """As they were at the first question of this turn: a host that stops many at once asks
        for many.
        """
        if tree not in self.members:
            self.members = self.forest.members(self.trees.values())
        return self.members[tree]

    def _on_kill(self, message: Message, _: tuple[int, ...]) -> None:
        if tree := self.trees.get(message["id"]):
            tree.start_killing()
            self.next_look = 0.0

    # --- the children ---

    def _exec_done(self, tree: Tree, verdict: int) -> None:
        error = exec_error(verdict)
        self._forget(verdict)
        os.close(verdict)
        tree.verdict = None
        if error is not None:
            self._tell("spawn_failed", tree, errno=error[0], error=error[1])
            self.stillborn[tree.leader] = self.trees.pop(tree.id)
            return
        if tree.phase is Phase.SPAWNING:
            tree.phase = Phase.RUNNING
        self._tell("spawned", tree, pid=tree.leader, start=self.forest.table.start_of(tree.leader))

    def _reap(self) -> None:
        os.read(self.signals, 4096)
        self._collect()

    def _collect(self) -> None:
        """Reap everything that has ended; leaders are told of, orphans make us look at the trees
        again.
        """
        leaders = {tree.leader: tree for tree in self.trees.values() if tree.leader_alive}
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self.childless = True
                return
            self.childless = False
            if pid == 0:
                return
            self.next_look = 0.0
            if pid in leaders:
                self._leader_ended(leaders[pid], status, usage)
            elif pid not in self.stillborn:
                self.orphans_reaped += 1
            if stillborn := self.stillborn.pop(pid, None):
                self._remove_cgroup(stillborn)

    def _leader_ended(self, tree: Tree, status: int, usage: resource.struct_rusage) -> None:
        tree.leader_alive = False
        if tree.verdict is not None:
            self._exec_done(tree, tree.verdict)
        if tree.id not in self.trees:
            return
        if tree.phase is Phase.RUNNING:
            tree.phase = Phase.LINGERING
        max_rss = usage.ru_maxrss * 1024
        oom = tree.ran_out_of_memory(status, max_rss)
        self._tell(
            "ended",
            tree,
            status=status,
            cpu=usage.ru_utime + usage.ru_stime,
            max_rss=max_rss,
            oom=oom,
        )

    def _look(self) -> None:
        """One scan for all trees that are ending: clear the empty ones, kill the members of
        those being killed.
        """
        ending = [tree for tree in self.trees.values() if tree.phase in ENDING]
        doomed = [tree for tree in ending if tree.phase is Phase.KILLING]
        self.next_look = time.monotonic() + (_AGAIN if doomed else _NET)
        if not ending:
            return
        if self.restless:
            self.forest.hunt(doomed, self.trees.values())
        reaped, self.forest.unclear = self.orphans_reaped, False
        met = self.forest.kill(doomed, self.trees.values()) if doomed else {}
        seen = (
            met
            if len(doomed) == len(ending)
            else {**self.forest.members(self.trees.values()), **met}
        )
        self._collect()
        self.restless = self.orphans_reaped != reaped
        for tree in (
            tree for tree in ending if tree.id in self.trees
        ):  # one that was killed may turn out not to have started
            if self._is_empty(tree, seen[tree]):
                self._cleared(tree)
            elif tree.stubborn:
                self._tell_cleared(tree, survivors=len(seen[tree]))

    def _is_empty(self, tree: Tree, seen: list[Process]) -> bool:
        """Whether nothing of it is left.

        A process that forks and exits without end is missed by a scan, but then an orphan was
        reaped meanwhile: such a scan proves nothing, unless we have no child left at all. Nor does
        one that met somebody whose mark could not be read. A cgroup that is not empty proves the
        contrary, but an empty one proves nothing either: who is privileged can leave it.
        """
        if seen or tree.leader_alive or tree.caged:
            return False
        return self.childless or not (self.restless or self.forest.unclear)

    def _cleared(self, tree: Tree) -> None:
        del self.trees[tree.id]
        self._remove_cgroup(tree)
        self._tell_cleared(tree, survivors=0)

    def _tell_cleared(self, tree: Tree, *, survivors: int) -> None:
        if not tree.told:
            tree.told = True
            self._tell("cleared", tree, killed=len(tree.met), survivors=survivors)

    def _remove_cgroup(self, tree: Tree) -> None:
        if tree.cgroup is not None:
            tree.cgroup.remove()

    # --- what is watched ---

    def _watch(self, descriptor: int, reader: Callable[[], None]) -> None:
        self.readers[descriptor] = reader
        self.poll.register(descriptor, select.POLLIN)

    def _forget(self, descriptor: int) -> None:
        if self.readers.pop(descriptor, None) is not None:
            self.poll.unregister(descriptor)

    def _watch_host(self) -> None:
        """Its pidfd tells of its end even where a forked copy of it still holds the control
        open.
        """
        try:
            self.host_descriptor = os.pidfd_open(self.host)
            self._watch(self.host_descriptor, self._host_is_gone)
        except ProcessLookupError:
            self._host_is_gone()
        if os.getppid() != self.host:
            self._host_is_gone()

    def _watch_signals(self) -> None:
        self.signals, wake = os.pipe()
        os.set_blocking(self.signals, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._watch(self.signals, self._reap)


_DEAF_TO = (
    "SIGINT",
    "SIGTERM",
    "SIGHUP",
    "SIGQUIT",
    "SIGUSR1",
    "SIGUSR2",
    "SIGPIPE",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
)


def main(arguments: list[str]) -> None:
    """Take the control over by its number and serve; only SIGKILL and the end of the host end
    it.
    """
    signal.pthread_sigmask(
        signal.SIG_SETMASK, ()
    )  # whatever the thread that started us had blocked
    for name in _DEAF_TO:
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    control = socket.socket(fileno=int(arguments[0]))
    control.setblocking(False)
    os.set_inheritable(control.fileno(), False)
    become_subreaper()
    cgroups = Cgroups.find(arguments[2]) if arguments[2:] else None
    guardian = Guardian(control, int(arguments[1]), cgroups)
    try:
        guardian.run()
    finally:
        if cgroups is not None:
            cgroups.remove()
