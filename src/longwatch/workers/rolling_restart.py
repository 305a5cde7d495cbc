"""Restarts the workers of a group one after another, so that the others go on with the work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError

from longwatch.core.events.supervisor import ConfigReloadRejected
from longwatch.errors import LongwatchError
from longwatch.host.background_thread import BackgroundThread
from longwatch.supervisor.supervisor import Supervisor


class RollingRestart:
    """Restarts programs one after another, each when the one before it is ready. One round at a
    time.

    `check` raises if the programs could not run now: then none is restarted. A program that does
    not become ready ends the round; the programs after it keep running as they are. Both emit
    `ConfigReloadRejected`. A shutdown of the supervisor ends the round without an event. Programs
    of the group that run on demand are only asked to stop.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        names: Sequence[str],
        *,
        group: str = "",
        check: Callable[[], object],
    ) -> None:
        self._supervisor = supervisor
        self._names = names
        self._group = group
        self._check = check
        self._is_requested = False
        self._thread: BackgroundThread | None = None

    def start(self) -> None:
        """Begin a round in the background; if one is under way, another follows it. Thread-safe
        for one caller at a time.
        """
        self._is_requested = True
        if self._thread is None or self._thread.done.is_set():
            self._thread = BackgroundThread(self._loop, name="rolling-restart", report_errors=True)
            self._thread.start()

    def _loop(self) -> None:
        while self._is_requested and not self._supervisor.is_shutting_down:
            self._is_requested = False
            self._restart_all()

    def _restart_all(self) -> None:
        try:
            self._check()
            self._supervisor.stop_on_demand(self._group)
            for name in self._names:
                self._supervisor.restart_programs(name, ready=True)
        except CancelledError:
            return  # the supervisor has stopped its loop
        except LongwatchError as error:
            if not self._supervisor.is_shutting_down:
                self._supervisor.events.emit(ConfigReloadRejected(reason=str(error)))
