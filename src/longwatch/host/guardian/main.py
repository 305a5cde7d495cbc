"""The guardian's event loop: polls the control, the host's pidfd, the signal pipe and the pipes of
pending execs.
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
from longwatch.host.guardian.spawn import SpawnRequest, read_exec_error, spawn
from longwatch.host.guardian.tree import ENDING_STATES, ProcessTree, TreeScanner, TreeState
from longwatch.host.guardian.wire import ControlMessage, FrameReceiver, FrameSender

_SCAN_INTERVAL = 0.25
"""Seconds between scans of lingering trees when the guardian reaped no process."""
_KILL_SCAN_INTERVAL = 0.003
"""Seconds between scans of a tree that is being killed."""


class GuardianProcess:
    """Spawns, signals, reaps and clears trees as the host asks; kills them all when the host is
    gone.
    """

    def __init__(self, control: socket.socket, host_pid: int, cgroups: Cgroups | None) -> None:
        self.control = control
        self.host_pid = host_pid
        self.host_pidfd = -1
        self.cgroups = cgroups
        self.scanner = TreeScanner()
        self.trees: dict[int, ProcessTree] = {}
        self.failed_spawns: dict[int, ProcessTree] = {}
        """Trees whose exec failed, by leader pid, until the leader is reaped."""
        self.inbox = FrameReceiver()
        self.outbox = FrameSender()
        self.poll = select.poll()
        self.readers: dict[int, Callable[[], None]] = {}
        self.host_gone = False
        self.next_scan = 0.0
        self.members_cache: dict[ProcessTree, list[Process]] = {}
        self.signal_pipe = -1
        self.has_no_children = False
        self.orphans_reaped = 0
        self.orphans_were_reaped = False

    def run(self) -> None:
        """Serve until the host is gone and every tree is cleared."""
        self._watch(self.control.fileno(), self._receive)
        self._watch_host()
        self._watch_signals()
        while not self.host_gone or self.trees:
            self._run_once()
        while not self.has_no_children:
            self.scanner.kill_everything()
            time.sleep(_KILL_SCAN_INTERVAL)
            self._reap_all()

    def _run_once(self) -> None:
        for descriptor, _ in self.poll.poll(self._timeout()):
            if descriptor in self.readers:
                self.readers[descriptor]()
        self.members_cache = {}
        if time.monotonic() >= self.next_scan:
            self._scan()
        self._flush()

    def _timeout(self) -> int | None:
        if not any(tree.state in ENDING_STATES for tree in self.trees.values()):
            self.next_scan = time.monotonic() + _SCAN_INTERVAL
            return None
        return max(0, int((self.next_scan - time.monotonic()) * 1000) + 1)

    # --- the host ---

    def _receive(self) -> None:
        if not self.inbox.receive(self.control):
            self._handle_host_gone()
        for message, descriptors in self.inbox.take():
            getattr(self, f"_on_{message['op']}")(message, descriptors)

    def _handle_host_gone(self) -> None:
        """Start killing every tree; `run` returns when none is left."""
        self.host_gone = True
        for descriptor in (self.control.fileno(), self.host_pidfd):
            self._unwatch(descriptor)
        for tree in self.trees.values():
            tree.start_killing()
        self.next_scan = 0.0

    def _flush(self) -> None:
        if self.host_gone:
            self.outbox.discard()
            return
        try:
            drained = self.outbox.flush(self.control)
        except OSError:
            self._handle_host_gone()
            return
        self.poll.modify(self.control, select.POLLIN if drained else select.POLLIN | select.POLLOUT)

    def _report(self, event: str, tree: ProcessTree, **facts: object) -> None:
        self.outbox.put({"event": event, "id": tree.id, **facts})

    def _on_spawn(self, message: ControlMessage, stdio: tuple[int, ...]) -> None:
        cgroup = self.cgroups.make(str(message["id"])) if self.cgroups else None
        tree = ProcessTree(message["id"], message["mark"], cgroup)
        request = SpawnRequest(message, stdio)
        self._limit_memory(request, tree)
        try:
            tree.leader, exec_pipe = spawn(request, cgroup)
        except OSError as error:
            self._report(
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
        tree.exec_pipe = exec_pipe
        self._watch(exec_pipe, lambda: self._exec_done(tree, exec_pipe))

    def _limit_memory(self, request: SpawnRequest, tree: ProcessTree) -> None:
        """Limit the memory of the tree by its cgroup if possible, else of each process."""
        if request.memory is None:
            return
        if self.cgroups is not None and tree.cgroup is not None:
            request.memory_by_cgroup = self.cgroups.limit_memory(tree.cgroup, request.memory)
        tree.data_limit = None if request.memory_by_cgroup else request.memory

    def _on_signal(self, message: ControlMessage, _: tuple[int, ...]) -> None:
        """Signal the leader's process group, or the leader alone.

        Does nothing if the kernel may have reused the number.
        """
        tree = self.trees.get(message["id"])
        if tree is None or not (tree.leader_alive or (message["group"] and self._has_group(tree))):
            return
        with suppress(OSError):  # it has ended, and will be reaped and reported
            (os.killpg if message["group"] else os.kill)(tree.leader, message["signal"])

    def _on_signal_rest(self, message: ControlMessage, _: tuple[int, ...]) -> None:
        """Signal every living member of the tree.

        Members in sessions of their own did not get the signal to the leader's group.
        """
        if tree := self.trees.get(message["id"]):
            for process in self._members(tree):
                self.scanner.table.signal(process, message["signal"])

    def _has_group(self, tree: ProcessTree) -> bool:
        """Whether any process is left in the process group of a leader that has ended."""
        return any(process.group == tree.leader for process in self._members(tree))

    def _members(self, tree: ProcessTree) -> list[Process]:
        """Return the members of the tree, from at most one scan per loop turn.

        A host that stops many trees at once asks for the members of each.
        """
        if tree not in self.members_cache:
            self.members_cache = self.scanner.members(self.trees.values())
        return self.members_cache[tree]

    def _on_kill(self, message: ControlMessage, _: tuple[int, ...]) -> None:
        if tree := self.trees.get(message["id"]):
            tree.start_killing()
            self.next_scan = 0.0

    # --- the children ---

    def _exec_done(self, tree: ProcessTree, exec_pipe: int) -> None:
        error = read_exec_error(exec_pipe)
        self._unwatch(exec_pipe)
        os.close(exec_pipe)
        tree.exec_pipe = None
        if error is not None:
            self._report("spawn_failed", tree, errno=error[0], error=error[1])
            self.failed_spawns[tree.leader] = self.trees.pop(tree.id)
            return
        if tree.state is TreeState.SPAWNING:
            tree.state = TreeState.RUNNING
        self._report(
            "spawned", tree, pid=tree.leader, start=self.scanner.table.start_time(tree.leader)
        )

    def _handle_sigchld(self) -> None:
        os.read(self.signal_pipe, 4096)
        self._reap_all()

    def _reap_all(self) -> None:
        """Reap every child that has ended; report leaders, and scan the trees again."""
        leaders = {tree.leader: tree for tree in self.trees.values() if tree.leader_alive}
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self.has_no_children = True
                return
            self.has_no_children = False
            if pid == 0:
                return
            self.next_scan = 0.0
            if pid in leaders:
                self._leader_ended(leaders[pid], status, usage)
            elif pid not in self.failed_spawns:
                self.orphans_reaped += 1
            if failed := self.failed_spawns.pop(pid, None):
                self._remove_cgroup(failed)

    def _leader_ended(self, tree: ProcessTree, status: int, usage: resource.struct_rusage) -> None:
        tree.leader_alive = False
        if tree.exec_pipe is not None:
            self._exec_done(tree, tree.exec_pipe)
        if tree.id not in self.trees:
            return
        if tree.state is TreeState.RUNNING:
            tree.state = TreeState.LINGERING
        max_rss = usage.ru_maxrss * 1024
        oom = tree.ran_out_of_memory(status, max_rss)
        self._report(
            "ended",
            tree,
            status=status,
            cpu=usage.ru_utime + usage.ru_stime,
            max_rss=max_rss,
            oom=oom,
        )

    def _scan(self) -> None:
        """Scan all ending trees once: clear the empty ones, kill members of those in
        state killing.
        """
        ending = [tree for tree in self.trees.values() if tree.state in ENDING_STATES]
        killing = [tree for tree in ending if tree.state is TreeState.KILLING]
        self.next_scan = time.monotonic() + (_KILL_SCAN_INTERVAL if killing else _SCAN_INTERVAL)
        if not ending:
            return
        if self.orphans_were_reaped:
            self.scanner.kill_orphans(killing, self.trees.values())
        reaped, self.scanner.environment_unreadable = self.orphans_reaped, False
        killed = self.scanner.kill(killing, self.trees.values()) if killing else {}
        seen = (
            killed
            if len(killing) == len(ending)
            else {**self.scanner.members(self.trees.values()), **killed}
        )
        self._reap_all()
        self.orphans_were_reaped = self.orphans_reaped != reaped
        for tree in (
            tree for tree in ending if tree.id in self.trees
        ):  # the exec of a killed tree may have failed
            if self._is_empty(tree, seen[tree]):
                self._clear(tree)
            elif tree.kill_timed_out:
                self._report_cleared(tree, survivors=len(seen[tree]))

    def _is_empty(self, tree: ProcessTree, seen: list[Process]) -> bool:
        """Whether no process of the tree is left.

        A scan can miss a process that keeps forking and exiting, but then the guardian reaped an
        orphan meanwhile. Such a scan proves nothing unless this process has no children at all. A
        scan that met an unreadable mark proves nothing either. A populated cgroup proves that the
        tree is not empty. An empty cgroup proves nothing: a privileged process can leave it.
        """
        if seen or tree.leader_alive or tree.has_populated_cgroup:
            return False
        return self.has_no_children or not (
            self.orphans_were_reaped or self.scanner.environment_unreadable
        )

    def _clear(self, tree: ProcessTree) -> None:
        del self.trees[tree.id]
        self._remove_cgroup(tree)
        self._report_cleared(tree, survivors=0)

    def _report_cleared(self, tree: ProcessTree, *, survivors: int) -> None:
        if not tree.reported:
            tree.reported = True
            self._report("cleared", tree, killed=len(tree.killed), survivors=survivors)

    def _remove_cgroup(self, tree: ProcessTree) -> None:
        if tree.cgroup is not None:
            tree.cgroup.remove()

    # --- descriptors ---

    def _watch(self, descriptor: int, reader: Callable[[], None]) -> None:
        self.readers[descriptor] = reader
        self.poll.register(descriptor, select.POLLIN)

    def _unwatch(self, descriptor: int) -> None:
        if self.readers.pop(descriptor, None) is not None:
            self.poll.unregister(descriptor)

    def _watch_host(self) -> None:
        """Watch the host's pidfd.

        It becomes readable at the host's end even if a forked copy of the host holds the control
        open.
        """
        try:
            self.host_pidfd = os.pidfd_open(self.host_pid)
            self._watch(self.host_pidfd, self._handle_host_gone)
        except ProcessLookupError:
            self._handle_host_gone()
        if os.getppid() != self.host_pid:
            self._handle_host_gone()

    def _watch_signals(self) -> None:
        self.signal_pipe, wake = os.pipe()
        os.set_blocking(self.signal_pipe, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._watch(self.signal_pipe, self._handle_sigchld)


_IGNORED_SIGNALS = (
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
    """Run the guardian on the inherited control descriptor.

    It ends when the host is gone or by SIGKILL, and ignores other signals.
    """
    signal.pthread_sigmask(
        signal.SIG_SETMASK, ()
    )  # the thread that started it may have blocked some
    for name in _IGNORED_SIGNALS:
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    control = socket.socket(fileno=int(arguments[0]))
    control.setblocking(False)
    os.set_inheritable(control.fileno(), False)
    become_subreaper()
    cgroups = Cgroups.open(arguments[2]) if arguments[2:] else None
    guardian = GuardianProcess(control, int(arguments[1]), cgroups)
    try:
        guardian.run()
    finally:
        if cgroups is not None:
            cgroups.remove()
