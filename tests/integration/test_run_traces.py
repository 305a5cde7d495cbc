"""Each agent run has a span, which the agent can continue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.trace import StatusCode

from flow_stores import opened_store
from longwatch.store.database import Database
from runner_rig import dispatching
from span_recorder import SpanRecorder, facts, recording, traceparent

SAY_TRACE = (
    "say(repr({name: os.environ.get(name) for name in ('TRACEPARENT', 'LONGWATCH_RUN_ID')}))"
)


@pytest.fixture
def spans() -> Iterator[SpanRecorder]:
    with recording() as recorder:
        yield recorder


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    with opened_store("sqlite", tmp_path) as opened:
        yield opened


def test_a_run_has_a_span_with_its_end_and_its_agent_gets_the_trace(
    sqlite: Database, tmp_path: Path, spans: SpanRecorder
) -> None:
    with dispatching(sqlite, tmp_path) as rig:
        event = rig.queue.put(SAY_TRACE)
        rig.queue.wait_outcome(event, "run")
        [run] = rig.queue.of(event)
    span = spans.one("run alpha")
    assert {
        "longwatch.source": "alpha",
        "longwatch.event.id": event,
        "longwatch.run.id": run.id,
        "longwatch.run.attempt": 1,
        "longwatch.run.status": "success",
        "longwatch.run.cause": "exit 0",
    } == facts(span)
    assert (None, StatusCode.UNSET) == (span.parent, span.status.status_code)
    assert repr({"TRACEPARENT": traceparent(span), "LONGWATCH_RUN_ID": run.id}) in (
        run.output or ""
    )


def test_a_failed_run_is_an_error(sqlite: Database, tmp_path: Path, spans: SpanRecorder) -> None:
    with dispatching(sqlite, tmp_path) as rig:
        event = rig.queue.put("say('no disk', 2); sys.exit(3)")
        rig.queue.wait_outcome(event, "dead-lettered", "failed")
    first, second = spans.named("run alpha")
    assert [1, 2] == [facts(each)["longwatch.run.attempt"] for each in (first, second)]
    assert (StatusCode.ERROR, "exit 3", "failure") == (
        first.status.status_code,
        facts(first)["error.type"],
        facts(first)["longwatch.run.status"],
    )
    assert "it last wrote: no disk" in (first.status.description or "")


def test_without_tracing_an_agent_gets_no_trace(sqlite: Database, tmp_path: Path) -> None:
    with dispatching(sqlite, tmp_path) as rig:
        event = rig.queue.put(SAY_TRACE)
        rig.queue.wait_outcome(event, "run")
        [run] = rig.queue.of(event)
    assert "'TRACEPARENT': None" in (run.output or "")
