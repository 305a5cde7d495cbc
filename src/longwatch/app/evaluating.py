"""`longwatch eval run` and `resume`: an evaluation in worker processes, with a bar that shows how far it is.

Samples that hang or kill their process cost that process, not the evaluation: another takes its place, and after its attempts the
sample is reported as what it is. Whatever is killed here, `resume` goes on with what is left.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from longwatch.app.command import working_directory
from longwatch.app.console import fill_standard_streams, make_state_directory
from longwatch.app.eval_group import FACTS
from longwatch.app.evaluation import EvalFacts, Evaluation, find, opened
from longwatch.app.progress import shown_progress
from longwatch.app.up import allow_many_files
from longwatch.app.worker_plans import worker_plans
from longwatch.app.workers import Workers
from longwatch.config.programs import WorkerSettings
from longwatch.config.settings import LogSettings
from longwatch.core.backoff import BackoffPolicy
from longwatch.core.breaker import BreakerPolicy
from longwatch.core.clock import SystemClock, Wakeup
from longwatch.core.events import Event, Events, ProgramEnded, ProgramStarted
from longwatch.errors import LongwatchError, NeedsPersonError
from longwatch.evals.dataset import Dataset
from longwatch.evals.report import EvalReport
from longwatch.host.shutdown import ShutdownCoordinator
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.program import Streams
from longwatch.supervisor.supervisor import Supervisor

_LOOK = 0.2
_BACKOFF = BackoffPolicy(initial=0.1, factor=2.0, cap=2.0)
_BREAKER = BreakerPolicy(tolerated=1000, window=60.0, cooldown=None)
"""Samples may kill a process again and again; each does so only as often as it has attempts."""


class InterruptedEvaluationError(LongwatchError):
    """It was told to stop before all samples were done."""

    exit_code = 130


def run(facts: EvalFacts, dataset: Dataset, *, state: Path, environ: Mapping[str, str]) -> EvalReport:
    """Submit the dataset and evaluate it; the report, which is saved too."""
    whole = msgspec.structs.replace(facts, dataset=dataset.name, digest=dataset.digest, ids=dataset.ids)
    _prepare(state)
    with opened(facts.store) as store, ExitStack() as undo:
        evaluation = Evaluation(whole, store)
        working = _Working(whole, state, environ)
        undo.callback(working.close)
        working.look()  # what cannot be imported is told before anything is written
        evaluation.submit(dataset)
        return _finish(evaluation, working, state)


def resume(run: str, *, store: str, state: Path, environ: Mapping[str, str]) -> EvalReport:
    """Go on with an evaluation; one that is done is only reported."""
    _prepare(state)
    with opened(store) as there, ExitStack() as undo:
        evaluation = find(there, run)
        working = _Working(evaluation.facts, state, environ)
        undo.callback(working.close)
        return _finish(evaluation, working, state)


def _prepare(state: Path) -> None:
    fill_standard_streams()
    make_state_directory(state)
    (state / "evals").mkdir(mode=0o700, exist_ok=True)


def _finish(evaluation: Evaluation, working: _Working, state: Path) -> EvalReport:
    if evaluation.left():
        working.work(evaluation)
    report = evaluation.report()
    base = state / "evals" / evaluation.facts.run
    report.save(base.with_suffix(".json"))
    report.save(base.with_suffix(".md"))
    return report


class _Working:
    """The worker processes of one evaluation."""

    def __init__(self, facts: EvalFacts, state: Path, environ: Mapping[str, str]) -> None:
        self._facts = facts
        self._clock = SystemClock()
        self._over = Wakeup()
        self._living: set[str] = set()
        self._log = os.open(state / "evals" / f"{facts.run}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._log_path = state / "evals" / f"{facts.run}.log"
        self._environ = environ
        self._events = Events(self._count)
        self._supervisor: Supervisor | None = None
        self._workers = Workers(condemn=self._condemn, state=state, log=LogSettings(), clock=self._clock, events=self._events)

    def look(self) -> None:
        """UsageError for a loop or an evaluator that cannot be used."""
        self._planned()

    def work(self, evaluation: Evaluation) -> None:
        """Until nothing is left; InterruptedEvaluationError if we are told to stop before."""
        streams, plans = Streams(None, self._log, self._log), self._planned()
        self._living = {plan.name for plan in plans}
        self._supervisor = Supervisor(
            plans, streams=lambda _: streams, events=self._events, clock=self._clock, guarded=allow_many_files, adopt=True
        )
        with _stopped_by_signals(self._over.set), self._workers, self._supervisor, shown_progress(self._total) as show:
            while left := evaluation.left():
                show(self._total - left)
                self._require_workers(left)
                if self._clock.wait(self._over, _LOOK):
                    raise InterruptedEvaluationError(
                        f"interrupted with {left} samples left; go on: longwatch eval resume {self._facts.run}"
                    )
            show(self._total)

    def close(self) -> None:
        self._workers.stop()
        os.close(self._log)

    @property
    def _total(self) -> int:
        return len(self._facts.ids)

    def _planned(self) -> list[ProgramPlan]:
        asked = msgspec.json.encode(msgspec.structs.replace(self._facts, ids=[])).decode()
        target = "longwatch.app.eval_group:group"
        worker = WorkerSettings(target=target, processes=self._facts.processes, env={FACTS: asked})
        here = working_directory(None)
        _, plans = worker_plans("eval", worker, base=here, environ=self._environ, told=self._workers.told)
        return [replace(plan, backoff=_BACKOFF, breaker=_BREAKER) for plan in plans]

    def _condemn(self, pid: int, reason: str) -> None:
        if self._supervisor is not None:
            self._supervisor.condemn(pid, reason)

    def _count(self, event: Event) -> None:
        if isinstance(event, ProgramStarted):
            self._living.add(event.program)
        elif isinstance(event, ProgramEnded) and not event.restart:
            self._living.discard(event.program)

    def _require_workers(self, left: int) -> None:
        if not self._living:
            go_on = f"longwatch eval resume {self._facts.run}"
            raise NeedsPersonError(f"no worker process is left, and {left} samples are; see {self._log_path}, then: {go_on}")


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    coordinator = ShutdownCoordinator.install()
    coordinator.register(stop)
    try:
        yield
    finally:
        ShutdownCoordinator.reset()


def exit_code(report: EvalReport, min_pass_rate: float | None) -> int:
    """1 if it is not good enough."""
    if min_pass_rate is None or report.pass_rate >= min_pass_rate:
        return 0
    print(f"the pass rate is {report.pass_rate:.1%}, less than {min_pass_rate:.1%}", file=sys.stderr)  # noqa: T201 - to whoever asked
    return 1
