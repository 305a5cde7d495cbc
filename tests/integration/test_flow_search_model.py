"""Searches agree with the same conditions in plain Python, whatever the values, and pages stay
whole while executions change.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flow_rig import KINDS, ManualWorker, manual_worker_for
from longwatch.flow import Graph, input, value  # noqa: A004 - the contract's word
from longwatch.flow import search as search_module

PLAIN, INDEXED = "plain", "indexed"
UNSET = object()
NUMBERS = [0, -0.0, 1, 1.0, -1, 0.1, 0.5, 2**53, 2**53 + 1, 2.0**53, 2**64 - 1, -(2**63)]
NUMBERS += [1e300, -1e300, 5e-324, -5e-324, 1.7976931348623157e308, 0.30000000000000004]
TEXTS = ["", "a", "A", "z", "Z", "é", "e\u0301", "\ud7ff", "\ue000", "\uffff", "😀", "\U0010ffff"]
TEXTS += ["\0", "\0\0", "a\0b", "\1", "\1\1", "\1\2", "\2", "%", "a%", "_", "\\", "'", '"', "\x7f"]
TEXTS += ["1", "true", "null", "[1]", " ", "a ", " a", "İ", "ß", "ss", "'; DROP TABLE x; --", "$1"]
LONG = ["x" * 197 + "\1", "x" * 198, "x" * 198 + "\0", "x" * 199, "x" * 500 + "a", "x" * 500 + "b"]
SCALARS: list[Any] = [None, True, False, *NUMBERS, *TEXTS, *LONG]
VALUES: list[Any] = [UNSET, *SCALARS, [], [1], {}, {"a": 1}]
ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "^=": str.startswith,
}
OPERANDS = st.one_of(
    st.sampled_from(SCALARS),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
)


def kind(given: Any) -> int:
    """The type of a value in JSON; 4 for a list or an object."""
    if given is None or isinstance(given, bool):
        return 0 if given is None else 1
    return 2 if isinstance(given, int | float) else 3 if isinstance(given, str) else 4


def comparable(given: Any) -> Any:
    return Decimal(repr(given)) if kind(given) == 2 else given


def is_met(given: Any, compare: str, operand: Any) -> bool:
    """The condition in plain Python."""
    if given is UNSET:
        return False
    is_equal = kind(given) == kind(operand) and comparable(given) == comparable(operand)
    if compare in {"==", "!="}:
        return is_equal is (compare == "==")
    return kind(given) == kind(operand) and ORDERS[compare](comparable(given), comparable(operand))


def condition(compare: str, operand: Any) -> Any:
    node: Any = value("n")
    if compare in {"==", "!="}:
        return node == operand if compare == "==" else node != operand
    return node.startswith(operand) if compare == "^=" else ORDERS[compare](node, operand)


def has_order(compare: str, operand: Any) -> bool:
    """Whether a search with this comparison is accepted."""
    if isinstance(operand, str):
        return len(operand) < 190
    return kind(operand) == 2 and compare != "^="


class Population:
    """Executions of two graphs with the same values; the node of one is indexed."""

    def __init__(self, worker: ManualWorker) -> None:
        self.flow = worker.flow
        worker.flow.sweep()
        self.ids = {
            graph: [
                worker.flow.start(graph, {} if each is UNSET else {"n": each}).id for each in VALUES
            ]
            for graph in (PLAIN, INDEXED)
        }

    def expected(self, graph: str, compare: str, operand: Any) -> list[str]:
        pairs = zip(self.ids[graph], VALUES, strict=True)
        return [identity for identity, each in pairs if is_met(each, compare, operand)]


def graphs() -> list[Graph]:
    return [
        Graph(name, version="1", nodes=[input("n", indexed=name == INDEXED), input("other")])
        for name in (PLAIN, INDEXED)
    ]


@pytest.fixture(scope="module", params=KINDS)
def population(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Population]:
    with manual_worker_for(request.param, tmp_path_factory.mktemp("store"), *graphs()) as worker:
        yield Population(worker)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    graph=st.sampled_from([PLAIN, INDEXED]),
    compare=st.sampled_from(["==", "!=", *ORDERS]),
    operand=OPERANDS,
    probe_size=st.sampled_from([0, 5000]),
)
def test_a_search_finds_what_the_condition_says(
    population: Population, graph: str, compare: str, operand: Any, probe_size: int
) -> None:
    if compare not in {"==", "!="} and not has_order(compare, operand):
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(search_module, "PROBE_SIZE", probe_size)
        where = condition(compare, operand)
        found = population.flow.executions(graph, where=where, sort="created", limit=1000)
    expected = population.expected(graph, compare, operand)
    assert expected == [each.id for each in found]
    assert len(expected) == population.flow.count(graph, where=where)


@pytest.mark.parametrize("graph", [PLAIN, INDEXED])
@pytest.mark.parametrize("sort", ["n", "-n"])
def test_values_have_one_order_on_all_databases(
    population: Population, graph: str, sort: str
) -> None:
    """Null, bools, numbers, then text by code points; of long texts the first 198 characters."""
    found: list[Any] = []
    after = None
    while page := population.flow.executions(graph, sort=sort, limit=7, after=after):
        found += [VALUES[population.ids[graph].index(each.id)] for each in page]
        after = page[-1].cursor
        assert len(found) <= len(SCALARS)
    keys = [(kind(each), comparable(each)) for each in found if len(str(each)) < 190]
    assert sorted(keys, reverse=sort == "-n") == keys
    assert len(SCALARS) == len(found)


@pytest.mark.parametrize("store", KINDS)
@pytest.mark.parametrize("sort", ["created", "-created", "updated", "-updated", "n", "-n"])
def test_pages_show_each_unchanged_execution_once_while_others_change(
    store: str, sort: str, tmp_path: Path
) -> None:
    """Others are started, changed and removed between two pages."""
    chance = random.Random(sort)
    with manual_worker_for(store, tmp_path, *graphs()) as worker:
        flow = worker.flow
        flow.sweep()
        made = [flow.start(INDEXED, n=chance.randrange(5)) for _ in range(40)]
        unchanged = {each.id for each in made[::2]}
        others = made[1::2]
        found: list[str] = []
        after = None
        while page := flow.executions(INDEXED, sort=sort, limit=3, after=after):
            found += [each.id for each in page]
            after = page[-1].cursor
            if others:
                flow.start(INDEXED, n=chance.randrange(5)).cancel()
                others.pop(chance.randrange(len(others))).set(n=chance.randrange(5, 9))
                others.pop(chance.randrange(len(others))).cancel()
                flow.prune(older_than=0, states=["cancelled"])
            assert len(found) < 100
    assert unchanged <= set(found)
    assert all(1 == found.count(each) for each in unchanged)
