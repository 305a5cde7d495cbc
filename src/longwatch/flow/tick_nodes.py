"""Defines ticks: nodes that fire at a time, once or again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from longwatch.errors import GraphError
from longwatch.flow.gates import GateLike, to_gate
from longwatch.flow.node_options import validate_options
from longwatch.flow.nodes import Node, NodeKind, validate_function, validate_name
from longwatch.flow.schedules import Schedule, validate_cron, validate_delay, validate_every

_FOREIGN_OPTIONS = {
    NodeKind.TICK_ONCE: ({"every", "cron", "timezone"}, NodeKind.TICK_RECURRING),
    NodeKind.TICK_RECURRING: ({"delay"}, NodeKind.TICK_ONCE),
}
"""The options that only the other kind of tick has, and this kind."""


def tick_once(
    name: str,
    after: GateLike | Iterable[GateLike] = (),
    function: Callable[..., Any] | None = None,
    *,
    delay: float | None = None,
    **options: Any,
) -> Node:
    """Define a node that fires once for the present values of its upstream nodes: `delay` seconds
    after its gate is met, or when `function` says.

    The function returns an aware datetime, a timedelta, seconds from now, or None for never. The
    value of the node is the time at which it was due, in seconds since 1970.
    """
    refuse_foreign_options(NodeKind.TICK_ONCE, name, options)
    _require_one(name, {"function": function, "delay": delay})
    schedule = None if delay is None else validate_delay(name, delay)
    return _tick(NodeKind.TICK_ONCE, name, after, function, schedule, options)


def tick_recurring(  # noqa: PLR0913 - three kinds of schedules
    name: str,
    after: GateLike | Iterable[GateLike] = (),
    function: Callable[..., Any] | None = None,
    *,
    every: float | None = None,
    cron: str | None = None,
    timezone: str = "UTC",
    **options: Any,
) -> Node:
    """Define a node that fires again and again: every so many seconds, at the times of a cron
    expression in a time zone, or when `function` says, which is called for each time.

    The function returns what that of `tick_once` returns; None ends the tick. After an outage it
    fires once for all times that were missed.
    """
    refuse_foreign_options(NodeKind.TICK_RECURRING, name, options)
    _require_one(name, {"function": function, "every": every, "cron": cron})
    schedule: Schedule | None = None
    if every is not None:
        schedule = validate_every(name, every)
    elif cron is not None:
        schedule = validate_cron(name, cron, timezone, now=time.time())
    if cron is None and timezone != "UTC":
        raise GraphError(f"node {name!r}: timezone needs cron; pass cron=, or leave timezone out")
    return _tick(NodeKind.TICK_RECURRING, name, after, function, schedule, options)


def _tick(  # noqa: PLR0913, PLR0917 - the fields of a node
    kind: NodeKind,
    name: str,
    after: GateLike | Iterable[GateLike],
    function: Callable[..., Any] | None,
    schedule: Schedule | None,
    options: dict[str, Any],
) -> Node:
    gate = to_gate(after)
    node_options = validate_options(validate_name(name), options)
    if schedule is None:
        validate_function(name, function, gate.nodes, node_options)
    return Node(name, kind, gate, function, node_options, schedule=schedule)


def refuse_foreign_options(kind: NodeKind, name: str | None, options: dict[str, Any]) -> None:
    """Raise GraphError for an option that only the other kind of tick has."""
    foreign, other = _FOREIGN_OPTIONS[kind]
    for each in options:
        if each in foreign:
            raise GraphError(f"{kind} {name!r} takes no {each}=; write {other}(…, {each}=…)")


def _require_one(name: str, schedules: dict[str, Any]) -> None:
    given = [each for each, value in schedules.items() if value is not None]
    if len(given) != 1:
        raise GraphError(
            f"tick {name!r} needs exactly one of {', '.join(schedules)}, and has "
            f"{' and '.join(given) or 'none'}; pass one of them"
        )
