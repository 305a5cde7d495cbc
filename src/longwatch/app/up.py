"""`longwatch up`: the programs of a file, kept up, with this process in the foreground or as PID 1.

The way of it: read the file → look at the machine → open the logs → supervise until a signal →
write out the logs.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from longwatch import __version__
from longwatch.app.console import Console, fill_standard_streams, make_state_directory
from longwatch.app.foreground import Foreground
from longwatch.app.plans import plans
from longwatch.app.ports import busy_ports
from longwatch.config.discovery import Loaded, load_config
from longwatch.config.settings import shown_settings
from longwatch.core.clock import SystemClock
from longwatch.core.events import Events
from longwatch.errors import ConfigError, Fault
from longwatch.observe.logfile import OWN_LOG
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.presence import Presence
from longwatch.supervisor.program import Streams
from longwatch.supervisor.supervisor import Supervisor

if TYPE_CHECKING:
    from longwatch.app.workers import Workers

DAY = 86_400.0
FOR_EVER = 36_500 * DAY
_WIDEST_TAG = 16


def up(path: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> int:
    """Keep the programs of the file up until we are told to stop; the exit code to pass on."""
    fill_standard_streams()
    source = _Source(lambda: load_config(path, environ, flags), environ)
    loaded = source.loaded
    with closing(source):
        planned = source.plans(loaded)
        if loaded.state is not None:
            make_state_directory(loaded.state)
            Presence.claim(
                loaded.state
            ).release()  # the one that is there has our ports, too: say that first
        if faults := busy_ports(loaded.settings, source=loaded.source):
            raise ConfigError(*faults)
        clock = SystemClock()
        with closing(
            Console(
                loaded.settings.supervisor.log, state=loaded.state, clock=clock, environ=environ
            )
        ) as console:
            source.speak_on(console)
            return _keep_up(planned, source, console, clock)


def _keep_up(
    planned: Mapping[str, ProgramPlan], source: _Source, console: Console, clock: SystemClock
) -> int:
    supervisor = _supervisor(planned.values(), source, clock)
    source.serve(supervisor)
    source.reread = lambda: supervisor.limit_shutdown(_shutdown_timeout(source.loaded))
    _forget_logs(source.loaded, planned)
    settings = shown_settings(source.loaded.settings)
    return Foreground(supervisor, console, on_hangup=supervisor.reload_source).run(
        planned, settings
    )


def _supervisor(planned: Iterable[ProgramPlan], source: _Source, clock: SystemClock) -> Supervisor:
    asked = source.loaded.settings.supervisor
    return Supervisor(
        planned,
        state=source.loaded.state,
        streams=source.streams,
        events=source.events,
        clock=clock,
        source=source.read_again,
        shutdown_timeout=_shutdown_timeout(source.loaded),
        forget_after=FOR_EVER if asked.keep_days == "off" else asked.keep_days * DAY,
        about={"version": __version__},
        guarded=allow_many_files,
        adopt=True,
    )


def _shutdown_timeout(loaded: Loaded) -> float | None:
    asked = loaded.settings.supervisor.shutdown_timeout
    return None if asked == "off" else asked


class _Source:
    """The file, as it was read last."""

    def __init__(self, load: Callable[[], Loaded], environ: Mapping[str, str]) -> None:
        self.loaded = load()
        self.reread: Callable[[], None] = lambda: None
        """Called once it was read again and found in order."""
        self.events = Events()
        self.supervisor: Supervisor | None = None
        self._workers: Workers | None = None
        self._console: Console | None = None
        self._load = load
        self._environ = environ

    def speak_on(self, console: Console) -> None:
        """Where everything is told from now on."""
        self._console = console
        self.events.subscribe(console.log)

    def read_again(self) -> Iterable[ProgramPlan]:
        """The plans that stand in it now; ConfigError, and nothing is changed."""
        loaded = self._load()
        if loaded.state != self.loaded.state:
            fault = Fault(
                f"{loaded.source}: state_dir",
                "cannot change while we run",
                "put it back, or stop `longwatch up` and start it again",
            )
            raise ConfigError(fault)
        planned = self.plans(loaded)
        self.loaded = loaded
        self.reread()
        return planned.values()

    def plans(self, loaded: Loaded) -> dict[str, ProgramPlan]:
        return plans(
            loaded.settings,
            base=loaded.base,
            environ=self._environ,
            source=loaded.source,
            told=self._told,
        )

    def _told(self, uid: int | None) -> Mapping[str, str]:
        """What worker processes find in their environment; the first of them needs a parent."""
        if self._workers is None:
            from longwatch.app.workers import Workers  # noqa: PLC0415 - only who has workers pays

            log = self.loaded.settings.supervisor.log
            state = self.loaded.state
            self._workers = Workers(state=state, log=log, clock=SystemClock(), events=self.events)
            self._workers.supervisor = self.supervisor
            self._workers.start()
        return self._workers.told(uid)

    def serve(self, supervisor: Supervisor) -> None:
        """Be its source, and have it kill the workers that stall."""
        self.supervisor = supervisor
        if self._workers is not None:
            self._workers.supervisor = supervisor

    def close(self) -> None:
        if self._workers is not None:
            self._workers.stop()

    def streams(self, plan: ProgramPlan) -> Streams:
        """Where a program's output goes."""
        settings = self.loaded.settings
        names = [
            *settings.program,
            *(each for name, worker in settings.worker.items() for each in worker.names(name)),
        ]
        widest = min(max(map(len, names)), _WIDEST_TAG)
        assert self._console is not None
        return self._console.among_others(plan.name, plan.output, tag=f"{plan.name:<{widest}} | ")


def allow_many_files() -> None:
    """As many as we may, once the guardian runs: children get the limit that we were given."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _forget_logs(loaded: Loaded, known: Collection[str]) -> None:
    """Remove log files of programs that are no more, once nobody has written to them for as long
    as the ledger remembers.
    """
    days = loaded.settings.supervisor.keep_days
    if loaded.state is None or days == "off":
        return
    for path in (loaded.state / "logs").glob("*.log*"):
        if path.name.partition(".log")[0] in {*known, OWN_LOG}:
            continue
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > days * DAY:
                path.unlink()
