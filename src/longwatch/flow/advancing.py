"""What follows in an execution from how its nodes stand: which are computed now, which are cleared,
what is called off.

Nodes are looked at in an order in which each comes after those that it depends on, so one pass
does. For each:

    its gate is not met      its value is cleared, its attempt called off; what comes after it sees
                             that in the same pass
    something before it is   that has a value and may get another: wait for that, or it would be
                             computed from old and new at once,
    unsettled                and again when the rest is new; it may turn out to be the same value,
                             and all is well as it is
    its value is fresh       it was computed with the present revisions of everything it depends on:
                             nothing
    its attempt is under     with the present inputs: nothing; with others: called off, and begun
                             anew
    way
    its attempts are spent   for the present inputs: nothing, until somebody says retry, or the
                             inputs change
    else                     an attempt is opened

A value that is not fresh stays until another replaces it, and counts as set meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum, auto

from longwatch.flow.graph import Graph
from longwatch.flow.nodes import Node
from longwatch.flow.standing import Cause, Standing, Terms


class Next(StrEnum):
    """What is up with a node that is computed."""

    CLOSED = auto()  # its gate is not met
    FRESH = auto()  # it has the value of its present inputs
    WAITS = auto()  # something before it is about to change
    AT_WORK = auto()  # an attempt is open
    SPENT = auto()  # its attempts are
    DUE = auto()  # an attempt is to be opened


def advance(graph: Graph, standing: Standing, lanes: Mapping[str, int]) -> None:
    """Bring an execution up to date with its values. `lanes`: where the attempts of each node
    wait in line.
    """
    if standing.cancelled:
        for attempt in list(standing.open.values()):
            standing.call_off(attempt, Cause.EXECUTION)
        return
    unsettled: set[str] = set()
    for node in graph.order:
        if _advance_node(node, standing, unsettled, lanes) and standing.is_set(node.name):
            unsettled.add(node.name)


def _advance_node(
    node: Node, standing: Standing, unsettled: set[str], lanes: Mapping[str, int]
) -> bool:
    """Whether its value may change yet."""
    inputs = inputs_of(node, standing)
    standing.forget_others(node.name, inputs)
    following = judged(node, standing, unsettled, inputs)
    attempt = standing.open.get(node.name)
    if attempt is not None and (following is Next.CLOSED or attempt.computed_with != inputs):
        standing.call_off(attempt, Cause.GATE if following is Next.CLOSED else Cause.SUPERSEDED)
    if following is Next.CLOSED:
        standing.openings.pop(node.name, None)
        standing.unset(node.name)
    elif following is Next.DUE:
        standing.begin(node.name, inputs, terms_of(node, lanes))
    return following not in {Next.CLOSED, Next.FRESH}


def judged(node: Node, standing: Standing, unsettled: set[str], inputs: str) -> Next:
    """What is up with it."""
    stored = standing.nodes.get(node.name)
    attempt, opening = standing.open.get(node.name), standing.openings.get(node.name)
    if not node.gate.met(standing):
        return Next.CLOSED
    if any(name in unsettled for name in node.upstream):
        return Next.WAITS
    if stored is not None and stored.is_set and stored.computed_with == inputs:
        return Next.FRESH
    if (attempt is not None and attempt.computed_with == inputs) or (
        opening is not None and opening.computed_with == inputs
    ):
        return Next.AT_WORK
    if stored is not None and stored.failed and stored.tried_with == inputs:
        return Next.SPENT
    return Next.DUE


def inputs_of(node: Node, standing: Standing) -> str:
    """The revisions of everything that a node depends on; names need no quoting in JSON."""
    parts = ",".join(f'"{name}":{standing.revision_of(name)}' for name in node.upstream)
    return f"{{{parts}}}"


def terms_of(node: Node, lanes: Mapping[str, int]) -> Terms:
    options = node.options
    return Terms(
        lanes[node.name],
        options.heartbeat_timeout_seconds,
        options.abandon_after_seconds,
        options.max_attempts,
    )
