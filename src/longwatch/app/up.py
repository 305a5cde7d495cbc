"""`longwatch up`: the programs of a file, kept up, with this process in the foreground or as PID 1.

The way of it: read the file → look at the machine → open the logs → supervise until a signal → write out the logs.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path

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

DAY = 86_400.0
FOR_EVER = 36_500 * DAY
_WIDEST_TAG = 16


def up(path: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> int:
    """Keep the programs of the file up until we are told to stop; the exit code to pass on."""
    fill_standard_streams()
    loaded = load_config(path, environ, flags)
    planned = plans(loaded.settings, base=loaded.base, environ=environ, source=loaded.source)
    if loaded.state is not None:
        make_state_directory(loaded.state)
        Presence.claim(loaded.state).release()  # the one that is there has our ports, too: say that first
    if faults := busy_ports(loaded.settings, source=loaded.source):
        raise ConfigError(*faults)
    clock = SystemClock()
    with closing(Console(loaded.settings.supervisor.log, state=loaded.state, clock=clock, environ=environ)) as console:
        source = _Source(loaded, console, lambda: load_config(path, environ, flags), environ)
        supervisor = _supervisor(planned.values(), source, clock)
        source.reread = lambda: supervisor.limit_shutdown(_shutdown_timeout(source.loaded))
        _forget_logs(loaded, planned)
        return Foreground(supervisor, console, reloads=True).run(planned, shown_settings(loaded.settings))


def _supervisor(planned: Iterable[ProgramPlan], source: _Source, clock: SystemClock) -> Supervisor:
    asked = source.loaded.settings.supervisor
    return Supervisor(
        planned,
        state=source.loaded.state,
        streams=source.streams,
        events=Events(source.console.log),
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

    def __init__(self, loaded: Loaded, console: Console, load: Callable[[], Loaded], environ: Mapping[str, str]) -> None:
        self.loaded = loaded
        self.reread: Callable[[], None] = lambda: None
        """Called once it was read again and found in order."""
        self.console = console
        self._load = load
        self._environ = environ

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
        planned = plans(loaded.settings, base=loaded.base, environ=self._environ, source=loaded.source)
        self.loaded = loaded
        self.reread()
        return planned.values()

    def streams(self, plan: ProgramPlan) -> Streams:
        """Where a program's output goes."""
        widest = min(max(map(len, self.loaded.settings.program)), _WIDEST_TAG)
        return self.console.among_others(plan.name, plan.output, tag=f"{plan.name:<{widest}} | ")


def allow_many_files() -> None:
    """As many as we may, once the guardian runs: children get the limit that we were given."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _forget_logs(loaded: Loaded, known: Collection[str]) -> None:
    """Remove log files of programs that are no more, once nobody has written to them for as long as the ledger remembers."""
    days = loaded.settings.supervisor.keep_days
    if loaded.state is None or days == "off":
        return
    for path in (loaded.state / "logs").glob("*.log*"):
        if path.name.partition(".log")[0] in {*known, OWN_LOG}:
            continue
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > days * DAY:
                path.unlink()
