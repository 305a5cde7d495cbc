"""The host's side of the guardian: starts it, spawns children through it, gets reports of their
ends.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict

from longwatch.core.clock import Clock, SystemClock
from longwatch.core.deadline import Deadline
from longwatch.core.events.base import Events
from longwatch.core.events.host import GuardianLost
from longwatch.errors import (
    GuardianLostError,
    GuardianNotRunningError,
    ServiceStateError,
    SpawnError,
)
from longwatch.host import guardian as program
from longwatch.host.capture import LineSink
from longwatch.host.guardian.cgroups import Cgroup
from longwatch.host.guardian.tree import ProcessTree, kill_marked
from longwatch.host.guardian.wire import ControlMessage, FrameReceiver, FrameSender
from longwatch.host.loop import EventLoopThread
from longwatch.host.process import Child, ProcessSpec
from longwatch.host.service import Service

_START_TIMEOUT = 10.0


class GuardianClient(Service):
    """The guardian process and its children, as a service.

    `start` runs it, `spawn` (on the loop) starts a child, `stop` ends it and kills every child at
    once. If the guardian dies, all its processes are killed, `GuardianLost` is emitted, and callers
    that wait for a child get GuardianLostError. With `subreaper` the calling process becomes a
    subreaper, so that no process escapes even then. Use it in Longwatch's own processes, not in a
    user's. Processes below this one for whose pid `is_spared` returns True are not killed.
    """

    def __init__(  # noqa: PLR0913 - each is optional and has its own meaning
        self,
        loop: EventLoopThread,
        *,
        clock: Clock | None = None,
        events: Events | None = None,
        cgroups: bool = True,
        subreaper: bool = False,
        on_lost: Callable[[], None] = lambda: None,
        is_spared: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self.clock = clock or SystemClock()
        super().__init__(name="guardian", clock=self.clock)
        self.loop = loop
        self.events = events or Events()
        self._cgroups = cgroups
        self._cgroup_name = ""
        self._subreaper = subreaper
        self._on_lost = on_lost
        self._is_spared = is_spared
        self._numbers = itertools.count(1)
        self._children: dict[int, Child] = {}
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._inbox = FrameReceiver()
        self._outbox = FrameSender()

    @property
    def pid(self) -> int | None:
        """The guardian's own pid while it runs."""
        return self._process.pid if self._process else None

    async def spawn(self, spec: ProcessSpec) -> Child:
        """Start a child; return when its program runs. SpawnError names the step that failed and
        why.
        """
        child = Child(next(self._numbers), os.urandom(16).hex(), self, self.clock)
        self._children[child.number] = child
        try:
            self._send_spawn(spec, child)
            await asyncio.shield(child.spawned)
        except asyncio.CancelledError:
            with suppress(GuardianLostError):
                child.kill()
            raise
        except BaseException:
            self._children.pop(child.number, None)
            child.finish_output()
            raise
        return child

    def _send_spawn(self, spec: ProcessSpec, child: Child) -> None:
        message = _spawn_message(spec, child)
        stdio = self._stdio(spec, child)
        try:
            self.send(message, stdio)
        except ValueError:
            raise SpawnError(
                f"cannot execute it: {os.strerror(errno.E2BIG)}", errno=errno.E2BIG
            ) from None

    def send(self, message: ControlMessage, descriptors: tuple[int, ...] = ()) -> None:
        """Queue a message to the guardian; the descriptors are closed once sent, and on any error.

        Raises GuardianNotRunningError, or ValueError for a message that is too large.
        """
        if self._control is None:
            _close(descriptors)
            raise GuardianNotRunningError(
                "the guardian is not running; start it, or if it has died, start it again"
            )
        try:
            self._outbox.put(message, descriptors)
        except ValueError:
            _close(descriptors)
            raise
        self._flush()

    def process_trees(self) -> list[ProcessTree]:
        """All trees that it holds now, to look for their members. On the loop."""
        return [self._process_tree(child) for child in self._children.values()]

    def _process_tree(self, child: Child) -> ProcessTree:
        root = Cgroup.for_name(self._cgroup_name) if self._cgroups else None
        return ProcessTree(
            child.number,
            child.mark,
            None if root is None else Cgroup(f"{root.path}/{child.number}"),
            leader=child.pid,
            leader_alive=child.is_leader_running,
        )

    def abort(self) -> None:
        """Kill a guardian that does not respond; the cleanup is that of a guardian that died."""
        if self._process is not None:
            self._process.kill()

    # --- the service contract ---

    def _start(self) -> None:
        if sys.platform != "linux":
            raise ServiceStateError("child processes under the guardian need Linux")
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = self._launch(theirs)
            ours.setblocking(False)
            self._control, self._inbox = ours, FrameReceiver()
            self.loop.call(self._attach(), timeout=_START_TIMEOUT)
        except BaseException:
            self._abort_start(ours)
            raise

    def _abort_start(self, ours: socket.socket) -> None:
        """Clean up after a failed start; the guardian exits when the control closes."""
        self._control = None
        ours.close()
        if self._process is not None:
            self._process.wait()
            self._process = None

    def _launch(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        if self._subreaper:
            from longwatch.host.guardian.kernel import become_subreaper  # noqa: PLC0415 - imports ctypes; only our own processes need it

            become_subreaper()
        main = os.path.join(os.path.dirname(program.__file__), "__main__.py")  # noqa: PTH118, PTH120 - plain text for argv
        self._cgroup_name = f"{os.getpid()}-{os.urandom(8).hex()}"
        options = (self._cgroup_name,) if self._cgroups else ()
        return subprocess.Popen(  # noqa: S603 - our own interpreter and file
            [sys.executable, "-I", "-S", main, str(theirs.fileno()), str(os.getpid()), *options],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def _stop(self, deadline: Deadline) -> bool:
        """Close the control; the guardian kills its trees and exits."""
        if self._process is None:
            return True
        self.loop.call(self._detach(), timeout=deadline.remaining())
        try:
            self._process.wait(deadline.remaining())
        except subprocess.TimeoutExpired:
            return False
        self._process = None
        self._children.clear()
        return True

    async def _attach(self) -> None:
        assert self._control is not None
        asyncio.get_running_loop().add_reader(self._control, self._on_readable)

    async def _detach(self) -> None:
        self._disconnect()
        for child in list(self._children.values()):
            child.finish_output()
            child.fail(GuardianNotRunningError("the guardian was stopped"))

    # --- the control, on the loop ---

    def _on_readable(self) -> None:
        assert self._control is not None
        alive = self._inbox.receive(self._control)
        for message, _ in self._inbox.take():
            self._dispatch(message)
        if not alive:
            self._handle_guardian_death()

    def _dispatch(self, message: ControlMessage) -> None:
        child = self._children.get(message["id"])
        if child is None:
            return
        child.handle_message(message)
        if message["event"] in ("spawn_failed", "cleared"):
            del self._children[child.number]

    def _flush(self) -> None:
        assert self._control is not None
        loop = asyncio.get_running_loop()
        try:
            if self._outbox.flush(self._control):
                loop.remove_writer(self._control)
            else:
                loop.add_writer(self._control, self._flush)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):
                raise
            self._handle_guardian_death()

    def _disconnect(self) -> None:
        if self._control is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._control)
        loop.remove_writer(self._control)
        self._control.close()
        self._control = None
        self._outbox.discard()

    def _handle_guardian_death(self) -> None:
        """Kill the children of a guardian that died.

        The kernel has killed the leaders; cgroups and marks identify the other members. Blocks the
        loop until they are gone, because nothing is more urgent.
        """
        if self._control is None:
            return
        self._disconnect()
        children = list(self._children.values())
        killed = kill_marked(
            [child.mark for child in children],
            leaders=[(child.pid, child.start) for child in children if child.is_leader_running],
            cgroup=Cgroup.for_name(self._cgroup_name) if self._cgroups else None,
            include_descendants=self._subreaper,
            is_spared=self._is_spared,
        )
        for child in children:
            child.finish_output()
            child.fail(GuardianLostError(f"the guardian died; processes killed: {killed}"))
        self._children.clear()
        self.events.emit(GuardianLost(guardian_pid=self.pid or 0, killed=killed))
        self._on_lost()

    # --- descriptors ---

    def _stdio(self, spec: ProcessSpec, child: Child) -> tuple[int, ...]:
        """Return the three descriptors for the child; for a sink, a pipe whose read end is
        captured.
        """
        taken: list[int] = []
        try:
            taken.append(_duplicate(spec.stdin, os.O_RDONLY))
            taken.append(self._output(spec, spec.stdout, child))
            taken.append(
                os.dup(taken[1]) if spec.shares_sink else self._output(spec, spec.stderr, child)
            )
        except OSError as error:
            _close(taken)
            raise SpawnError(
                f"cannot open its streams: {error.strerror}", errno=error.errno or 0
            ) from None
        return tuple(taken)

    def _output(self, spec: ProcessSpec, target: LineSink | int | None, child: Child) -> int:
        if target is None or isinstance(target, int):
            return _duplicate(target, os.O_WRONLY)
        ours, theirs = os.pipe()
        child.capture(ours, target, spec.on_output)
        if spec.identity is not None and os.geteuid() == 0:
            os.fchown(
                theirs, spec.identity.uid, spec.identity.gid
            )  # else that user cannot open /dev/stdout
        return theirs


def _spawn_message(spec: ProcessSpec, child: Child) -> ControlMessage:
    return {
        "op": "spawn",
        "id": child.number,
        "mark": child.mark,
        "argv": list(spec.argv),
        "env": dict(spec.env),
        "cwd": spec.cwd or _working_directory(),
        "umask": spec.umask,
        "limits": asdict(spec.limits),
        "identity": spec.identity and asdict(spec.identity),
    }


def _duplicate(descriptor: int | None, mode: int) -> int:
    """Return a copy of the descriptor; /dev/null for None or a closed descriptor."""
    if descriptor is not None:
        with suppress(OSError):
            return os.dup(descriptor)
    return os.open(os.devnull, mode | os.O_CLOEXEC)


def _working_directory() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - plain text for the wire
    except FileNotFoundError:
        raise SpawnError(
            "the working directory was removed; start from another one", errno=errno.ENOENT
        ) from None


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
