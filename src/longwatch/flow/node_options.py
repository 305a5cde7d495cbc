"""The options of a node: frozen values that are validated when they are made."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from math import inf
from sys import float_info
from typing import Any

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.suggest import did_you_mean
from longwatch.errors import GraphError
from longwatch.flow.saved_value import OnSave, is_on_save

DEFAULT_RETRY = BackoffPolicy(initial=1.0, factor=2.0, cap=300.0, jitter=0.25)


class Isolation(StrEnum):
    """Where the function of a node runs."""

    THREAD = "thread"  # in the worker: a deadline asks the code to stop
    PROCESS = "process"  # in a child process: a deadline ends it


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """How a node is computed. Durations are in seconds.

    `abandon_after_seconds`       the longest that one attempt may take. One hour is far above the
                                  usual node, and a hang is still noticed the same day. A worker
                                  that dies is found sooner, by the heartbeat.
    `heartbeat_interval_seconds`  how often the worker renews a running attempt
    `heartbeat_timeout_seconds`   time without a renewal after which the attempt is reclaimed
    `progress_timeout_seconds`    time without `context.beat()` after which it is stalled; None: the
                                  code need not call `beat`
    `max_attempts`                failed and abandoned attempts with the same inputs before the node
                                  is given up
    `retry`                       the waits after attempts that raised; an abandoned attempt is
                                  tried again at once
    `isolation`                   "thread", or "process": in a child process, which a deadline ends
                                  whatever its code does
    `max_memory`                  bytes that such a child may use; None: as much as the worker
    `max_running`                 how many attempts of this node run at the same time, over all
                                  workers; None: no cap
    `on_save`                     called with a `SavedValue` after the commit of each new value
    `indexed`                     whether searches for its values use an index
    """

    abandon_after_seconds: float = 3600.0
    heartbeat_interval_seconds: float = 70.0
    heartbeat_timeout_seconds: float = 240.0
    progress_timeout_seconds: float | None = None
    max_attempts: int = 3
    retry: BackoffPolicy = field(default_factory=lambda: DEFAULT_RETRY)
    isolation: Isolation = Isolation.THREAD
    max_memory: int | None = None
    max_running: int | None = None
    on_save: OnSave | None = None
    indexed: bool = False


_DURATIONS = ("abandon_after_seconds", "heartbeat_interval_seconds", "heartbeat_timeout_seconds")
_COUNTS = ("max_attempts", "max_memory", "max_running")
MAX_COUNT = 2**31 - 1
"""The largest count that every database can store."""


def validate_options(node: str, given: dict[str, Any]) -> NodeOptions:
    """Validate the options of a node. Raises GraphError for an unknown option, a value out of
    bounds, or options that contradict each other.
    """
    known = [each.name for each in fields(NodeOptions)]
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known, default=f"known options are {', '.join(known)}")
            raise GraphError(f"node {node!r} has an unknown option {name!r}; {hint}")
    for name, value in given.items():
        _validate_option(node, name, value)
    if "isolation" in given:
        given = {**given, "isolation": Isolation(given["isolation"])}
    options = NodeOptions(**given)
    _validate_heartbeat(node, options)
    if options.max_memory is not None and options.isolation is not Isolation.PROCESS:
        raise GraphError(
            f"node {node!r}: max_memory needs isolation='process'; the memory of a thread cannot "
            f"be limited"
        )
    return options


def _validate_option(node: str, name: str, value: Any) -> None:
    if name in _DURATIONS or (name == "progress_timeout_seconds" and value is not None):
        _require(
            is_finite_number(value) and value > 0, node, name, "a number of seconds above 0", value
        )
    elif name in _COUNTS:
        optional = value is None and name != "max_attempts"
        _require(
            optional or is_positive_int(value), node, name, "a whole number of 1 or more", value
        )
        _require(
            optional or name == "max_memory" or value <= MAX_COUNT,
            node,
            name,
            f"no more than {MAX_COUNT}",
            value,
        )
    elif name == "retry":
        _require(isinstance(value, BackoffPolicy), node, name, "a BackoffPolicy", value)
    elif name == "on_save":
        _require(value is None or is_on_save(value), node, name, "a plain function", value)
    elif name == "indexed":
        _require(isinstance(value, bool), node, name, "True or False", value)
    elif name == "isolation":
        _require(
            isinstance(value, str) and value in set(Isolation),
            node,
            name,
            "'thread' or 'process'",
            value,
        )


def _validate_heartbeat(node: str, options: NodeOptions) -> None:
    interval, timeout = options.heartbeat_interval_seconds, options.heartbeat_timeout_seconds
    if interval > timeout / 2:
        raise GraphError(
            f"Node :{node} has unsafe heartbeat config. Interval ({interval:g}s) must be <= "
            f"half of timeout ({timeout:g}s)"
            " to prevent false positives."
        )


def is_positive_int(value: Any, *, maximum: float = inf) -> bool:
    """Whether a value is a whole number from 1 to `maximum`."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= maximum


def is_finite_number(value: Any) -> bool:
    """Whether a value is a number that a float can hold."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= float_info.max
    )


def _require(holds: bool, node: str, name: str, rule: str, value: Any) -> None:  # noqa: FBT001 - the condition is the point of the call
    if not holds:
        raise GraphError(f"node {node!r}: {name} must be {rule}, not {value!r}")
