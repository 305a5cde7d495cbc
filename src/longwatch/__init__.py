"""Longwatch keeps long-running workers and AI agents alive, and proves it."""

# The layers, lowest first. A layer may use those above it in this list, never those below
# (import-linter enforces this):
#
#   errors      all exceptions in one tree; lazy: names that load on first use
#   core        decisions without I/O: clock, deadline, backoff, breaker, heartbeat, lease, health,
#               events, state tables, end causes
#   sse         an incremental parser of Server-Sent Events, on its own
#   host        parts of one process: loop thread, services, the periodic loop, shutdown,
#               guardian and children, watchdog
#   store       SQL stores: databases, migrations, named SQL, and claims (leased rows)
#   engine      the one engine that runs claimed rows: slots, leases, settling, drain
#   mailbox     durable messages: protocol, memory, SQL, Redis
#   runtime     loops over mailboxes, with heartbeats, and groups of loops that are watched and
#               stopped together
#   flow        durable graphs, whose nodes are computed even if workers die
#   supervisor  keeps programs and containers up: exit decision, life of a program, targets,
#               probes
#   evals       measures a loop on a dataset
#   runner      runs agents for the events of streams: connections, intake, dispatch, simulator
#   observe     events -> logs and metrics
#   config      settings from file, environment and flags
#   workers     the parent of worker processes: monitor, lease renewal, health, stack dumps
#   app         the only wiring: builds the objects and connects them
#   page        the status page: views, templates and HTTP server, in a process of its own
#   cli         the command line          testing     the public test kit
#
# Names are loaded when they are first used (PEP 562), so that `import longwatch` costs next to
# nothing.

from __future__ import annotations

from longwatch.lazy import lazy_exports

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_exports(__name__)
