"""`longwatch eval run` and `resume`: runs an evaluation in worker processes and shows its progress.

A sample that hangs or kills its process costs that process, not the evaluation: another process
takes its place, and after its attempts the sample is reported as failed. `resume` continues after
any interruption. Processes that end again and again before they run a sample end the evaluation.
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

from longwatch.app.console import fill_standard_streams, make_state_directory
from longwatch.app.eval_progress import progress_display
from longwatch.app.evaluation import EVAL_VARIABLE, EvalSpec, Evaluation, find_evaluation
from longwatch.app.mailboxes import has_mailboxes, masked_url, opened_store
from longwatch.app.plans import make_worker_plans
from longwatch.app.startup_checks import working_directory
from longwatch.app.up import raise_open_file_limit
from longwatch.config.programs import WorkerSettings
from longwatch.config.settings import LogSettings
from longwatch.core.backoff import BackoffPolicy
from longwatch.core.breaker import BreakerPolicy
from longwatch.core.clock import SystemClock, Wakeup
from longwatch.core.error_text import os_reason
from longwatch.core.events.base import Events
from longwatch.errors import LongwatchError, NeedsOperatorError, TryAgainError, UsageError
from longwatch.evals.dataset import Dataset
from longwatch.evals.report import EvalReport
from longwatch.host.shutdown import ShutdownCoordinator
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.program_listener import ProgramEnd, ProgramListener
from longwatch.supervisor.restart_policy import Restart, RestartPolicy
from longwatch.supervisor.supervisor import Supervisor
from longwatch.supervisor.target_factory import Streams
from longwatch.workers.parent import WorkerParent

_POLL_INTERVAL = 0.2
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_BACKOFF = BackoffPolicy(initial=0.1, factor=2.0, cap=2.0)
_BREAKER = BreakerPolicy(tolerated=1000, window=60.0, cooldown=None)
"""Samples may kill a process again and again, each as often as it has attempts."""
_RESTART = RestartPolicy(restart=Restart.ALWAYS)
"""Restart after every end: other samples are left, however one ends its process."""
_MAX_FAILED_STARTS = 5
"""Maximum number of processes in a row that end before they run a sample."""


class InterruptedEvaluationError(LongwatchError):
    """The evaluation was stopped before all samples were done."""

    exit_code = 130


def run(
    spec: EvalSpec,
    dataset: Dataset,
    *,
    state: Path,
    environ: Mapping[str, str],
    resume_command: str,
) -> EvalReport:
    """Submit the dataset and evaluate it. Returns the report, and saves it. `resume_command` is
    shown to the user.
    """
    fill_standard_streams()
    full_spec = msgspec.structs.replace(
        spec, dataset=dataset.name, digest=dataset.digest, ids=dataset.ids
    )
    with (
        opened_store(spec.store, auto_migrate=True) as store,
        closing(_EvalWorkers(full_spec, state, environ, resume_command)) as workers,
    ):
        workers.check()  # raises before anything is written
        _make_directories(state)
        evaluation = Evaluation(full_spec, store)
        evaluation.submit(dataset)
        return _finish(evaluation, workers, state)


def resume(
    run: str, *, store: str, state: Path, environ: Mapping[str, str], resume_command: str
) -> EvalReport:
    """Resume an evaluation. A finished one is only reported again."""
    fill_standard_streams()
    with opened_store(store) as opened:
        if not has_mailboxes(opened):
            raise UsageError(
                f"no evaluation was run with the store {masked_url(opened)}; start one with "
                f"`longwatch eval run`, or give --store"
            )
        evaluation = find_evaluation(opened, run, url=store)
        _make_directories(state)
        with closing(_EvalWorkers(evaluation.spec, state, environ, resume_command)) as workers:
            return _finish(evaluation, workers, state)


def _make_directories(state: Path) -> None:
    make_state_directory(state)
    (state / "evals").mkdir(mode=0o700, exist_ok=True)


def _finish(evaluation: Evaluation, workers: _EvalWorkers, state: Path) -> EvalReport:
    if left := evaluation.remaining():
        _print_status(
            f"evaluation {evaluation.spec.run}: {left} samples; if it is interrupted, resume "
            f"it with: {workers.resume_command}"
        )
        workers.run(evaluation)
    report = evaluation.report()
    base = state / "evals" / evaluation.spec.run
    report.save(base.with_suffix(".json"))
    report.save(base.with_suffix(".md"))
    return report


class _FailedStarts(ProgramListener):
    """Counts consecutive processes that ended before they ran a loop."""

    def __init__(self) -> None:
        self.count = 0

    def program_ended(self, end: ProgramEnd) -> None:  # noqa: ARG002 - every end counts
        self.count += 1

    def reset(self) -> None:
        """Reset the count: a process has begun its work. Thread-safe."""
        self.count = 0


class _EvalWorkers:
    """The worker processes of one evaluation."""

    def __init__(
        self, spec: EvalSpec, state: Path, environ: Mapping[str, str], resume_command: str
    ) -> None:
        self.resume_command = resume_command
        self._spec = spec
        self._clock = SystemClock()
        self._stop_requested = Wakeup()
        self._failed_starts = _FailedStarts()
        self._is_waiting = False
        self._plans: list[ProgramPlan] = []
        self._log_path = state / "evals" / f"{spec.run}.log"
        self._environ = environ
        self._events = Events()
        self._supervisor: Supervisor | None = None
        self._worker_parent = WorkerParent(
            state=state,
            log=LogSettings(),
            clock=self._clock,
            events=self._events,
            on_worker_active=self._failed_starts.reset,
        )

    def check(self) -> None:
        """Raise UsageError for a loop or an evaluator that cannot be used."""
        self._plans = self._plans or self._make_plans()

    def run(self, evaluation: Evaluation) -> None:
        """Run until no sample is left. Raises InterruptedEvaluationError if a stop is requested
        before.
        """
        self.check()
        with (
            _stopped_by_signals(self._stop_requested.set),
            _open_log(self._log_path) as log,
            self._worker_parent,
            self._make_supervisor(log),
        ):
            self._watch(evaluation)
        if left := evaluation.remaining():
            raise InterruptedEvaluationError(
                f"interrupted with {left} samples left; resume with: {self.resume_command}"
            )

    def _watch(self, evaluation: Evaluation) -> None:
        """Wait until no sample is left, or a stop is requested."""
        total = left = len(self._spec.ids)
        with progress_display(total) as show:
            while left := self._remaining(evaluation, left):
                show(total - left)
                self._require_workers(left)
                if self._clock.wait(self._stop_requested, _POLL_INTERVAL):
                    _print_status(
                        "stopping: running samples may finish; signal once more to kill them"
                    )
                    return
            show(total)

    def _remaining(self, evaluation: Evaluation, known: int) -> int:
        """The number of samples left. While the store does not answer, the last known number; that
        is printed once.
        """
        try:
            left = evaluation.remaining()
        except LongwatchError as error:
            if getattr(error.__cause__ or error, "exit_code", None) != TryAgainError.exit_code:
                raise
            if not self._is_waiting:
                _print_status(f"{error}; waiting for it")
            self._is_waiting = True
            return known
        self._is_waiting = False
        return left

    def close(self) -> None:
        self._worker_parent.stop()

    def _make_supervisor(self, log: int) -> Supervisor:
        streams = Streams(None, log, log)
        self._supervisor = Supervisor(
            self._plans,
            streams=lambda _: streams,
            events=self._events,
            clock=self._clock,
            on_guardian_started=raise_open_file_limit,
            subreaper=True,
        )
        self._supervisor.add_listener(self._failed_starts)  # counts an end before a reclaim resets
        self._worker_parent.attach(self._supervisor)
        return self._supervisor

    def _make_plans(self) -> list[ProgramPlan]:
        encoded = msgspec.json.encode(msgspec.structs.replace(self._spec, ids=[])).decode()
        target = "longwatch.app.evaluation:group"
        worker = WorkerSettings(
            target=target, processes=self._spec.processes, env={EVAL_VARIABLE: encoded}
        )
        here = working_directory(None)
        _, plans = make_worker_plans(
            "eval",
            worker,
            base=here,
            environ=self._environ,
            worker_environment=self._worker_parent.environment_for,
        )
        return [
            replace(plan, restart=_RESTART, backoff=_BACKOFF, breaker=_BREAKER) for plan in plans
        ]

    def _require_workers(self, left: int) -> None:
        assert self._supervisor is not None
        try:
            self._supervisor.wait(0.0)
        except TryAgainError as error:
            raise TryAgainError(f"{error}; resume with: {self.resume_command}") from error
        if self._failed_starts.count >= _MAX_FAILED_STARTS:
            raise NeedsOperatorError(
                f"worker processes end before they run a sample, and {left} samples are left; see "
                f"{self._log_path}, then: {self.resume_command}"
            )


@contextmanager
def _stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on stop signals and when the terminal is closed. Ignored signals (nohup, `&`)
    stay ignored.
    """
    signals = [signum for signum in _STOP_SIGNALS if signal.getsignal(signum) is not signal.SIG_IGN]
    coordinator = ShutdownCoordinator.install(signals=signals)
    coordinator.register(stop)
    try:
        yield
    finally:
        ShutdownCoordinator.reset()


@contextmanager
def _open_log(log: Path) -> Iterator[int]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(log, flags, 0o600)
    except OSError as error:
        raise UsageError(
            f"cannot write the log {log} ({os_reason(error)}); remove it, or give another "
            f"--state-dir"
        ) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _print_status(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - status for the user


def exit_code_for(report: EvalReport, min_pass_rate: float | None) -> int:
    """The exit code of a report: 1 if fewer samples passed than `min_pass_rate`."""
    if min_pass_rate is None or report.pass_rate >= min_pass_rate:
        return 0
    _print_status(
        f"{report.passed} of {report.samples} samples passed, less than the requested pass rate of "
        f"{min_pass_rate:g}"
    )
    return 1
