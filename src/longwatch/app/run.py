"""`longwatch run`: one command, kept up, with this process in the foreground or as PID 1.

The way of a run: check what was asked for → open the logs → start the guardian → live → stop the guardian → write out the logs.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from longwatch import __version__
from longwatch.app.command import check_command, program_name, working_directory
from longwatch.app.console import OWN_LOG, Console, fill_standard_streams, make_state_directory
from longwatch.config.settings import RunSettings, Settings, shown_settings
from longwatch.core.backoff import BackoffPolicy
from longwatch.core.breaker import BreakerPolicy
from longwatch.core.clock import SystemClock
from longwatch.core.events import (
    Event,
    Events,
    OutputDropped,
    ProgramEnded,
    SettingsInEffect,
    SignalReceived,
    SupervisorStarted,
    SupervisorStopped,
)
from longwatch.errors import LongwatchError, SpawnError, TryAgainError, UsageError
from longwatch.host.children import Guardian
from longwatch.host.errand import Errand
from longwatch.host.loop import LoopThread
from longwatch.host.process import KILL_NOW, ProcessSpec, StopPolicy
from longwatch.host.reaping import reap_strangers
from longwatch.host.shutdown import ShutdownCoordinator
from longwatch.host.signals import SignalStream, catching
from longwatch.supervisor.decision import Restart, RestartPolicy
from longwatch.supervisor.environment import child_environment
from longwatch.supervisor.healthcheck import HealthPolicy
from longwatch.supervisor.program import Program, ProgramPlan

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
FORWARDED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
INSIST_AFTER = 0.5
"""Seconds between two signals that make the second one insist."""
_FOR_NOW = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
"""Reasons not to start that may be gone the next time."""


def run(settings: Settings, command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Keep the command up until an end that is final; the exit code to pass on."""
    fill_standard_streams()
    name = checked_name(settings.run.name or program_name(command))
    env = child_environment(environ, settings.run.env)
    cwd = working_directory(settings.run.cwd)
    check_command(command, cwd=cwd, env=env)
    check_port(settings.run)
    clock = SystemClock()
    with _console(settings, name, clock, environ) as console:
        process = ProcessSpec(argv=command, env=env, cwd=str(cwd), stdin=0, stdout=console.stdout, stderr=console.stderr)
        return _Foreground(settings, plan(settings.run, name, process), console, clock).run()


def plan(run: RunSettings, name: str, process: ProcessSpec) -> ProgramPlan:
    """The settings, as what the supervisor works with."""
    backoff, breaker, health = run.backoff, run.breaker, run.health
    return ProgramPlan(
        name=name,
        process=process,
        restart=RestartPolicy(restart=Restart(run.restart), codes=run.restart_codes, final_codes=run.no_restart_codes),
        backoff=BackoffPolicy(
            initial=backoff.initial,
            factor=backoff.factor,
            cap=backoff.cap,
            jitter=backoff.jitter,
            stable_after=run.stable_after,
        ),
        breaker=BreakerPolicy(
            tolerated=breaker.restarts,
            window=breaker.window,
            cooldown=None if breaker.cooldown == "off" else breaker.cooldown,
        ),
        stop=StopPolicy(signal=run.stop_signal_number, grace=run.stop_grace),
        health=None
        if not health.checked
        else HealthPolicy(
            port=health.effective_port,
            path=health.path,
            interval=health.interval,
            timeout=health.timeout,
            failures=health.failures,
            start_grace=health.start_grace,
        ),
    )


def checked_name(name: str) -> str:
    """The program's output must not get into our own log."""
    if name == OWN_LOG:
        raise UsageError(f"the name {name!r} belongs to our own log; choose another with --name")
    return name


def check_port(run: RunSettings) -> None:
    """Somebody else on the port would answer our questions in the program's place."""
    if not run.health.checked:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", run.health.effective_port))
        except OSError as error:
            problem = os.strerror(error.errno or 0).lower()
            raise UsageError(
                f"port {run.health.effective_port} is not free ({problem}), so health checks would ask another server;"
                " stop that one, choose another PORT, or turn the checks off with --no-health"
            ) from None


def _cure(error: SpawnError) -> str:
    return "give it a #! line, or run it through its interpreter" if error.errno == errno.ENOEXEC else "correct the command"


@contextmanager
def _console(settings: Settings, name: str, clock: SystemClock, environ: Mapping[str, str]) -> Iterator[Console]:
    state = settings.state_path
    if state is not None:
        try:
            make_state_directory(state)
        except OSError as error:
            raise UsageError(
                f"cannot write to the state directory {str(state)!r} ({(error.strerror or '').lower()});"
                " choose another with --state-dir DIR, or keep no files with --state-dir off"
            ) from None
    console = Console(settings.run.log, program=name, state=state, clock=clock, environ=environ)
    try:
        yield console
    finally:
        console.close()


def hold_signals() -> None:
    """Until we are ready, and in every thread that is started meanwhile, for good: signals are the main thread's business."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {*STOPPING, *FORWARDED, signal.SIGCHLD})


def let_signals_through() -> None:
    """Whatever whoever started us had blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*STOPPING, *FORWARDED, signal.SIGCHLD})


def _refusal(error: SpawnError) -> LongwatchError:
    """The very first start failed: the command is wrong, or the machine is short of something just now."""
    if error.errno in _FOR_NOW:
        return TryAgainError(f"{error}; the machine is short of it, try again")
    return UsageError(f"{error}; {_cure(error)}")


class _Foreground:
    """This process while it supervises: its signals, its guardian, its one program."""

    def __init__(self, settings: Settings, plan: ProgramPlan, console: Console, clock: SystemClock) -> None:
        self.settings = settings
        self.console = console
        self.events = Events(console.log)
        self.events.subscribe(self._after_each_run)
        self.loop = LoopThread()
        self.guardian = Guardian(self.loop, clock=clock, events=self.events, adopt=True)
        self.program = Program(plan, guardian=self.guardian, clock=clock, events=self.events)
        self.told_dropped = 0

    def run(self) -> int:
        """Signals first, so that none finds us half-way; then the program, to its end."""
        began = time.monotonic()
        self.events.emit(SupervisorStarted(version=__version__, program=self.program.plan.name))
        self.events.emit(SettingsInEffect(settings=shown_settings(self.settings)))
        code = 1
        hold_signals()
        try:
            with self._stop_on_signal(), self._forwarding(), self.guardian:
                story = self.loop.spawn(self.program.live())
                let_signals_through()
                code = story.result()
        except SpawnError as error:
            refusal = _refusal(error)
            code = refusal.exit_code
            raise refusal from None
        except LongwatchError as error:
            code = error.exit_code
            raise
        finally:
            self.loop.stop()
            self.console.flush()
            self._tell_dropped()
            self.events.emit(SupervisorStopped(exit_code=code, lasted=time.monotonic() - began))
        return code

    @contextmanager
    def _stop_on_signal(self) -> Iterator[None]:
        """The first signal stops the program with its grace, the second without; what was ignored (nohup, `&`) stays ignored."""
        heard = [signum for signum in STOPPING if signum == signal.SIGTERM or signal.getsignal(signum) is not signal.SIG_IGN]
        coordinator = ShutdownCoordinator.install(signals=heard, events=self.events, insist_after=INSIST_AFTER)
        coordinator.register(lambda: self._stop(coordinator.signal))
        coordinator.on_escalation(lambda: self._kill(coordinator.second_signal))
        try:
            yield
        finally:
            ShutdownCoordinator.reset()

    def _stop(self, received: int | None) -> None:
        """Pass on the signal that came, unless another is configured."""
        policy = self.program.plan.stop
        if received is not None and self.settings.run.stop_signal is None:
            policy = replace(policy, signal=received)
        self.events.emit(SignalReceived(signal=received or policy.signal, action="stop"))
        self._on_loop(lambda: self.program.stop(policy))

    def _kill(self, received: int | None) -> None:
        self.events.emit(SignalReceived(signal=received or KILL_NOW.signal, action="escalate"))
        self._on_loop(self.program.kill)

    @contextmanager
    def _forwarding(self) -> Iterator[None]:
        """Pass other signals on to the program, and reap what ends below us as PID 1."""
        with catching((*FORWARDED, signal.SIGCHLD)) as stream:
            Errand(lambda: self._forward(stream), name="longwatch-forward").start()
            yield

    def _forward(self, stream: SignalStream) -> None:
        for signum in stream:
            if signum == signal.SIGCHLD:
                reap_strangers({self.guardian.pid or 0})
            else:
                self.events.emit(SignalReceived(signal=signum, action="forward"))
                self._on_loop(partial(self.program.signal, signum))

    def _on_loop(self, act: Callable[[], None]) -> None:
        self.loop.loop().call_soon_threadsafe(act)

    def _after_each_run(self, event: Event) -> None:
        if isinstance(event, ProgramEnded):
            self._tell_dropped()

    def _tell_dropped(self) -> None:
        """Say how many lines nobody took since this was last said."""
        lines = self.console.dropped - self.told_dropped
        if lines:
            self.told_dropped += lines
            self.events.emit(OutputDropped(program=self.program.plan.name, lines=lines))
