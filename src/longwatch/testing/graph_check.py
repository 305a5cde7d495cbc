"""Checks that executions of a graph survive the crash of a worker at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from longwatch.flow.attempt import AttemptState
from longwatch.flow.computation import Computation
from longwatch.flow.execution import Execution
from longwatch.flow.graph import Graph
from longwatch.store.claims import Claim
from longwatch.store.database import Database
from longwatch.testing.graph_run import GraphRun, run_graph
from longwatch.testing.stepped_worker import Crash, Step

Scenario = Callable[[GraphRun], Execution]
_SPENDING_STEPS = {Step.BEGUN, Step.RENEWED, Step.COMPUTED}
"""Steps after which the death of a worker spends the attempt, if its beat page can be read."""


def check_graph(
    graph: Graph,
    scenario: Scenario,
    *,
    store: str | Database | None = None,
    steps: Iterable[str] = tuple(Step),
) -> None:
    """Raise AssertionError, which names the crash, unless an execution survives the death of its
    worker at every step of every node.

    `scenario(run)` starts an execution, works with it, and returns it: `lambda run:
    run.start(url="…")`. It runs once undisturbed, then again for each node and step that it
    reached, with the worker killed there. Each kill is tried on this machine, where other workers
    see it at once, and on another, where only the heartbeat is missing. Each run must compute all
    that the undisturbed run computed. No result may count whose claim was lost. An attempt may be
    spent only if it had begun, or if that cannot be known. The assertions of the scenario must
    hold too, so a test shows whether its functions may run twice.
    """
    with run_graph(graph, store) as run:
        expected = _run_scenario(run, scenario).values().keys()
        passed = sorted(run.steps)
    wanted = set(steps)
    for step, node in passed:
        for elsewhere in (False, True) if step in wanted else ():
            with run_graph(graph, store) as run:
                run.crash_at(step, node=node, on_other_host=elsewhere)
                late = _collect_late_results(run)
                _check(run, _run_scenario(run, scenario), set(expected), late)


def _run_scenario(run: GraphRun, scenario: Scenario) -> Execution:
    execution = scenario(run)
    run.finish()
    return execution


def _collect_late_results(run: GraphRun) -> list[bool]:
    """Make the killed workers settle their results while another worker computes the same node, or
    the same element of a map. Return for each whether the store accepted it.
    """
    counted: list[bool] = []

    def try_them(step: Step, node: str) -> None:
        begun = run.workers[-1].claimed
        assert begun is not None
        again = {(crash.node, crash.element) for crash in run.crashes}
        if step is Step.BEGUN and (node, begun.item.element) in again:
            counted.extend(run.settle_late())

    run.on_step = try_them
    return counted


def _check(run: GraphRun, execution: Execution, expected: set[str], late: list[bool]) -> None:
    [crash] = run.crashes
    where = "on another machine" if crash.on_other_host else "on this machine"
    title = f"after a crash of a worker {where} when {crash.node!r} was {crash.step}"
    attempts = execution.computations()
    missing = expected - execution.values().keys()
    assert not missing, (
        f"{title}, not computed: {', '.join(sorted(missing))}\n{execution.explain()}"
    )
    _check_claims(title, run, attempts)
    assert not any(late + run.settle_late()), f"{title}, a result that came too late was accepted"
    spent = [
        each
        for each in attempts
        if each.node == crash.node and each.state == AttemptState.ABANDONED
    ]
    assert len(spent) == _is_spent(crash), (
        f"{title}, {len(spent)} of its attempts were spent: {spent}"
    )


def _check_claims(title: str, run: GraphRun, attempts: list[Computation]) -> None:
    """Assert that the worker with the claim settled every result that counts. A map has claims only
    for its elements.
    """
    counted = {claim for worker in run.workers for claim in worker.settled_claims}
    maps = {node.name for node in run.graph.map_nodes}
    claimed = [each for each in attempts if each.node not in maps or each.element is not None]
    successes = [each for each in claimed if each.state == AttemptState.SUCCESS]
    nobodys = [
        each for each in successes if Claim(each.number, each.owner or 0, each.term) not in counted
    ]
    assert not nobodys, f"{title}, results count that no worker settled: {nobodys}"


def _is_spent(crash: Crash) -> bool:
    """Return whether the crash spends the attempt. On another machine every attempt counts as
    begun, because its beat page cannot be read. The firing of a tick is never spent.
    """
    if crash.is_firing:
        return False
    return crash.step in _SPENDING_STEPS or (crash.on_other_host and crash.step is not Step.SETTLED)
