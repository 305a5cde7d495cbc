"""An agent proposes an action and acts only after a person has approved it.

While it waits, the execution is a few rows in the store: no slot, no lease, no thread. `python
approval.py` lets three days pass on a fake clock.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from contextlib import chdir
from pathlib import Path
from typing import Any

from longwatch.flow import Execution, Flow, FlowContext, Graph, not_, when
from longwatch.testing import run_graph

DAY = 86_400.0
Action = dict[str, Any]


YES = when("approved", lambda answer: answer is True, text="yes")
NO = when("approved", lambda answer: answer is False, text="no")

graph = Graph("approval", version="1")
graph.input("request")
graph.input("approved")


@graph.compute(after=["request"])
def proposal(request: str) -> Action:
    """Ask the agent. An approval is of one request: start another execution for the next."""
    return {"action": "refund", "order": request.rsplit(maxsplit=1)[-1], "amount": 120}


graph.tick_recurring("each_day", after=["proposal", not_("approved")], every=DAY)
graph.tick_once("three_days_later", after=["proposal", not_("approved")], delay=3 * DAY)


@graph.compute(after=["proposal", "each_day"])
def reminder(proposal: Action, each_day: float, context: FlowContext) -> str:
    return write(f"{context.execution}-reminder-{each_day:.0f}", to="team", about=proposal)


@graph.compute(after=["proposal", "three_days_later"])
def escalation(proposal: Action, context: FlowContext) -> str:
    return write(f"{context.execution}-escalation", to="manager", about=proposal)


@graph.compute(after=["proposal", YES])
def act(proposal: Action, context: FlowContext) -> str:
    """A node may run twice, so an effect has a key: pass one to your payment service, too."""
    return write(f"{context.execution}-refund", to="payments", about=proposal)


@graph.compute(after=["proposal", NO])
def stopped(proposal: Action) -> str:
    return f"no {proposal['action']} for order {proposal['order']}"


flow = Flow("sqlite:///approval.db", graphs=[graph])


# --- effects, one file for each key ---


def write(key: str, *, to: str, about: Action) -> str:
    """Write a letter. A repetition writes the same file again."""
    folder = Path("letters")
    folder.mkdir(exist_ok=True)
    (folder / f"{key}.json").write_text(json.dumps({"to": to, **about}), encoding="utf-8")
    return f"{to} has the letter about order {about['order']}"


def letters() -> dict[str, int]:
    files = Path("letters").iterdir()
    found = Counter(json.loads(file.read_text(encoding="utf-8"))["to"] for file in files)
    return dict(sorted(found.items()))


# --- three days in a second ---


def running(*executions: Execution) -> int:
    attempts = [attempt for execution in executions for attempt in execution.computations()]
    return sum(attempt.state == "computing" for attempt in attempts)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, chdir(folder), run_graph(graph) as run:
        first = run.start(request="please refund order 17")
        second = run.start(request="please refund order 18")
        run.run_ready()
        print(f"proposed: {first.get('proposal', wait=False)}\n\n{first.explain()}\n")

        run.advance(3 * DAY + 60)
        print(f"after three days: {running(first, second)} attempts run")
        print(f"letters: {letters()}")

        first.set(approved=True)
        second.set(approved=False)
        run.finish()
        print(f"approved: {first.get('act', wait=False)}")
        print(f"refused: {second.get('stopped', wait=False)}")
        print(f"letters: {letters()}; the agent was asked {run.runs['proposal']} times")


if __name__ == "__main__":
    main()
