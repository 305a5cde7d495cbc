"""Loops over mailboxes, with a heartbeat, a watchdog, health checks and a graceful shutdown.

The parts of a process that runs a group
    group        starts everything and stops it under one deadline (`group.py`, `group_run.py`)
    loops        one waiting thread each; slots, leases and settling are the work of the engine
                 (`main_loop.py` over `longwatch.engine`)
    watchdog     one thread that checks the beats of running code, and ends the process with its
                 stacks on record (`host.watchdog`)
    health       one thread that serves HTTP (`host.health_server`) from the checks that the group
                 has (`health_checks.py`)
    coordinator  one thread that reads signals and passes them on (`host.shutdown`)
    A parent, if there is one, renews the leases, reads the beats, and serves health for all its
    workers (`longwatch worker`).

The life of a message (`request_runner.py`)
    decoded → refused if its deadline has passed → handled → replied to and settled. An exception of
    the handler is a failure of the message. It is retried after a backoff. After the last attempt
    its sender gets an error reply.

The life of a loop (`engine/run_guard.py`)
    idle → running → idle … After a stop before its first run, that run returns at once.
"""

from __future__ import annotations

from longwatch.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
