"""Kills agents that an earlier runner has left, before a new runner starts any.

A runner that dies leaves no agents: its guardian kills them. Only if the guardian died too can
processes of a run go on. Their run is open then, and its owner is certainly dead, or deleted. Such
processes are found in two ways, and killed until none is found:

    the leader     by pid and start time, which together never name another process
    the rest       by LONGWATCH_RUN_ID in their environment, wherever in the process tree they are

Runs of another boot have no processes here. Runs of owners that live, or cannot be seen from here,
are left alone.
"""

from __future__ import annotations

from longwatch.core.events.base import Events
from longwatch.core.events.runner import AgentSurvivorsKilled
from longwatch.host.guardian.proctable import ProcTable
from longwatch.host.guardian.tree import kill_marked
from longwatch.runner.run_store import OpenRun, RunStore

RUN_VARIABLE = "LONGWATCH_RUN_ID"


def end_survivors(store: RunStore, events: Events) -> int:
    """Kill the processes of runs whose runner is dead, and end these runs as `lease_lost`, or as
    `cancelled` if that was requested. Return how many runs. Blocks on the store, and up to some
    seconds on processes that do not die.
    """
    lost = [run for run in store.open_runs() if _has_dead_owner(run)]
    table = ProcTable()
    for run in lost:
        _kill(run, table, events)
        store.end_lost(run.id)
    return len(lost)


def _has_dead_owner(run: OpenRun) -> bool:
    return run.incarnation is None or run.incarnation.is_dead()


def _kill(run: OpenRun, table: ProcTable, events: Events) -> None:
    leaders = []
    if run.pid is not None and run.pid_start and table.start_time(run.pid) == run.pid_start:
        leaders.append((run.pid, run.pid_start))
    if kill_marked([run.id], leaders=leaders, variable=RUN_VARIABLE) or leaders:
        events.emit(AgentSurvivorsKilled(run_id=run.id, cluster=run.source, pid=run.pid or 0))
