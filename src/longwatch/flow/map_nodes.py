"""Defines maps: nodes that compute each element of a list."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from longwatch.errors import GraphError
from longwatch.flow.gates import Gate, GateLike, to_gate
from longwatch.flow.node_options import MAX_COUNT, is_positive_int, validate_options
from longwatch.flow.nodes import Node, NodeKind, validate_function, validate_name

DEFAULT_MAX_IN_FLIGHT = 1000


def map(  # noqa: A001 - the public name of the API, and its options
    name: str,
    over: str,
    function: Callable[..., Any],
    after: GateLike | Iterable[GateLike] = (),
    *,
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
    **options: Any,
) -> Node:
    """Define a map: `function` computes each element of the list in node `over`, and the value is
    the list of its results, in order.

    The first parameter of the function gets the element. The others are the names of nodes in
    `after`, whose values it gets, and `context`. At most `max_in_flight` elements have open
    attempts at the same time.
    """
    node_options = validate_options(validate_name(name), options)
    if not is_positive_int(max_in_flight, maximum=MAX_COUNT):
        raise GraphError(
            f"node {name!r}: max_in_flight must be a whole number of 1 to {MAX_COUNT}, not "
            f"{max_in_flight!r}"
        )
    conditions = [after] if isinstance(after, str | Gate) else list(after)
    gate = to_gate([validate_name(over), *conditions])
    others = [each for each in gate.nodes if each != over]
    validate_function(name, function, others, node_options, takes_element=True)
    return Node(
        name,
        NodeKind.MAP,
        gate,
        function,
        node_options,
        over,
        max_in_flight,
    )
