"""`longwatch eval run` and `resume`: an evaluation in worker processes, with a bar that shows how
far it is.

Samples that hang or kill their process cost that process, not the evaluation: another takes its
place, and after its attempts the sample is reported as what it is. Whatever is killed here,
`resume` goes on with what is left.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from longwatch.app.command import working_directory
from longwatch.app.console import fill_standard_streams, make_state_directory
from longwatch.app.eval_group import FACTS
from longwatch.app.evaluation import EvalFacts, Evaluation, find
from longwatch.app.mailboxes import existing_store, opened_store
from longwatch.app.progress import shown_progress
from longwatch.app.up import allow_many_files
from longwatch.app.worker_plans import worker_plans
from longwatch.app.workers import Workers
from longwatch.config.programs import WorkerSettings
from longwatch.config.settings import LogSettings
from longwatch.core.backoff import BackoffPolicy
from longwatch.core.breaker import BreakerPolicy
from longwatch.core.clock import SystemClock, Wakeup
from longwatch.core.events import Event, Events, ProgramEnded, WorkerJoined, WorkerReleased
from longwatch.errors import LongwatchError, NeedsPersonError, TryAgainError
from longwatch.evals.dataset import Dataset
from longwatch.evals.report import EvalReport
from longwatch.host.shutdown import ShutdownCoordinator
from longwatch.supervisor.decision import Restart, RestartPolicy
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.program import Streams
from longwatch.supervisor.supervisor import Supervisor

_LOOK = 0.2
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_BACKOFF = BackoffPolicy(initial=0.1, factor=2.0, cap=2.0)
_BREAKER = BreakerPolicy(tolerated=1000, window=60.0, cooldown=None)
"""Samples may kill a process again and again; each does so only as often as it has attempts."""
_RESTART = RestartPolicy(restart=Restart.ALWAYS)
"""However a sample ends its process: the others are not done yet."""
_MOST_IN_VAIN = 5
"""Processes in a row that may end without having come to a sample."""


class InterruptedEvaluationError(LongwatchError):
    """It was told to stop before all samples were done."""

    exit_code = 130


def run(
    facts: EvalFacts, dataset: Dataset, *, state: Path, environ: Mapping[str, str], go_on: str
) -> EvalReport:
    """Submit the dataset and evaluate it; the report, which is saved too. `go_on` is the command
    that resumes it.
    """
    fill_standard_streams()
    whole = msgspec.structs.replace(
        facts, dataset=dataset.name, digest=dataset.digest, ids=dataset.ids
    )
    with (
        opened_store(facts.store, auto_migrate=True) as store,
        closing(_Working(whole, state, environ, go_on)) as working,
    ):
        working.look()  # what cannot be used is told before anything is written
        _make_places(state)
        evaluation = Evaluation(whole, store)
        evaluation.submit(dataset)
        return _finish(evaluation, working, state)


def resume(
    run: str, *, store: str, state: Path, environ: Mapping[str, str], go_on: str
) -> EvalReport:
    """Go on with an evaluation; one that is done is only reported."""
    fill_standard_streams()
    with existing_store(store) as there:
        evaluation = find(there, run, url=store)
        _make_places(state)
        with closing(_Working(evaluation.facts, state, environ, go_on)) as working:
            return _finish(evaluation, working, state)


def _make_places(state: Path) -> None:
    make_state_directory(state)
    (state / "evals").mkdir(mode=0o700, exist_ok=True)


def _finish(evaluation: Evaluation, working: _Working, state: Path) -> EvalReport:
    if left := evaluation.left():
        _say(
            f"evaluation {evaluation.facts.run}: {left} samples; if it is cut short, go on: "
            f"{working.go_on}"
        )
        working.work(evaluation)
    report = evaluation.report()
    base = state / "evals" / evaluation.facts.run
    report.save(base.with_suffix(".json"))
    report.save(base.with_suffix(".md"))
    return report


class _Working:
    """The worker processes of one evaluation."""

    def __init__(
        self, facts: EvalFacts, state: Path, environ: Mapping[str, str], go_on: str
    ) -> None:
        self.go_on = go_on
        self._facts = facts
        self._clock = SystemClock()
        self._over = Wakeup()
        self._in_vain = 0
        self._waiting = False
        self._plans: list[ProgramPlan] = []
        self._log_path = state / "evals" / f"{facts.run}.log"
        self._environ = environ
        self._events = Events(self._count)
        self._supervisor: Supervisor | None = None
        self._workers = Workers(
            state=state, log=LogSettings(), clock=self._clock, events=self._events
        )

    def look(self) -> None:
        """UsageError for a loop or an evaluator that cannot be used."""
        self._plans = self._plans or self._planned()

    def work(self, evaluation: Evaluation) -> None:
        """Until nothing is left; InterruptedEvaluationError if we are told to stop before."""
        self.look()
        with (
            _stopped_by_signals(self._over.set),
            _opened(self._log_path) as log,
            self._workers,
            self._supervised(log),
        ):
            self._watch(evaluation)
        if left := evaluation.left():
            raise InterruptedEvaluationError(
                f"interrupted with {left} samples left; go on: {self.go_on}"
            )

    def _watch(self, evaluation: Evaluation) -> None:
        """Until nothing is left, or we are told to stop."""
        total = left = len(self._facts.ids)
        with shown_progress(total) as show:
            while left := self._left(evaluation, left):
                show(total - left)
                self._require_workers(left)
                if self._clock.wait(self._over, _LOOK):
                    _say(
                        "stopping: the samples at work may finish; to end them too, say it "
                        "once more"
                    )
                    return
            show(total)

    def _left(self, evaluation: Evaluation, known: int) -> int:
        """How many are left. While the store cannot be asked, which is told once: as many as
        before.
        """
        try:
            left = evaluation.left()
        except LongwatchError as error:
            if getattr(error.__cause__ or error, "exit_code", None) != TryAgainError.exit_code:
                raise
            if not self._waiting:
                _say(f"{error}; waiting for it")
            self._waiting = True
            return known
        self._waiting = False
        return left

    def close(self) -> None:
        self._workers.stop()

    def _supervised(self, log: int) -> Supervisor:
        streams = Streams(None, log, log)
        self._supervisor = self._workers.supervisor = Supervisor(
            self._plans,
            streams=lambda _: streams,
            events=self._events,
            clock=self._clock,
            guarded=allow_many_files,
            adopt=True,
        )
        return self._supervisor

    def _planned(self) -> list[ProgramPlan]:
        asked = msgspec.json.encode(msgspec.structs.replace(self._facts, ids=[])).decode()
        target = "longwatch.app.eval_group:group"
        worker = WorkerSettings(target=target, processes=self._facts.processes, env={FACTS: asked})
        here = working_directory(None)
        _, plans = worker_plans(
            "eval", worker, base=here, environ=self._environ, told=self._workers.told
        )
        return [
            replace(plan, restart=_RESTART, backoff=_BACKOFF, breaker=_BREAKER) for plan in plans
        ]

    def _count(self, event: Event) -> None:
        """Ends of processes that never came to a sample."""
        if isinstance(event, WorkerJoined | WorkerReleased):
            self._in_vain = 0
        elif isinstance(event, ProgramEnded):
            self._in_vain += 1

    def _require_workers(self, left: int) -> None:
        assert self._supervisor is not None
        try:
            self._supervisor.wait(0.0)
        except TryAgainError as error:
            raise TryAgainError(f"{error}; go on: {self.go_on}") from error
        if self._in_vain >= _MOST_IN_VAIN:
            raise NeedsPersonError(
                f"worker processes end before they come to a sample, and {left} are left; see "
                f"{self._log_path}, then: {self.go_on}"
            )


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Also when the terminal is closed; what was ignored (nohup, `&`) stays ignored."""
    heard = [signum for signum in _STOPPING if signal.getsignal(signum) is not signal.SIG_IGN]
    coordinator = ShutdownCoordinator.install(signals=heard)
    coordinator.register(stop)
    try:
        yield
    finally:
        ShutdownCoordinator.reset()


@contextmanager
def _opened(log: Path) -> Iterator[int]:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - to whoever waits


def exit_code(report: EvalReport, min_pass_rate: float | None) -> int:
    """1 if it is not good enough."""
    if min_pass_rate is None or report.pass_rate >= min_pass_rate:
        return 0
    _say(
        f"{report.passed} of {report.samples} samples passed, less than the pass rate of "
        f"{min_pass_rate:g} that was asked for"
    )
    return 1
