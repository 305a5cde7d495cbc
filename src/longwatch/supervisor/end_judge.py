"""Supplies what the parent of a worker process knows about its end, for the restart decision.

A worker process reports to its parent, and its beat page survives it. So its parent knows more than
the exit code: whether the process had begun its work, whether it decided to end, and whether it can
work at all. The program asks for these facts when a process has ended, before it decides
(`restart_policy.EndFacts`) and before the listeners are called.

An error of the judge is emitted as `EndJudgeFailed`. The end is then judged without facts, by the
exit table alone.
"""

from __future__ import annotations

from typing import Protocol

from longwatch.core.error_text import describe_error
from longwatch.core.events.base import Events
from longwatch.core.events.programs import EndJudgeFailed
from longwatch.supervisor.plan import REPORTING_KINDS, ProgramPlan
from longwatch.supervisor.restart_policy import EndFacts


class EndJudge(Protocol):
    """Knows the facts about processes that report to it. Called on the supervisor's loop: must not
    block.
    """

    def end_facts(self, plan: ProgramPlan, pid: int) -> EndFacts | None:
        """Return the facts about a process of this plan that has ended; None if there are none."""


class EndJudges:
    """Holds the judge of a supervisor's workers. Without one, every end is judged by the exit
    table.
    """

    def __init__(self, events: Events) -> None:
        self.judge: EndJudge | None = None
        self._events = events

    def end_facts(self, plan: ProgramPlan, pid: int | None) -> EndFacts | None:
        """Return the facts about an end; None if there are none. Never raises."""
        if self.judge is None or pid is None or plan.kind not in REPORTING_KINDS:
            return None
        try:
            return self.judge.end_facts(plan, pid)
        except Exception as error:  # noqa: BLE001 - supervision continues without facts; the event has the error
            self._events.emit(
                EndJudgeFailed(program=plan.name, pid=pid, error=describe_error(error))
            )
            return None
