"""Longwatch keeps long-running workers and AI agents alive, and proves it."""

# The layers, lowest first; a layer may use those above it in this list, never those below (import-linter enforces it):
#
#   errors      every exception of the product, one tree
#   core        pure decisions: clock, deadline, backoff, breaker, heartbeat, lease, health, events, state tables, end causes
#   host        life inside one process: the loop thread, services, the periodic loop, shutdown, guardian and children
#   supervisor  programs that stay up: exit decision, life of a program, health checks
#   observe     events -> logs
#   config      settings from file, environment and flags
#   app         the only wiring: builds the objects and hands them to each other
#   cli         the command line          testing     the public test kit
#
# Names are loaded when they are first used (PEP 562), so that `import longwatch` costs next to nothing.

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Backoff": "longwatch.core.backoff",
    "BackoffPolicy": "longwatch.core.backoff",
    "Breaker": "longwatch.core.breaker",
    "BreakerPolicy": "longwatch.core.breaker",
    "CancelToken": "longwatch.core.cancel",
    "ConfigError": "longwatch.errors",
    "Deadline": "longwatch.core.deadline",
    "EndCause": "longwatch.core.endcause",
    "Heartbeat": "longwatch.core.heartbeat",
    "LongwatchError": "longwatch.errors",
    "ShutdownCoordinator": "longwatch.host.shutdown",
    "StopPolicy": "longwatch.host.process",
    "should_restart": "longwatch.supervisor.decision",
}

__all__ = [
    "Backoff",
    "BackoffPolicy",
    "Breaker",
    "BreakerPolicy",
    "CancelToken",
    "ConfigError",
    "Deadline",
    "EndCause",
    "Heartbeat",
    "LongwatchError",
    "ShutdownCoordinator",
    "StopPolicy",
    "__version__",
    "should_restart",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home on first use."""
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'longwatch' has no attribute {name!r}") from None
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
