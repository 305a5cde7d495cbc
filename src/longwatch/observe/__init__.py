"""Turns events into logs and metrics. No other layer logs or counts a state change.

The way of an event, under `longwatch up`
    emitted    A feature emits it (`core.events`). `Events` calls the observers of its process.
    counted    `counters` adds it to the counters of this process.
    recorded   `event_log` makes one record of it, masks secrets, and writes it to each sink.
    relayed    In a worker, the runner or the status page one sink is `workers.event_relay`, which
               sends the record to the parent: bounded, the oldest dropped and counted, in order.
               The counters follow once a second, as a whole.
    received   `workers.child_reports` adds the name of the program. `app.console` appends the
               record to `logs/watchdog.log`, the one log of events.
    shown      `longwatch events`, `longwatch top` and the status page (`page.history`) follow that
               log. `app.up_health` serves the merged counters as metrics, and health.
"""

from __future__ import annotations

from longwatch.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
