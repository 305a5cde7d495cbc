"""An execution is one trace: its start, its changes and all of its attempts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import SpanKind, StatusCode

import isolated_nodes as functions
from engine_rig import TIMEOUT
from flow_stores import KINDS, opened_store
from longwatch.core.backoff import BackoffPolicy
from longwatch.errors import ComputationFailedError
from longwatch.flow import Flow, Graph, compute, input, map, tick_once  # noqa: A004 - the contract's words
from longwatch.flow.context import FlowContext
from longwatch.store.database import Database
from span_recorder import SpanRecorder, facts, is_child, recording, traceparent

FAST = BackoffPolicy(initial=0.001, factor=1.0, cap=0.001, jitter=0.0)


@pytest.fixture
def spans() -> Iterator[SpanRecorder]:
    with recording() as recorder:
        yield recorder


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with opened_store(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    with opened_store("sqlite", tmp_path) as opened:
        yield opened


def doubled(x: int) -> int:
    return 2 * x


def graph(*nodes: Any) -> Graph:
    return Graph("shop", version="1", nodes=[input("x"), *nodes])


def test_start_and_attempts_are_one_trace_also_in_another_process(
    database: Database, spans: SpanRecorder
) -> None:
    double = compute("double", ["x"], doubled)
    quadruple = compute("quadruple", ["double"], lambda double: 2 * double)
    with (
        Flow(database, [graph(double, quadruple)]) as starter,
        spans.tracer.start_as_current_span("caller"),
    ):
        started = starter.start("shop", x=1)
    with Flow(database, [graph(double, quadruple)]) as flow, flow.worker():
        assert 4 == flow.execution(started.id).get("quadruple", timeout=TIMEOUT)
        quadrupled = spans.one("compute shop/quadruple")
    start = spans.one("start shop")
    assert is_child(start, spans.one("caller"))
    assert is_child(spans.one("compute shop/double"), start)
    assert is_child(quadrupled, start)
    graph_facts = {"longwatch.graph": "shop", "longwatch.graph.version": "1"}
    assert {**graph_facts, "longwatch.execution.id": started.id} == facts(start)
    assert {
        **graph_facts,
        "longwatch.execution.id": started.id,
        "longwatch.node": "quadruple",
        "longwatch.attempt": 1,
        "longwatch.settlement": "done",
    } == facts(quadrupled)
    assert (SpanKind.PRODUCER, SpanKind.CONSUMER) == (start.kind, quadrupled.kind)


def test_attempts_after_a_change_continue_the_trace_of_the_change(
    sqlite: Database, spans: SpanRecorder
) -> None:
    with Flow(sqlite, [graph(compute("double", ["x"], doubled))]) as flow, flow.worker():
        execution = flow.start("shop", x=1)
        assert 2 == execution.get("double", timeout=TIMEOUT)
        first = spans.one("compute shop/double")
        with spans.tracer.start_as_current_span("caller"):
            revision = execution.set(x=5)
        assert 10 == execution.get("double", newer_than=revision, timeout=TIMEOUT)
    change = spans.one("change shop")
    assert is_child(change, spans.one("caller"))
    assert execution.id == facts(change)["longwatch.execution.id"]
    assert is_child(first, spans.one("start shop"))
    assert is_child(spans.named("compute shop/double")[1], change)


def test_a_failed_attempt_is_an_error_and_its_retry_is_in_the_trace(
    sqlite: Database, spans: SpanRecorder
) -> None:
    def fail(x: int) -> int:
        raise ValueError(f"no {x}")

    node = compute("double", ["x"], fail, retry=FAST, max_attempts=2)
    with Flow(sqlite, [graph(node)]) as flow, flow.worker():
        execution = flow.start("shop", x=1)
        with pytest.raises(ComputationFailedError):
            execution.get("double", timeout=TIMEOUT)
    attempts = spans.named("compute shop/double")
    assert all(is_child(each, spans.one("start shop")) for each in attempts)
    assert [
        (1, StatusCode.ERROR, "ValueError: no 1"),
        (2, StatusCode.ERROR, "ValueError: no 1"),
    ] == [
        (facts(each)["longwatch.attempt"], each.status.status_code, each.status.description)
        for each in attempts
    ]
    assert ["exception"] == [event.name for event in attempts[0].events]


def test_code_of_a_node_is_inside_its_span_and_may_pass_it_on(
    sqlite: Database, spans: SpanRecorder
) -> None:
    async def ask(x: int, context: FlowContext) -> dict[str, str]:
        with spans.tracer.start_as_current_span("user code"):
            return context.trace_headers

    with Flow(sqlite, [graph(compute("ask", ["x"], ask))]) as flow, flow.worker():
        headers = flow.start("shop", x=1).get("ask", timeout=TIMEOUT)
        attempt = spans.one("compute shop/ask")
    assert is_child(spans.one("user code"), attempt)
    assert {"traceparent": traceparent(attempt)} == headers


def test_a_node_in_a_process_of_its_own_continues_the_trace(
    sqlite: Database, spans: SpanRecorder
) -> None:
    node = compute("trace", ["x"], functions.current_trace, isolation="process")
    with Flow(sqlite, [graph(node)]) as flow, flow.worker():
        seen = flow.start("shop", x=1).get("trace", timeout=TIMEOUT)
        attempt = spans.one("compute shop/trace")
    expected = traceparent(attempt)
    assert {"current": expected, "variable": expected, "context": expected} == seen


def test_each_element_of_a_map_has_its_span_and_a_tick_has_none(
    sqlite: Database, spans: SpanRecorder
) -> None:
    nodes = (
        map("each", "x", doubled_element),
        tick_once("soon", ["x"], lambda x: 0),
        compute("after", ["soon"], lambda soon: "done"),
    )
    with Flow(sqlite, [graph(*nodes)]) as flow, flow.worker():
        execution = flow.start("shop", x=[1, 2])
        assert [2, 4] == execution.get("each", timeout=TIMEOUT)
        assert "done" == execution.get("after", timeout=TIMEOUT)
        spans.one("compute shop/after")
    elements = [
        facts(each).get("longwatch.map.element") for each in spans.named("compute shop/each")
    ]
    assert 2 == len(set(elements) - {None})
    assert 1 == len(spans.named("compute shop/soon")), "its time is computed, its firing is not"


def doubled_element(element: int) -> int:
    return 2 * element


def test_an_execution_of_a_caller_without_tracing_begins_a_trace_for_each_attempt(
    sqlite: Database,
) -> None:
    with Flow(sqlite, [graph(compute("double", ["x"], doubled))]) as flow:
        execution = flow.start("shop", x=1)
        with recording() as spans, flow.worker():
            assert 2 == execution.get("double", timeout=TIMEOUT)
            assert spans.one("compute shop/double").parent is None


def test_headers_that_are_damaged_in_the_store_mean_no_parent(
    sqlite: Database, spans: SpanRecorder
) -> None:
    with Flow(sqlite, [graph(compute("double", ["x"], doubled))]) as flow:
        execution = flow.start("shop", x=1)
        stored = sqlite.read(lambda tx: tx.rows("SELECT trace_context FROM longwatch_executions"))
        assert {"traceparent": traceparent(spans.one("start shop"))} == json.loads(stored[0][0])
        sqlite.write(lambda tx: tx.execute("UPDATE longwatch_executions SET trace_context = '{'"))
        with flow.worker():
            assert 2 == execution.get("double", timeout=TIMEOUT)
            assert spans.one("compute shop/double").parent is None
