"""A group of loops in one process: started together, watched together, stopped together.

The story of a run
    signals are caught → the health port is open → every loop has its thread → the watchdog watches
    → whoever supervises us is told … somebody asks for the end, a loop crashes, or all loops are
    done … not ready any more → every loop is told to stop, at once, with its limit → all are waited
    for, under the latest of these → watchdog and health end → what was caught before us is put back

How it ends
    all stopped in time      run returns
    a loop crashed           its error is raised, after the others have stopped
    a limit has passed       with signals installed: stacks on record, exit 1; else
                             ShutdownTimeoutError, and threads left behind
    a second signal          exit 128 + n, at once
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

from longwatch.core.clock import Clock, SystemClock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.core.events import (
    Events,
    GroupDraining,
    GroupResumed,
    GroupStarted,
    GroupStopped,
    GroupStopping,
    SignalsNotHeard,
    TimeoutsQuestioned,
)
from longwatch.errors import ShutdownTimeoutError, UsageError
from longwatch.host.errand import Errand
from longwatch.host.health_server import Exposition, HealthServer
from longwatch.host.parent import ParentLine
from longwatch.host.runnable import Runnable
from longwatch.host.runtimedir import runtime_directory
from longwatch.host.sdnotify import Notifier
from longwatch.host.shutdown import ShutdownCoordinator
from longwatch.host.signals import SignalStream, catching
from longwatch.host.stacks import CrashFile
from longwatch.host.watchdog import Stall, Watchdog
from longwatch.runtime.member import Member
from longwatch.runtime.pulse import Measured, Pulse
from longwatch.runtime.relations import Timeouts
from longwatch.runtime.vitals import Vitals
from longwatch.work.place import Place
from longwatch.work.solitude import Solitude
from longwatch.work.telling import told_to_logging
from longwatch.work.turns import Turn, Turns, look_up

READY_SHARE = 0.9
"""Of the watchdog's threshold: a loop that is silent for longer is not ready, so that traffic
leaves before the kill.
"""
_AFTER_THE_PARENT = 10.0
"""Seconds that a parent has to end a process that stalls, before its own watchdog does."""
_MARGIN = 0.25
"""Seconds that a loop has, after its limit, to say that it did not make it."""


class LoopGroup:
    """Runs loops, each in its thread, with a watchdog and a health port over all of them; `run`
    blocks until they have ended.

    `health_port` None: no health port. `watchdog_threshold` None: no watchdog.
    `readiness_threshold` None: nine tenths of the watchdog's. `max_processing_seconds` is what one
    message takes at the most; only to warn of timeouts that do not go together. `metrics` is what
    `/metrics` says: a `longwatch.observe.Metrics`, or any callable that returns the exposition.
    Making a group starts nothing and opens nothing.
    """

    def __init__(  # noqa: PLR0913 - the contract
        self,
        loops: Iterable[Runnable],
        *,
        shutdown_timeout: float = 30.0,
        health_port: int | None = None,
        health_host: str = "0.0.0.0",  # noqa: S104 - health is asked from outside
        watchdog_threshold: float | None = 720.0,
        watchdog_interval: float = 60.0,
        readiness_threshold: float | None = None,
        max_processing_seconds: float = 600,
        metrics: Exposition | Measured | None = None,
        clock: Clock | None = None,
        events: Events | None = None,
    ) -> None:
        self.loops = tuple(loops)
        self.names = _names(self.loops)
        self.shutdown_timeout = shutdown_timeout
        self.health_port = health_port
        self.health_host = health_host
        self.watchdog_threshold = watchdog_threshold
        self.watchdog_interval = watchdog_interval
        self.readiness_threshold = readiness_threshold
        self.max_processing_seconds = max_processing_seconds
        self.metrics = metrics
        self.clock = clock or SystemClock()
        self.events = events or told_to_logging()
        self.is_logged_plainly = events is None
        """Whether nobody has said where its events go."""
        self.vitals: Vitals | None = None
        """How its loops are, while it runs."""
        self.before_exit: Callable[[], object] = lambda: None
        """Called before the process is ended from here: to write out what was logged."""
        self._parent: ParentLine | None = None
        self._turns = Turns("this group", self.clock)
        self._health: HealthServer | None = None
        self._draining = False
        self._stopping = False
        self._clean = True
        self._timeouts(visibility=1800, wait=0).require()

    # --- from any thread ---

    @property
    def running(self) -> bool:
        return self._turns.present is not None

    @property
    def draining(self) -> bool:
        """Whether it takes nothing any more, for a while or for good."""
        return self._draining or self._stopping

    @property
    def health_address(self) -> tuple[str, int] | None:
        """Where the health port really is; None if there is none at present."""
        return None if self._health is None else self._health.address

    def shutdown(self, *, timeout: float | None = None) -> bool:
        """Stop all loops and have `run` return; whether all did in their time. `timeout` caps every
        loop's own limit.

        Before the first run: that one returns at once. From a loop's own thread it cannot wait, and
        returns False.
        """
        turn = self._turns.tell(Deadline.after(timeout, self.clock))
        if turn is None:
            return True
        if self._is_inside():
            return False
        self.clock.wait(turn.ended)
        return self._clean

    def drain(self) -> None:
        """Take nothing more and hand back what was not begun, until `resume` or the end of the run;
        what runs goes on, and the process stays. Before a run: it begins so.
        """
        self._draining = True
        self._pass_on("drain")
        self.events.emit(GroupDraining())

    def resume(self) -> None:
        """Take messages again; nothing once it is being stopped."""
        if self._stopping:
            return
        self._draining = False
        self._pass_on("resume")
        self.events.emit(GroupResumed())

    def adopt(self, parent: ParentLine) -> None:
        """Have this parent renew the leases and answer for health: for worker processes of ours,
        before `run`.
        """
        self._parent = parent

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    # --- a run ---

    def run(
        self,
        *,
        install_signals: bool = True,
        visibility_timeout: float = 1800,
        wait_time_seconds: float = 30,
    ) -> None:
        """Run the loops until all have ended; blocks. With `install_signals`, SIGTERM and SIGINT
        stop it, SIGUSR1 drains it, and SIGUSR2 writes all stacks to the crash file.
        """
        timeouts = self._timeouts(visibility=visibility_timeout, wait=wait_time_seconds)
        timeouts.require()
        for doubt in timeouts.doubts(leases_are_kept=self._parent is not None):
            self.events.emit(TimeoutsQuestioned(setting=doubt.setting, problem=doubt.problem))
        with self._turns.one() as turn:
            if turn.told:
                return
            self._stopping, self._clean = False, True
            with self._hearing_signals(turn, install_signals) as heard:
                _Run(self, turn, heard=heard).live(
                    visibility_timeout=visibility_timeout, wait_time_seconds=wait_time_seconds
                )

    def _timeouts(self, *, visibility: float, wait: float) -> Timeouts:
        return Timeouts(
            threshold=self.watchdog_threshold,
            interval=self.watchdog_interval,
            wait=wait,
            visibility=visibility,
            shutdown=self.shutdown_timeout,
            processing=self.max_processing_seconds,
        )

    def _is_inside(self) -> bool:
        vitals = self.vitals
        return vitals is not None and any(member.inside for member in vitals.members)

    def _pass_on(self, wish: str) -> None:
        vitals = self.vitals
        for member in vitals.members if vitals is not None else ():
            member.pass_on(wish)

    # --- signals ---

    @contextmanager
    def _hearing_signals(self, turn: Turn, wanted: bool) -> Iterator[ShutdownCoordinator | None]:  # noqa: FBT001 - as it was asked for
        if not wanted:
            yield None
        elif threading.current_thread() is not threading.main_thread():
            self.events.emit(SignalsNotHeard())
            yield None
        else:
            with _coordinator(self.events) as coordinator, catching((signal.SIGUSR1,)) as stream:
                Errand(lambda: self._hear(stream), name="longwatch-drain").start()
                stop = turn.over.set
                coordinator.register(stop)
                try:
                    yield coordinator
                finally:
                    coordinator.unregister(stop)

    def _hear(self, stream: SignalStream) -> None:
        for _ in stream:
            self.drain()


@contextmanager
def _coordinator(events: Events) -> Iterator[ShutdownCoordinator]:
    """The installed one; if there is none, one for as long as this takes."""
    present = ShutdownCoordinator.get()
    coordinator = present or ShutdownCoordinator.install(events=events)
    try:
        yield coordinator
    finally:
        if present is None:
            ShutdownCoordinator.reset()


class _Run:
    """One run of a group, from the first thread to the last."""

    def __init__(self, group: LoopGroup, turn: Turn, *, heard: ShutdownCoordinator | None) -> None:
        self._group = group
        self._turn = turn
        self._heard = heard
        self._clock = group.clock
        self._events = group.events
        self._parent = group._parent  # noqa: SLF001 - a run is the group at work
        self._notifier = Notifier.from_environment()
        self._crash_file = CrashFile("group", clock=group.clock)
        self._news = Wakeup()
        self._began = group.clock.monotonic()
        self._members = self._made()
        threshold, interval = group.watchdog_threshold, group.watchdog_interval
        self._vitals = Vitals(
            self._members,
            is_leaving=lambda: group.draining,
            stale_after=_stale_after(group),
            dead_after=None if threshold is None else threshold + 2 * interval,
            clock=group.clock,
            events=group.events,
        )

    def live(self, *, visibility_timeout: float, wait_time_seconds: float) -> None:
        group = self._group
        group.vitals = self._vitals
        if group._draining:  # noqa: SLF001 - as above
            group._pass_on("drain")  # noqa: SLF001 - as above
        try:
            with ExitStack() as undo:
                self._open(undo)
                with self._ending():
                    for member in self._members:
                        member.start(
                            visibility_timeout=visibility_timeout,
                            wait_time_seconds=wait_time_seconds,
                        )
                    self._watch(undo)
                    self._announce()
                    self._wait()
            self._conclude()
        finally:
            group.vitals, group._draining = None, False  # noqa: SLF001 - as above

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Whatever comes in between, no loop is left running that could be stopped."""
        reason = "failed"
        try:
            yield
            reason = self._reason()
        finally:
            self._end(reason)
            self._save_stacks()

    # --- beginning ---

    def _made(self) -> list[Member]:
        solitude = Solitude()
        members: list[Member] = []
        for loop, name in zip(self._group.loops, self._group.names, strict=True):
            attach: Callable[[Place], None] | None = getattr(loop, "attach", None)
            if attach is not None:
                attach(
                    Place(name=name, events=self._events, solitude=solitude, parent=self._parent)
                )
            members.append(
                Member(loop, name, clock=self._clock, events=self._events, changed=self._news.set)
            )
        return members

    def _open(self, undo: ExitStack) -> None:
        """What has to be there before anything runs; what cannot be had is told now."""
        self._open_crash_file()
        dumping = signal.SIGUSR2 if self._heard is not None else None
        undo.callback(self._crash_file.close, signum=dumping)
        if dumping is not None:
            self._crash_file.on_signal(dumping)
        measured = self._group.metrics
        if isinstance(measured, Measured):
            undo.callback(self._events.subscribe(measured.observe))
            undo.callback(
                measured.read(
                    self._vitals.gauges if self._parent is not None else self._vitals.all_gauges
                )
            )
        if self._group.health_port is not None and self._parent is None:
            self._serve(undo, self._group.health_port)

    def _open_crash_file(self) -> None:
        """Where it was asked for, else where every user can have one: nothing should fail
        because its last words have no place.
        """
        try:
            self._crash_file.open()
        except UsageError:
            self._crash_file = CrashFile("group", directory=runtime_directory(), clock=self._clock)
            self._crash_file.open()

    def _serve(self, undo: ExitStack, port: int) -> None:
        group = self._group
        server = HealthServer(
            host=group.health_host,
            port=port,
            checks=self._vitals.checks(),
            metrics=group.metrics,
            clock=self._clock,
        )
        server.start()
        group._health = server  # noqa: SLF001 - as above
        undo.callback(self._stop_serving, server)

    def _stop_serving(self, server: HealthServer) -> None:
        server.stop()
        self._group._health = None  # noqa: SLF001 - as above

    def _watch(self, undo: ExitStack) -> None:
        group = self._group
        if group.watchdog_threshold is not None:
            watchdog = Watchdog.over(
                self._vitals.ages,
                stall_threshold=group.watchdog_threshold
                + (0.0 if self._parent is None else _AFTER_THE_PARENT),
                check_interval=group.watchdog_interval,
                clock=self._clock,
                events=self._events,
                crash_file=self._crash_file,
                before_kill=self._before_kill,
            )
            watchdog.start()
            undo.callback(watchdog.stop)
        pulse = Pulse(
            self._vitals, self._notifier, self._parent, measured=group.metrics, clock=self._clock
        )
        pulse.start()
        undo.callback(pulse.stop)

    def _before_kill(self, stalls: Sequence[Stall]) -> None:
        """Only those that are silent are to blame, and whoever supervises us learns why we go."""
        threshold = self._group.watchdog_threshold or 0.0
        for member in self._members:
            member.excuse_the_fresh(threshold)
        self._notifier.stalled(
            "; ".join(f"{name} stalled for {elapsed:.1f} s" for name, elapsed in stalls)
        )

    def _announce(self) -> None:
        address = self._group.health_address
        self._events.emit(
            GroupStarted(
                loops=self._group.names,
                health="" if address is None else f"http://{address[0]}:{address[1]}",
            )
        )
        if self._parent is not None:
            self._parent.tell(
                "group",
                loops=self._group.names,
                threshold=self._group.watchdog_threshold,
                crash_file=str(self._crash_file.path),
            )
        self._notifier.ready(f"{len(self._members)} loop{'s' if len(self._members) > 1 else ''}")

    # --- between ---

    def _wait(self) -> None:
        """Until somebody asks for the end, a loop has crashed, or all are done."""
        forget = self._turn.over.listen(self._news.set)
        try:
            while not self._is_to_end():
                self._clock.wait(self._news, look_up())
                self._news.clear()
        finally:
            forget()

    def _is_to_end(self) -> bool:
        members = self._members
        return (
            self._turn.told
            or any(member.crashed for member in members)
            or all(member.over for member in members)
        )

    # --- ending ---

    def _end(self, reason: str) -> None:
        """Tell all, then wait for all: three slow loops take the time of the slowest."""
        group = self._group
        group._stopping = True  # noqa: SLF001 - as above
        self._events.emit(GroupStopping(reason=reason))
        self._notifier.stopping()
        deadlines = [self._limit(member) for member in self._members]
        for member, deadline in zip(self._members, deadlines, strict=True):
            if not member.over:
                member.tell(deadline.remaining() or 0.0)
        for member, deadline in zip(self._members, deadlines, strict=True):
            member.wait(Deadline(deadline.at + _MARGIN, self._clock))

    def _limit(self, member: Member) -> Deadline:
        own: float | None = getattr(member.loop, "shutdown_timeout", None)
        return self._turn.deadline.earlier(
            Deadline.after(self._group.shutdown_timeout if own is None else own, self._clock)
        )

    def _reason(self) -> str:
        if any(member.crashed for member in self._members):
            return "crashed"
        received = self._heard.signal if self._heard is not None else None
        return (
            signal.Signals(received).name
            if received is not None
            else "asked"
            if self._turn.told
            else "done"
        )

    def _overdue(self) -> tuple[str, ...]:
        return tuple(member.name for member in self._members if member.overdue)

    def _save_stacks(self) -> None:
        if overdue := self._overdue():
            self._crash_file.dump(f"{', '.join(overdue)} did not stop in time")

    def _conclude(self) -> None:
        overdue = self._overdue()
        self._group._clean = not overdue  # noqa: SLF001 - as above
        self._events.emit(
            GroupStopped(lasted=self._clock.monotonic() - self._began, overdue=overdue)
        )
        if overdue:
            self._leave_behind(overdue)
        for member in self._members:
            if member.error is not None:
                raise member.error

    def _leave_behind(self, overdue: Sequence[str]) -> None:
        """Loops that did not stop: nothing joins them, nothing waits for them."""
        message = f"{', '.join(overdue)} did not stop in time; see {self._crash_file.path}"
        if self._heard is None:
            why = next((member.error for member in self._members if member.crashed), None)
            raise ShutdownTimeoutError(
                f"{message}; raise shutdown_timeout, or have handlers look at context.cancelled"
            ) from why
        logging.getLogger("longwatch.runtime").critical(message)
        self._group.before_exit()
        os._exit(1)


def _stale_after(group: LoopGroup) -> float | None:
    if group.readiness_threshold is not None or group.watchdog_threshold is None:
        return group.readiness_threshold
    return READY_SHARE * group.watchdog_threshold


def _names(loops: Sequence[Runnable]) -> tuple[str, ...]:
    """Each loop's own, else by its place; only explicit ones can be equal."""
    if not loops:
        raise UsageError("a group needs at least one loop")
    for loop in loops:
        if isinstance(loop, type):
            raise UsageError(
                f"{loop.__name__} is a class; give the group one that was made: {loop.__name__}(…)"
            )
        if not isinstance(loop, Runnable):
            raise UsageError(
                f"{loop!r} is no Runnable: it needs run, shutdown, running, __enter__ and __exit__"
            )
    given: list[str | None] = [getattr(loop, "name", None) for loop in loops]
    if len({id(loop) for loop in loops}) < len(loops):
        raise UsageError("one loop is twice in this group; make another of its kind")
    named = [name for name in given if name is not None]
    if twice := sorted({name for name in named if named.count(name) > 1}):
        raise UsageError(
            f"loops of a group need different names; more than one is called {', '.join(twice)}"
        )
    return tuple(name or _unlike(named, f"loop-{index}") for index, name in enumerate(given))


def _unlike(taken: Sequence[str], name: str) -> str:
    """That name, or one that begins like it, if somebody else is called so."""
    return name if name not in taken else _unlike(taken, f"{name}-unnamed")
