"""Reports `longwatch up` to the service manager that started it, such as systemd, by sd_notify.

READY=1 once the programs were started, WATCHDOG=1 while the supervisor's loop turns, STOPPING=1
when the programs stop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from longwatch.core.clock import Clock
from longwatch.host.periodic import Cadence, run_every
from longwatch.host.sdnotify import SdNotifier
from longwatch.supervisor.supervisor import Supervisor

_INTERVAL = 1.0
"""Seconds between two reports, unless the service manager asks for more."""


@contextmanager
def notifying_service_manager(
    supervisor: Supervisor, *, environ: Mapping[str, str], clock: Clock
) -> Iterator[None]:
    """Report the supervisor within the block, if the environment names a socket. Enter it before
    the supervisor starts.
    """
    notifier = SdNotifier.from_environment(environ)
    if not notifier.is_enabled:
        yield
        return
    watched = notifier.watchdog_seconds
    cadence = Cadence(interval=_INTERVAL if watched is None else min(_INTERVAL, watched / 3))
    report = _Report(supervisor, notifier)
    reporting = supervisor.loop.spawn(
        run_every(cadence, report.send, name="service manager report", clock=clock)
    )
    try:
        yield
    finally:
        reporting.cancel()
        notifier.stopping()


class _Report:
    """What was reported so far."""

    def __init__(self, supervisor: Supervisor, notifier: SdNotifier) -> None:
        self._supervisor = supervisor
        self._notifier = notifier
        self._was_ready = self._was_stopping = False

    async def send(self) -> None:
        """Report what has changed, and that the loop turns."""
        if self._supervisor.started and not self._was_ready:
            self._was_ready = True
            self._notifier.ready()
        if self._supervisor.is_shutting_down and not self._was_stopping:
            self._was_stopping = True
            self._notifier.stopping()
        if self._notifier.watchdog_seconds is not None:
            self._notifier.beat()
