"""One function that tries what a crash at every step does to a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from longwatch.flow.execution import Computation, Execution
from longwatch.flow.execution_state import AttemptState
from longwatch.flow.graph import Graph
from longwatch.store.claims import Claim
from longwatch.store.database import Database
from longwatch.testing.graph_run import GraphRun, run_graph
from longwatch.testing.stepped_worker import Crash, Step

Scenario = Callable[[GraphRun], Execution]
_SPENDING_STEPS = {Step.BEGUN, Step.RENEWED, Step.COMPUTED}
"""Steps after which the end of a worker is held against the attempt, where its beat page can be
read.
"""


def check_graph(
    graph: Graph,
    scenario: Scenario,
    *,
    store: str | Database | None = None,
    steps: Iterable[str] = tuple(Step),
) -> None:
    """Raise AssertionError, which names the crash, unless an execution survives the end of its
    worker at every step of every node.

    `scenario(run)` starts an execution, does with it what it likes, and returns it: `lambda run:
    run.start(url="…")`. It is played once undisturbed, then once for each node and step that it
    came to, with the worker killed there: on this machine, where others see that at once, and on
    another, where only its heartbeat is missing. Each time everything that was computed undisturbed
    has to be there in the end; no result may have counted whose claim was lost; an attempt may have
    been spent only if it had begun, or nobody could tell. What the scenario asserts has to hold as
    well: so a test sees whether its functions bear being run twice.
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
    """Have the dead settle what they would have while another has begun the same; for each
    whether it has counted.
    """
    counted: list[bool] = []

    def try_them(step: Step, node: str) -> None:
        if step is Step.BEGUN and node in {crash.node for crash in run.crashes}:
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
    assert not any(late + run.settle_late()), f"{title}, a result that came too late was taken"
    spent = [
        each
        for each in attempts
        if each.node == crash.node and each.state == AttemptState.ABANDONED
    ]
    assert len(spent) == _is_spent(crash), (
        f"{title}, {len(spent)} of its attempts were spent: {spent}"
    )


def _check_claims(title: str, run: GraphRun, attempts: list[Computation]) -> None:
    """What counts was settled by who had the claim."""
    counted = {claim for worker in run.workers for claim in worker.settled_claims}
    successes = [each for each in attempts if each.state == AttemptState.SUCCESS]
    nobodys = [
        each for each in successes if Claim(each.number, each.owner or 0, each.term) not in counted
    ]
    assert not nobodys, f"{title}, results count that nobody settled: {nobodys}"


def _is_spent(crash: Crash) -> bool:
    """Of a machine that is gone nobody knows what had begun there: it counts as begun."""
    return crash.step in _SPENDING_STEPS or (crash.on_other_host and crash.step is not Step.SETTLED)
