"""This process while it supervises in the foreground, or as PID 1: its signals, logs and exit code.

The first stop signal stops the programs with their grace, the second kills them. SIGHUP reloads if
there is a file to reload, else it stops. Orphaned children are reaped.
"""

from __future__ import annotations

import errno
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from longwatch import __version__
from longwatch.app.console import Console
from longwatch.core.events.base import Event, Events
from longwatch.core.events.programs import OutputDropped
from longwatch.core.events.supervisor import (
    LogFileFailed,
    LogFileStalled,
    SettingsLoaded,
    SignalReceived,
    SupervisorStarted,
    SupervisorStopped,
)
from longwatch.errors import LongwatchError, SpawnError, TryAgainError, UsageError
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.process import KILL_NOW, StopPolicy, reap_orphans
from longwatch.host.shutdown import ShutdownCoordinator
from longwatch.host.signals import SignalStream, catch_signals
from longwatch.supervisor.program_listener import ProgramEnd, ProgramListener
from longwatch.supervisor.supervisor import Supervisor

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
FORWARDED_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
_BLOCKED_SIGNALS = {*STOP_SIGNALS, *FORWARDED_SIGNALS, signal.SIGHUP, signal.SIGCHLD}
ESCALATE_AFTER = 0.5
"""Seconds after which a second stop signal kills."""
_TRANSIENT_ERRNOS = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
"""Errors of a start that may be gone the next time."""

StopPolicyFor = Callable[[int | None], StopPolicy | None]


def block_signals() -> None:
    """Block signals in this thread until the programs have started, and for good in threads that
    start meanwhile.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_SIGNALS)


def unblock_signals() -> None:
    """Unblock the signals, also those that the parent of this process had blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED_SIGNALS)


@contextmanager
def stopping_on_signal(
    signals: Iterable[signal.Signals],
    *,
    stop: Callable[[int | None], None],
    kill: Callable[[int | None], None],
    events: Events,
) -> Iterator[None]:
    """Call `stop` on the first of these signals and `kill` on a later one. A signal that was
    ignored before (nohup, `&`) stays ignored, except SIGTERM.
    """
    heard = [
        signum
        for signum in signals
        if signum == signal.SIGTERM or signal.getsignal(signum) is not signal.SIG_IGN
    ]
    coordinator = ShutdownCoordinator.install(
        signals=heard, events=events, debounce_seconds=ESCALATE_AFTER
    )
    coordinator.register(lambda: stop(coordinator.signal))
    coordinator.on_escalation(lambda: kill(coordinator.second_signal))
    try:
        yield
    finally:
        ShutdownCoordinator.reset()


class Foreground(ProgramListener):
    """Runs a supervisor to its end.

    `stop_policy_for` returns how programs are stopped after a signal; None: each by its own policy.
    With `forwards_signals`, other signals are passed on to the programs, else they are ignored.
    `on_hangup` is called on SIGHUP; None: SIGHUP stops. `exit_code` returns the exit code of a
    supervisor that has none of its own. `notices` are emitted once, after the start.
    """

    def __init__(  # noqa: PLR0913 - a supervisor, its outputs, and how it is stopped
        self,
        supervisor: Supervisor,
        console: Console,
        *,
        stop_policy_for: StopPolicyFor = lambda _: None,
        forwards_signals: bool = False,
        on_hangup: Callable[[], None] | None = None,
        exit_code: Callable[[], int] = lambda: 0,
        notices: Iterable[Event] = (),
    ) -> None:
        self.supervisor = supervisor
        self.console = console
        self.events = supervisor.events
        supervisor.add_listener(self)
        console.on_log_stalled = self._report_stalled
        console.on_log_failed = self._report_failed
        self._stop_policy_for = stop_policy_for
        self._forwards_signals = forwards_signals
        self._on_hangup = on_hangup
        self._exit_code = exit_code
        self._notices = notices
        self._reported_dropped = 0

    def run(self, programs: Collection[str], settings: Mapping[str, object]) -> int:
        """Install the signal handlers, then run the programs to their end. Returns the
        exit code.
        """
        began = time.monotonic()
        self.console.redirect_logging()
        self.events.emit(SupervisorStarted(version=__version__, programs=tuple(programs)))
        self.events.emit(SettingsLoaded(settings=settings))
        for notice in self._notices:
            self.events.emit(notice)
        code = 1
        block_signals()
        try:
            stopping = STOP_SIGNALS if self._on_hangup else (*STOP_SIGNALS, signal.SIGHUP)
            with (
                stopping_on_signal(stopping, stop=self._stop, kill=self._kill, events=self.events),
                self._handling_other_signals(),
            ):
                code = self._supervise()
        except LongwatchError as error:
            code = error.exit_code
            raise
        finally:
            self.console.flush()
            self._report_dropped("")
            self.events.emit(SupervisorStopped(exit_code=code, lasted=time.monotonic() - began))
        return code

    def _supervise(self) -> int:
        try:
            self.supervisor.start()
            unblock_signals()
            return self.supervisor.wait() or self._exit_code()
        except SpawnError as error:
            raise _start_error(error) from None
        finally:
            self.supervisor.stop()

    def _stop(self, received: int | None) -> None:
        self.events.emit(SignalReceived(signal=received or signal.SIGTERM, action="stop"))
        self.supervisor.shut_down(self._stop_policy_for(received))

    def _kill(self, received: int | None) -> None:
        self.events.emit(SignalReceived(signal=received or KILL_NOW.signal, action="escalate"))
        self.supervisor.kill()

    @contextmanager
    def _handling_other_signals(self) -> Iterator[None]:
        hangup = (signal.SIGHUP,) if self._on_hangup else ()
        with catch_signals((*FORWARDED_SIGNALS, *hangup, signal.SIGCHLD)) as stream:
            BackgroundThread(lambda: self._handle_signals(stream), name="longwatch-forward").start()
            yield

    def _handle_signals(self, stream: SignalStream) -> None:
        for signum in stream:
            if signum == signal.SIGCHLD:
                reap_orphans(self.supervisor.known_children)
            elif signum == signal.SIGHUP and self._on_hangup is not None:
                self.events.emit(SignalReceived(signal=signum, action="reload"))
                self._on_hangup()
            elif self._forwards_signals:
                self.events.emit(SignalReceived(signal=signum, action="forward"))
                self.supervisor.signal(signum)
            else:
                self.events.emit(SignalReceived(signal=signum, action="ignore"))

    def program_ended(self, end: ProgramEnd) -> None:
        """Report dropped output after the end of a program, while its name is known."""
        self._report_dropped(end.program)

    def _report_stalled(self, path: Path, buffered: int) -> None:
        self.events.emit(LogFileStalled(path=str(path), buffered=buffered))

    def _report_failed(self, path: Path, reason: str) -> None:
        self.events.emit(LogFileFailed(path=str(path), reason=reason))

    def _report_dropped(self, program: str) -> None:
        """Emit how many lines were dropped since the last report. With several programs some lines
        may be of another one.
        """
        lines = self.console.dropped_lines - self._reported_dropped
        if lines:
            self._reported_dropped += lines
            self.events.emit(OutputDropped(program=program, lines=lines))


def _start_error(error: SpawnError) -> LongwatchError:
    """The error for a failed first start: the command is wrong, or the machine lacks a resource for
    now.
    """
    if error.errno in _TRANSIENT_ERRNOS:
        return TryAgainError(f"{error}; the machine lacks a resource, try again later")
    return UsageError(f"{error}; {_cure(error)}")


def _cure(error: SpawnError) -> str:
    return (
        "give it a #! line, or run it through its interpreter"
        if error.errno == errno.ENOEXEC
        else "correct the command"
    )
