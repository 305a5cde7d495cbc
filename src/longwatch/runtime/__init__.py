"""Loops over mailboxes that beat while they work, a watchdog that ends what hangs, health that can
say no, and graceful shutdown.

Who does what in a process that runs a group
    group        starts everything and ends it, under one deadline (`group.py`); its story is there
    loops        one thread each that waits; the work is the engine's: slots, leases, settling
                 (`main_loop.py` over `longwatch.engine`)
    watchdog     one thread that looks at the beats of what runs, and ends the process with its
                 stacks on record (`host.watchdog`)
    health       one thread that answers HTTP (`host.health_server`), from the checks that the group
                 has (`health_checks.py`)
    coordinator  one thread that reads signals and passes them on (`host.shutdown`)
    A parent, if there is one, renews the leases, sees the beats, and speaks for all its children
    (`longwatch worker`).

The life of a message (`request_runner.py`)
    decoded → refused if its deadline has passed → handled → answered and settled. A handler's
    exception is a failure of that message: it comes back after a while, and after its last try its
    sender is told.

The life of a loop (`engine/run_guard.py`)
    idle → running → idle … One that is told to stop before it ever ran returns at once from its
    first run.
"""

from __future__ import annotations

from longwatch.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
