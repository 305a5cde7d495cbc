"""How a node is computed, as frozen values that are checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from math import inf
from sys import float_info
from typing import Any

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.nearest import did_you_mean
from longwatch.errors import GraphError

RETRY = BackoffPolicy(initial=1.0, factor=2.0, cap=300.0, jitter=0.25)


class Isolation(StrEnum):
    """Where the function of a node runs."""

    THREAD = "thread"  # in the worker: it is told to stop
    PROCESS = "process"  # in a child of its own: it is made to


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """Durations in seconds.

    `abandon_after_seconds`       the longest that one attempt may take
    `heartbeat_interval_seconds`  how often a running attempt is renewed
    `heartbeat_timeout_seconds`   silence after which it is dead
    `progress_timeout_seconds`    silence of `context.beat()` after which it is stalled; None: it
                                  need not call that
    `max_attempts`                failed and abandoned attempts from the same inputs before it is
                                  given up
    `retry`                       the waits after attempts that raised; one that was abandoned is
                                  tried again at once
    `isolation`                   "thread", or "process": in a child process, which can be ended
                                  whatever it does
    `max_memory`                  bytes that such a child may use; None: as much as the worker
    `max_running`                 how many attempts of this node run at the same time, over all
                                  workers; None: no cap
    """

    abandon_after_seconds: float = 3600.0
    heartbeat_interval_seconds: float = 70.0
    heartbeat_timeout_seconds: float = 240.0
    progress_timeout_seconds: float | None = None
    max_attempts: int = 3
    retry: BackoffPolicy = field(default_factory=lambda: RETRY)
    isolation: Isolation = Isolation.THREAD
    max_memory: int | None = None
    max_running: int | None = None


_SECONDS = ("abandon_after_seconds", "heartbeat_interval_seconds", "heartbeat_timeout_seconds")
_WHOLE = ("max_attempts", "max_memory", "max_running")
MOST = 2**31 - 1
"""What every store can count to."""


def checked_options(node: str, given: dict[str, Any]) -> NodeOptions:
    """The options of a node; GraphError for one that is not known, out of bounds, or does not go
    with another.
    """
    known = [each.name for each in fields(NodeOptions)]
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known, otherwise=f"known are {', '.join(known)}")
            raise GraphError(f"node {node!r} has an unknown option {name!r}; {hint}")
    for name, value in given.items():
        _check_one(node, name, value)
    if "isolation" in given:
        given = {**given, "isolation": Isolation(given["isolation"])}
    options = NodeOptions(**given)
    _check_heartbeat(node, options)
    if options.max_memory is not None and options.isolation is not Isolation.PROCESS:
        raise GraphError(
            f"node {node!r}: max_memory needs isolation='process'; memory of a thread cannot "
            f"be told apart"
        )
    return options


def _check_one(node: str, name: str, value: Any) -> None:
    if name in _SECONDS or (name == "progress_timeout_seconds" and value is not None):
        _require(is_number(value) and value > 0, node, name, "a number of seconds above 0", value)
    elif name in _WHOLE:
        optional = value is None and name != "max_attempts"
        _require(optional or is_whole(value), node, name, "a whole number of 1 or more", value)
        _require(
            optional or name == "max_memory" or value <= MOST,
            node,
            name,
            f"no more than {MOST}",
            value,
        )
    elif name == "retry":
        _require(isinstance(value, BackoffPolicy), node, name, "a BackoffPolicy", value)
    elif name == "isolation":
        _require(
            isinstance(value, str) and value in set(Isolation),
            node,
            name,
            "'thread' or 'process'",
            value,
        )


def _check_heartbeat(node: str, options: NodeOptions) -> None:
    interval, timeout = options.heartbeat_interval_seconds, options.heartbeat_timeout_seconds
    if interval > timeout / 2:
        raise GraphError(
            f"Node :{node} has unsafe heartbeat config. Interval ({interval:g}s) must be <= "
            f"half of timeout ({timeout:g}s)"
            " to prevent false positives."
        )


def is_whole(value: Any, *, most: float = inf) -> bool:
    """Whether it is a whole number from 1 up."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def is_number(value: Any) -> bool:
    """Whether it is one that can be counted with; a whole number may be too large for that."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= float_info.max
    )


def _require(holds: bool, node: str, name: str, rule: str, value: Any) -> None:  # noqa: FBT001 - the condition is the point of the call
    if not holds:
        raise GraphError(f"node {node!r}: {name} must be {rule}, not {value!r}")
