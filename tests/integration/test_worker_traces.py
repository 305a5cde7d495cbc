"""A real worker process whose module configures the SDK: spans, logs, and the last spans at its
end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from longwatch.mailbox import open_mailbox, open_store
from polling import eventually

APP = """
import os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from longwatch.mailbox import open_mailbox
from longwatch.runtime import LoopGroup, MainLoop

as_line = lambda span: span.to_json(indent=None) + chr(10)
exporter = ConsoleSpanExporter(out=open("spans", "a"), formatter=as_line)
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
trace.set_tracer_provider(provider)

class Jobs(MainLoop):
    def handle(self, job, context):
        context.logger.info("at work")
        open("handled", "w").close()

group = LoopGroup([Jobs(requests=open_mailbox("sqlite:///jobs.db", "jobs"), name="jobs")])
"""
TRACE, SPAN = "a" * 32, "b" * 16


def run_worker(folder: Path, **variables: str) -> str:
    """Let a worker process handle one message, and stop it. Returns its standard error."""
    (folder / "app.py").write_text(APP)
    (folder / "spans").touch()
    with open_store(f"sqlite:///{folder}/jobs.db") as store:
        jobs = open_mailbox(store, "jobs")
        jobs.send(1, headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
        worker = subprocess.Popen(
            [sys.executable, "-m", "longwatch.workers.worker_process", "run", "app:group"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder), **variables},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert eventually(
                lambda: (folder / "handled").exists() and jobs.approximate_count() == 0
            )
            worker.send_signal(signal.SIGTERM)
            _, said = worker.communicate(timeout=60)
        finally:
            worker.kill()
            worker.wait()
    assert 0 == worker.returncode, said
    return said


def spans_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "spans").read_text().splitlines()]


def at_work(said: str) -> dict[str, Any]:
    [record] = [json.loads(line) for line in said.splitlines() if "at work" in line]
    return dict(record)


def test_its_spans_continue_the_trace_of_the_sender_and_its_log_names_them(tmp_path: Path) -> None:
    said = run_worker(tmp_path)
    [span] = spans_in(tmp_path)
    assert ("process jobs", f"0x{TRACE}", f"0x{SPAN}") == (
        span["name"],
        span["context"]["trace_id"],
        span["parent_id"],
    )
    record = at_work(said)
    assert (TRACE, span["context"]["span_id"]) == (record["trace_id"], f"0x{record['span_id']}")


def test_the_variable_switches_it_off(tmp_path: Path) -> None:
    said = run_worker(tmp_path, LONGWATCH_TRACING="off")
    assert [] == spans_in(tmp_path)
    assert "trace_id" not in at_work(said)


def test_another_value_of_the_variable_ends_the_process_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    ended = subprocess.run(
        [sys.executable, "-m", "longwatch.workers.worker_process", "run", "app:group"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "LONGWATCH_TRACING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (2, "LONGWATCH_TRACING must be on or off, not '1'\n") == (ended.returncode, ended.stderr)
