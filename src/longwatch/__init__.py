"""Longwatch keeps long-running workers and AI agents alive, and proves it."""

# The layers, lowest first; a layer may use those above it in this list, never those below
# (import-linter enforces it):
#
#   errors      every exception of the product, one tree; lazy: names that are loaded when first
#               used
#   core        pure decisions: clock, deadline, backoff, breaker, heartbeat, lease, health, events,
#               state tables, end causes
#   host        life inside one process: loop thread, services, the periodic loop, shutdown,
#               guardian and children, watchdog
#   store       SQL stores: engine, migrations, named SQL, and claims: leased rows
#   work        the one engine that runs claimed rows: slots, leases, settling, drain
#   mailbox     messages that cannot be lost: protocol, memory, SQL, Redis
#   runtime     loops over mailboxes that beat while they work, and groups of them: watched, healthy
#               or not, stopped together
#   flow        durable graphs: what is ready is computed, whoever dies meanwhile
#   supervisor  programs that stay up: exit decision, life of a program, health checks
#   observe     events -> logs and metrics
#   config      settings from file, environment and flags
#   app         the only wiring: builds the objects and hands them to each other
#   cli         the command line          testing     the public test kit
#
# Names are loaded when they are first used (PEP 562), so that `import longwatch` costs next to
# nothing.

from __future__ import annotations

from typing import TYPE_CHECKING

from longwatch.lazy import lazy_names

if TYPE_CHECKING:
    from longwatch.core.backoff import Backoff as Backoff
    from longwatch.core.backoff import BackoffPolicy as BackoffPolicy
    from longwatch.core.breaker import Breaker as Breaker
    from longwatch.core.breaker import BreakerPolicy as BreakerPolicy
    from longwatch.core.cancel import CancelToken as CancelToken
    from longwatch.core.clock import Clock as Clock
    from longwatch.core.clock import SystemClock as SystemClock
    from longwatch.core.deadline import Deadline as Deadline
    from longwatch.core.endcause import EndCause as EndCause
    from longwatch.core.events import Events as Events
    from longwatch.core.heartbeat import Heartbeat as Heartbeat
    from longwatch.errors import ConfigError as ConfigError
    from longwatch.errors import LongwatchError as LongwatchError
    from longwatch.errors import MailboxError as MailboxError
    from longwatch.errors import PermanentError as PermanentError
    from longwatch.errors import UsageError as UsageError
    from longwatch.host.periodic import Cadence as Cadence
    from longwatch.host.periodic import Periodic as Periodic
    from longwatch.host.process import StopPolicy as StopPolicy
    from longwatch.host.service import Service as Service
    from longwatch.host.shutdown import ShutdownCoordinator as ShutdownCoordinator
    from longwatch.mailbox.backend import Limits as Limits
    from longwatch.mailbox.mailbox import Mailbox as Mailbox
    from longwatch.mailbox.message import Message as Message
    from longwatch.mailbox.opening import open_mailbox as open_mailbox
    from longwatch.mailbox.opening import open_store as open_store
    from longwatch.supervisor.decision import RestartPolicy as RestartPolicy
    from longwatch.supervisor.decision import should_restart as should_restart

__version__ = "0.1.0"

_HOMES = {
    "Backoff": "longwatch.core.backoff",
    "BackoffPolicy": "longwatch.core.backoff",
    "Breaker": "longwatch.core.breaker",
    "BreakerPolicy": "longwatch.core.breaker",
    "Cadence": "longwatch.host.periodic",
    "CancelToken": "longwatch.core.cancel",
    "Clock": "longwatch.core.clock",
    "ConfigError": "longwatch.errors",
    "Deadline": "longwatch.core.deadline",
    "EndCause": "longwatch.core.endcause",
    "Events": "longwatch.core.events",
    "Heartbeat": "longwatch.core.heartbeat",
    "Limits": "longwatch.mailbox.backend",
    "LongwatchError": "longwatch.errors",
    "Mailbox": "longwatch.mailbox.mailbox",
    "MailboxError": "longwatch.errors",
    "Message": "longwatch.mailbox.message",
    "Periodic": "longwatch.host.periodic",
    "PermanentError": "longwatch.errors",
    "RestartPolicy": "longwatch.supervisor.decision",
    "Service": "longwatch.host.service",
    "ShutdownCoordinator": "longwatch.host.shutdown",
    "StopPolicy": "longwatch.host.process",
    "SystemClock": "longwatch.core.clock",
    "UsageError": "longwatch.errors",
    "open_mailbox": "longwatch.mailbox.opening",
    "open_store": "longwatch.mailbox.opening",
    "should_restart": "longwatch.supervisor.decision",
}

__all__ = [
    "Backoff",
    "BackoffPolicy",
    "Breaker",
    "BreakerPolicy",
    "Cadence",
    "CancelToken",
    "Clock",
    "ConfigError",
    "Deadline",
    "EndCause",
    "Events",
    "Heartbeat",
    "Limits",
    "LongwatchError",
    "Mailbox",
    "MailboxError",
    "Message",
    "Periodic",
    "PermanentError",
    "RestartPolicy",
    "Service",
    "ShutdownCoordinator",
    "StopPolicy",
    "SystemClock",
    "UsageError",
    "__version__",
    "open_mailbox",
    "open_store",
    "should_restart",
]


if not TYPE_CHECKING:  # or a checker would take every misspelt name for one of these
    __getattr__ = lazy_names(
        __name__,
        _HOMES,
        modules=("errors", "flow", "mailbox", "observe", "runtime", "supervisor", "testing"),
    )


def __dir__() -> list[str]:
    return __all__
