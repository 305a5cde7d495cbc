"""Longwatch keeps long-running workers and AI agents alive, and proves it."""

# The layers, lowest first; a layer may use those above it in this list, never those below
# (import-linter enforces it):
#
#   errors      every exception of the product, one tree; lazy: names that load on first use
#   core        pure decisions: clock, deadline, backoff, breaker, heartbeat, lease, health, events,
#               state tables, end causes
#   sse         an incremental parser of Server-Sent Events, on its own
#   host        life inside one process: loop thread, services, the periodic loop, shutdown,
#               guardian and children, watchdog
#   store       SQL stores: databases, migrations, named SQL, and claims: leased rows
#   engine      the one engine that runs claimed rows: slots, leases, settling, drain
#   mailbox     messages that cannot be lost: protocol, memory, SQL, Redis
#   runtime     loops over mailboxes that beat while they work, and groups of them: watched and
#               stopped together
#   flow        durable graphs: ready nodes are computed, whichever worker dies meanwhile
#   supervisor  programs and containers that stay up: exit decision, life of a program, targets,
#               probes
#   evals       a loop measured on a dataset
#   runner      event streams in, agent runs out: connections, intake, dispatch, simulator
#   observe     events -> logs and metrics
#   config      settings from file, environment and flags
#   workers     the parent of worker processes: monitor, lease renewal, health, stack dumps
#   app         the only wiring: builds the objects and hands them to each other
#   cli         the command line          testing     the public test kit
#
# Names are loaded when they are first used (PEP 562), so that `import longwatch` costs next to
# nothing.

from __future__ import annotations

from longwatch.lazy import lazy_exports

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_exports(__name__)
