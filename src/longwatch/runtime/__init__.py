"""Loops over mailboxes that beat while they work, a watchdog that ends what hangs, health that can
say no, and graceful shutdown.

Who does what in a process that runs a group
    group        starts everything and ends it, under one deadline (`group.py`); its story is there
    loops        one thread each that waits; the work is the engine's: slots, leases, settling
                 (`mainloop.py` over `longwatch.work`)
    watchdog     one thread that looks at the beats of what runs, and ends the process with its
                 stacks on record (`host.watchdog`)
    health       one thread that answers HTTP (`host.health_server`), from the checks that the group
                 has (`vitals.py`)
    coordinator  one thread that reads signals and passes them on (`host.shutdown`)
    A parent, if there is one, renews the leases, sees the beats, and speaks for all its children
    (`longwatch worker`).

The life of a message (`handling.py`)
    decoded → refused if its deadline has passed → handled → answered and settled A handler's
    exception is a failure of that message: it comes back after a while, and after its last try its
    sender is told.

The life of a loop (`work/turns.py`)
    idle → running → idle … One that is told to stop before it ever ran returns at once from its
    first run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from longwatch.lazy import lazy_names

if TYPE_CHECKING:
    from longwatch.core.heartbeat import Heartbeat as Heartbeat
    from longwatch.errors import ShutdownTimeoutError as ShutdownTimeoutError
    from longwatch.host.health_server import HealthServer as HealthServer
    from longwatch.host.runnable import Runnable as Runnable
    from longwatch.host.shutdown import ShutdownCoordinator as ShutdownCoordinator
    from longwatch.host.watchdog import Watchdog as Watchdog
    from longwatch.runtime.context import MainLoopContext as MainLoopContext
    from longwatch.runtime.group import LoopGroup as LoopGroup
    from longwatch.runtime.mainloop import MainLoop as MainLoop
    from longwatch.runtime.messages import MainLoopRequest as MainLoopRequest
    from longwatch.runtime.messages import MainLoopResult as MainLoopResult

_HOMES = {
    "Heartbeat": "longwatch.core.heartbeat",
    "HealthServer": "longwatch.host.health_server",
    "LoopGroup": "longwatch.runtime.group",
    "MainLoop": "longwatch.runtime.mainloop",
    "MainLoopContext": "longwatch.runtime.context",
    "MainLoopRequest": "longwatch.runtime.messages",
    "MainLoopResult": "longwatch.runtime.messages",
    "Runnable": "longwatch.host.runnable",
    "ShutdownCoordinator": "longwatch.host.shutdown",
    "ShutdownTimeoutError": "longwatch.errors",
    "Watchdog": "longwatch.host.watchdog",
}

__all__ = [
    "HealthServer",
    "Heartbeat",
    "LoopGroup",
    "MainLoop",
    "MainLoopContext",
    "MainLoopRequest",
    "MainLoopResult",
    "Runnable",
    "ShutdownCoordinator",
    "ShutdownTimeoutError",
    "Watchdog",
]

if not TYPE_CHECKING:  # or a checker would take every misspelt name for one of these
    __getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
