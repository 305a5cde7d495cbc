"""A flow for tests: its nodes do what their inputs say, and note what they do. `module:flow` is
`flow_app:flow`.

The store is $STORE, else sqlite:///flow.db; what is noted is in the file `notes` of the present
directory.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from longwatch.flow import Flow, FlowContext, Graph, not_, or_, when
from longwatch.mailbox import open_mailbox
from longwatch.runtime import LoopGroup, MainLoop, MainLoopContext

graph = Graph("jobs", version="1")
for name in ("job", "draft"):
    graph.input(name)


def note(what: str, job: str, attempt: int) -> None:
    """One line, whole, as `worked.Notes` reads it."""
    file = os.open("notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, json.dumps([os.getpid(), what, job, attempt, 0, 0]).encode() + b"\n")
    os.close(file)


def is_long(pages: int) -> bool:
    return pages > 10


@graph.compute(after=["job"], max_attempts=3)
def pages(job: dict[str, Any], context: FlowContext) -> int:
    """Waits for a file if the job says so, kills its process or fails if it says so."""
    note("begin", job["id"], context.attempt)
    while "until" in job and not Path(job["until"]).exists():
        context.beat()
        time.sleep(0.01)
    if job.get("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    if "error" in job:
        raise ValueError(job["error"])
    note("end", job["id"], context.attempt)
    return int(job.get("pages", 1))


@graph.compute(after=[when("pages", is_long, text="is long"), or_("job", not_("draft"))])
def report(pages: int) -> str:
    return "x" * pages


other = Graph("other", version="2")
other.input("n")


@other.compute(after=["n"])
def double(n: int) -> int:
    return 2 * n


clock = Graph("clock", version="1")
clock.tick_recurring("hourly", every=3600)
clock.tick_once("later", delay=3600)


STORE = os.environ.get("STORE", "sqlite:///flow.db")
flow = Flow(STORE, graphs=[graph])
two = Flow(STORE, graphs=[graph, other])
ticking = Flow(STORE, graphs=[clock])
none = Flow(STORE)
number = 5


def made() -> Flow:
    return flow


class MessageLoop(MainLoop[str, None]):
    def handle(self, request: str, context: MainLoopContext) -> None:
        note("end", request, context.attempt)


group = LoopGroup(
    [
        flow.worker(name="nodes"),
        MessageLoop(requests=open_mailbox(STORE, "letters"), name="letters"),
    ]
)
both = [flow, MessageLoop(requests=open_mailbox(STORE, "letters"), name="letters")]
