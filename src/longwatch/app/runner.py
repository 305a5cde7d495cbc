"""`longwatch runner`: the runner in the foreground, alone or as a program of `longwatch up`.

In order: read the file → look at the machine → open the store → serve health and metrics → run
until a signal. The first stop signal drains, the second ends the runs at once.

The process ends in any case. It has the drain budget and `CLOSING_SECONDS` more, from the second
signal on `KILL_SECONDS`. Then, and if the runner could not stop all of its parts, the end is forced
(`app.forced_end`): the guardian ends all agents, the log says what is left, the exit code is 1.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import TracebackType

from longwatch import __version__
from longwatch.app.console import Console, fill_standard_streams, usable_state_directory
from longwatch.app.forced_end import ForcedEnd
from longwatch.app.foreground import (
    STOP_SIGNALS,
    block_signals,
    stopping_on_signal,
    unblock_signals,
)
from longwatch.app.plans import check_limits
from longwatch.app.runner_control import RunnerControl
from longwatch.app.runner_plan import make_workspace, runner_faults, store_url
from longwatch.config.discovery import LoadedConfig, load_config
from longwatch.config.runner import (
    DEFAULT_HEALTH_PORT,
    DEFAULT_METRICS_PORT,
    RunnerSettings,
    variable_name,
)
from longwatch.config.runner_specs import (
    agent_spec,
    masked_runner_settings,
    process_limits,
    runner_policy,
    source_spec,
)
from longwatch.config.settings import DEFAULT_STATE_DIR, RUNNER_PROGRAM
from longwatch.core.clock import SystemClock, Wakeup
from longwatch.core.events.base import Events
from longwatch.core.events.runner import RunnerStopForced
from longwatch.core.events.supervisor import SignalReceived
from longwatch.core.health import Aspect, Health
from longwatch.errors import ConfigError, Fault
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.health_server import HealthServer
from longwatch.host.parent_channel import ParentChannel
from longwatch.host.periodic import Cadence, Periodic
from longwatch.host.process import reap_orphans
from longwatch.host.sdnotify import SdNotifier
from longwatch.host.signals import catch_signals
from longwatch.host.timed_reads import SCRAPE_READ_SECONDS, TimedReads
from longwatch.observe.runner_metrics import RunnerMetrics
from longwatch.observe.tracing import install_if_wanted
from longwatch.runner.health import MAX_BEAT_AGE
from longwatch.runner.runner import Runner
from longwatch.store.database import Database
from longwatch.store.url import open_database
from longwatch.workers.program_relay import ProgramRelay

BEAT_INTERVAL = 5.0
"""Maximum seconds between two beats for a supervisor."""
CLOSING_SECONDS = 5.0
"""Seconds that the end may take beyond the drain budget: guardian, store and logs."""
KILL_SECONDS = 2.0
"""Seconds that the end may take after a second signal."""

Flags = Mapping[str, object]


def runner(path: Path | None, environ: Mapping[str, str], flags: Flags) -> int:
    """Run until a signal. Returns the exit code."""
    fill_standard_streams()
    install_if_wanted(environ)
    parent = ParentChannel.from_environment()
    loaded = load_config(path, environ, flags)
    settings = require_runner(loaded, environ)
    clock = SystemClock()
    state, problem = usable_state_directory(
        loaded.state_dir, is_default=loaded.settings.state_dir == DEFAULT_STATE_DIR
    )
    log = loaded.settings.supervisor.log
    with (
        closing(
            Console(log, state=state, clock=clock, environ=environ, program=RUNNER_PROGRAM)
        ) as console,
        open_runner_database(runner_store_url(loaded, environ, flags)) as database,
    ):
        make_workspace(agent_spec(settings.agent, base=loaded.base_dir).workspace)
        console.redirect_logging()
        if problem is not None:
            console.log(problem)
        return _RunnerCommand(loaded, settings, database, console, environ, parent).run(state)


def require_runner(loaded: LoadedConfig, environ: Mapping[str, str]) -> RunnerSettings:
    """The settings of the runner. Raises ConfigError with everything that this machine lacks."""
    settings, source = loaded.settings.runner, loaded.display_path
    if settings is None:
        raise ConfigError(
            Fault(
                source,
                "declares no event source",
                'add one: [runner.source.NAME] with url = "https://…", and [runner.agent] with '
                'command = ["…"]',
            )
        )
    found = [
        *runner_faults(settings, base=loaded.base_dir, environ=environ),
        *(
            Fault(f"agent.{fault.where}", fault.problem, fault.cure)
            for fault in check_limits(settings.agent.limits)
        ),
    ]
    if found:
        raise ConfigError(
            *(Fault(f"{source}: runner.{each.where}", each.problem, each.cure) for each in found)
        )
    return settings


def runner_store_url(loaded: LoadedConfig, environ: Mapping[str, str], flags: Flags) -> str:
    """The URL of the store. A relative path in the file begins at the file, any other at the
    present directory.
    """
    assert loaded.settings.runner is not None
    url = loaded.settings.runner.store_url
    from_override = flags.get("runner.store_url") or environ.get(variable_name("store_url"))
    return url if from_override else store_url(url, loaded.base_dir)


def open_runner_database(url: str) -> Database:
    """Open the store, and check that it answers and that its schema is current. Raises a StoreError
    with the cure.
    """
    database = open_database(url)
    assert database is not None, "the settings allow SQL stores alone"
    try:
        database.write(lambda _: None)
    except BaseException:
        database.close()
        raise
    return database


class _RunnerCommand:
    """The wiring: runner, metrics, health, signals, and the reports to a supervisor and its
    process (`parent`).
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of one command, each made before
        self,
        loaded: LoadedConfig,
        settings: RunnerSettings,
        database: Database,
        console: Console,
        environ: Mapping[str, str],
        parent: ParentChannel | None,
    ) -> None:
        self._settings = settings
        self._store_url = database.absolute_url
        self._console = console
        self._clock = clock = SystemClock()
        self._events = Events(console.log)
        self._shown = masked_runner_settings(settings)
        self._notifier = SdNotifier.from_environment(environ)
        self._ended = Wakeup()
        self._is_clean = False
        base, policy = loaded.base_dir, runner_policy(settings)
        sources = [
            source_spec(name, source, base=base, environ=environ)
            for name, source in settings.source.items()
        ]
        self._depth_reads: TimedReads[Mapping[str, int]] = TimedReads(
            name="runner-queue-depths", timeout=SCRAPE_READ_SECONDS, clock=self._clock
        )
        self._metrics = RunnerMetrics(
            clusters=[source.name for source in sources],
            namespace=settings.metrics_namespace,
            agent_timeout=policy.agent_timeout,
            queue_depth=self._queue_depths,
            version=__version__,
        )
        self._events.subscribe(self._metrics.observe)
        self._runner = Runner(
            database,
            sources,
            agent_spec(settings.agent, base=base),
            policy,
            clock=clock,
            events=self._events,
            settings=self._shown,
            totals=self._metrics.totals,
            limits=process_limits(settings),
            subreaper=True,
        )
        self._relay = None if parent is None else self._make_relay(parent)
        self._forced_end = ForcedEnd(
            (self._report_left, self._end_agents, self._close_relay, console.flush), clock=clock
        )

    def _make_relay(self, parent: ParentChannel) -> ProgramRelay:
        """Relay the events, and report readiness and metrics to the process that serves them."""
        checks = [each for each in self._runner.health.checks() if Aspect.READY in each.aspects]
        health = Health(checks, self._clock)

        def state() -> Mapping[str, object]:
            report = health.report(Aspect.READY)
            return {
                "ready": report.ok,
                "failing": [f"{each.name}: {each.text or each.reason}" for each in report.failing],
                "samples": self._metrics.samples(self._runner.depths.latest),
                "runner": self._metrics.naming,
            }

        return ProgramRelay(parent, events=self._events, clock=self._clock, state=state)

    def _close_relay(self) -> None:
        if self._relay is not None:
            self._relay.close()

    def _queue_depths(self) -> Mapping[str, int]:
        """The depths of the queues. Raises LookupError if the store does not answer in time."""
        found = self._depth_reads.results({"queues": self._runner.depths.refresh})
        if not found:
            raise LookupError("the store did not answer")
        return found[0]

    def run(self, state: Path | None) -> int:
        """Run until a signal. `state` is the state directory in which `longwatch status` finds this
        process; None without one.
        """
        block_signals()
        try:
            stopping = stopping_on_signal(
                (*STOP_SIGNALS, signal.SIGHUP),
                stop=self._stop,
                kill=self._kill,
                events=self._events,
            )
            with stopping, self._reaping_orphans(), ExitStack() as undo:
                undo.callback(self._close_relay)
                self._serve(undo)
                self._open_control(state, undo)
                self._runner.start()
                undo.push(self._stop_after_error)
                if self._relay is not None:
                    self._relay.start()
                undo.enter_context(self._reporting())
                unblock_signals()
                self._clock.wait(self._ended)
                if not self._is_clean:
                    self._forced_end.now()
        finally:
            self._console.flush()
        return 0

    def _stop_after_error(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        """Stop the runner, unless a signal has done so."""
        if error is not None:
            self._runner.stop()

    def _serve(self, undo: ExitStack) -> None:
        """Serve health and metrics, each on its port unless that is off. The shown settings get the
        actual ports.
        """
        asked = self._settings
        for key, host, port, metrics in (
            ("health_port", asked.health_host, asked.health_port, None),
            ("metrics_port", asked.metrics_host, asked.metrics_port, self._metrics),
        ):
            default = DEFAULT_HEALTH_PORT if metrics is None else DEFAULT_METRICS_PORT
            chosen = default if port is None else port
            self._shown[key] = chosen
            if chosen == "off":
                continue
            assert isinstance(chosen, int)
            server = HealthServer(
                host=host,
                port=chosen,
                checks=self._runner.health.checks(),
                metrics=metrics,
                clock=self._clock,
                port_name=key.replace("_", " "),
            )
            server.start()
            undo.callback(server.stop)
            self._shown[key] = server.address[1] if server.address else chosen

    def _open_control(self, state: Path | None, undo: ExitStack) -> None:
        if state is None:
            return
        control = RunnerControl(
            self._runner,
            state,
            status_text=self._status,
            stop=lambda: os.kill(os.getpid(), signal.SIGTERM),
            store_url=self._store_url,
            clock=self._clock,
            events=self._events,
        )
        control.open()
        undo.callback(control.close)

    def _stop(self, received: int | None) -> None:
        name = signal.Signals(received or signal.SIGTERM).name
        self._forced_end.within(self._runner.policy.shutdown_timeout + CLOSING_SECONDS)
        try:
            self._notifier.stopping("draining")
            self._is_clean = self._runner.shut_down(signal=name)
        finally:
            self._ended.set()

    def _kill(self, received: int | None) -> None:
        self._events.emit(SignalReceived(signal=received or signal.SIGKILL, action="escalate"))
        self._forced_end.within(KILL_SECONDS)
        self._runner.kill()

    def _report_left(self) -> None:
        runner = self._runner
        self._events.emit(
            RunnerStopForced(unsettled=runner.dispatcher.engine.held_count, left=runner.left())
        )

    def _end_agents(self) -> None:
        """End the guardian, which kills its agents first. A guardian that hangs does so when this
        process is gone.
        """
        self._runner.guardian.stop(timeout=KILL_SECONDS)

    @contextmanager
    def _reaping_orphans(self) -> Iterator[None]:
        """Reap orphans, which become children of a PID 1 or a subreaper."""
        with catch_signals((signal.SIGCHLD,)) as stream:

            def reap() -> None:
                for _ in stream:
                    reap_orphans({self._runner.guardian.pid or 0})

            BackgroundThread(reap, name="longwatch-reaper").start()
            yield

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Report to systemd or the supervisor: ready now, then a beat while the loop runs."""
        if not self._notifier.is_enabled:
            yield
            return
        self._notifier.ready(self._status())
        watched = self._notifier.watchdog_seconds
        interval = BEAT_INTERVAL if watched is None else min(BEAT_INTERVAL, watched / 3)
        with Periodic(self._beat, Cadence(interval=interval), name="runner-beat"):
            yield

    def _beat(self) -> None:
        if self._runner.beat.heartbeat.elapsed() < MAX_BEAT_AGE:
            self._notifier.send(WATCHDOG="1", STATUS=self._status())

    def _status(self) -> str:
        """The status text for `longwatch status`."""
        runner = self._runner
        connected, running = runner.connections.active(), len(runner.dispatcher.in_flight())
        text = f"{connected} of {len(self._settings.source)} sources connected, {running} running"
        return f"{text}, circuit breaker is open" if runner.breaker.is_open else text
