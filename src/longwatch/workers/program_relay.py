"""The side of a Longwatch program that is no worker: relays its events to its parent, and reports
its readiness and its metrics once a second. The runner and the status page use it.

`workers.parent` gives the program the address of its parent, `workers.child_reports` receives what
is sent here. A worker process reports through `runtime.status_reporter` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from longwatch.core.clock import Clock
from longwatch.core.events.base import Events
from longwatch.host.parent_channel import REPORT_SECONDS, ParentChannel
from longwatch.host.periodic import Cadence, Periodic
from longwatch.workers.event_relay import EventRelay

CLOSE_TIMEOUT = 1.0
"""Seconds that the last state and the last events may take, each."""

StateReport = Callable[[], Mapping[str, object]]
"""Returns the state to report: `ready`, `failing` (the failing checks), and `samples`."""


def always_ready() -> Mapping[str, object]:
    """The state of a program without health checks and metrics."""
    return {"ready": True, "failing": []}


class ProgramRelay:
    """Relays events from its construction on, and the state from `start` on. `close` sends the last
    state and the last events. `state` must not wait for anything that may hang. Thread-safe.
    """

    def __init__(
        self,
        parent: ParentChannel,
        *,
        events: Events,
        clock: Clock,
        state: StateReport = always_ready,
    ) -> None:
        self._parent = parent
        self._state = state
        self._relay = EventRelay(parent, clock=clock)
        events.subscribe(self._relay.log)
        self._reporter = Periodic(
            self._report, Cadence(interval=REPORT_SECONDS), name="program-relay", clock=clock
        )

    def start(self) -> None:
        """Report the state now, and every second from now on."""
        self._reporter.start()

    def close(self, timeout: float = CLOSE_TIMEOUT) -> bool:
        """Send what is left; False if that did not succeed within the timeout. Idempotent."""
        stopped = self._reporter.stop(timeout=timeout)
        if stopped:
            self._report()
        return self._relay.close(timeout) and stopped

    def _report(self) -> None:
        self._parent.try_send("state", **self._state())
