"""`longwatch flow stats`: how far the executions of graphs get, and how long their nodes take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from longwatch.cli.flow import open_by_words, store_option
from longwatch.cli.json_views import JsonObject
from longwatch.cli.options import json_option, valid_text
from longwatch.cli.output import pluralize, print_result, table
from longwatch.core.duration import format_duration

if TYPE_CHECKING:
    from longwatch.flow.statistics import GraphStatistics, NodeStatistics

_COUNTS = ("set", "failed", "running", "waiting")
_DURATIONS = ("mean", "p50", "p95", "max")


@click.command()
@click.argument(
    "graph",
    metavar="[MODULE:FLOW] [GRAPH]",
    type=valid_text,
    nargs=-1,
    help="Import path of the flow; name of the graph. [all graphs]",
)
@store_option
@json_option
def stats(*, graph: tuple[str, ...], store: str | None, json: bool) -> None:
    """Show how far executions get and how long nodes take.

    Counts the executions of all versions of a graph. The durations are those of
    the newest 1,000 successful attempts of each node.
    """
    from longwatch.app.flows import graph_names, masked_url  # noqa: PLC0415 - help must not wait for it

    name, opening = open_by_words("stats", graph, "GRAPH", store)
    with opening as flow:
        names = graph_names(flow) if name is None else [name]
        found = [flow.statistics(each) for each in names]
        where = masked_url(flow)
    lines = [line for each in found for line in _graph_lines(each)]
    print_result(
        lines or [f"no graphs in {where}"], [_graph_json(each) for each in found], as_json=json
    )


def add_commands(app: click.Group) -> None:
    """Add the command to those of `longwatch flow`."""
    app.add_command(stats)


# --- for people ---


def _graph_lines(found: GraphStatistics) -> Iterator[str]:
    states = [f"{count} {state}" for state, count in found.executions.items() if count]
    shown = f": {', '.join(states)}" if states else ""
    yield f"graph {found.graph}, {pluralize(found.total, 'execution')}{shown}"
    head = ("node", "set", "% set", *_COUNTS[1:], "samples", *_DURATIONS)
    yield from table(head, (_row(each, found.total) for each in found.nodes))


def _row(node: NodeStatistics, total: int) -> tuple[object, ...]:
    taken = node.durations
    durations = [
        "" if taken is None else format_duration(getattr(taken, each)) for each in _DURATIONS
    ]
    return (
        node.node,
        node.set,
        node.set * 100 // total if total else None,
        *(getattr(node, each) for each in _COUNTS[1:]),
        None if taken is None else taken.count,
        *durations,
    )


# --- for machines ---


def _graph_json(found: GraphStatistics) -> JsonObject:
    return {
        "graph": found.graph,
        "executions": dict(found.executions),
        "nodes": [_node_json(each) for each in found.nodes],
    }


def _node_json(node: NodeStatistics) -> JsonObject:
    taken = node.durations
    durations = (
        None if taken is None else {each: getattr(taken, each) for each in ("count", *_DURATIONS)}
    )
    return {
        "node": node.node,
        **{each: getattr(node, each) for each in _COUNTS},
        "durations": durations,
    }
