"""One evaluation, kept in a store so that another process can resume it. Its worker processes run a
group with one EvalLoop.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any

import msgspec

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.masking import mask_text
from longwatch.core.suggest import did_you_mean
from longwatch.errors import UsageError
from longwatch.evals.dataset import Dataset, submit_dataset
from longwatch.evals.eval_loop import EvalLoop
from longwatch.evals.report import EvalReport
from longwatch.evals.results import CollectedResults, peek_results
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.url import mailbox_names, open_mailbox, open_store
from longwatch.runtime.group import LoopGroup
from longwatch.runtime.main_loop import MainLoop
from longwatch.store.database import Database
from longwatch.workers.import_path import load_object, user_code_errors

_PREFIX = "eval/"
_SPEC_NAME = re.compile(rf"{_PREFIX}([^/]+)/spec")
_MAX_SPEC_BYTES = 256 << 20
"""Maximum bytes of a stored spec, which contains the ids of all samples."""

EVAL_VARIABLE = "LONGWATCH_EVAL"
"""The variable with the spec of the evaluation."""
SAMPLE_RETRY = BackoffPolicy(initial=0.5, factor=2.0, cap=10.0, jitter=0.25)


class EvalSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an evaluation. `loop` and `evaluator` are import paths, `module:name`."""

    run: str
    loop: str
    evaluator: str
    store: str = ""
    """The URL of the store. It is not stored: it may contain a password, and may differ
    next time.
    """
    concurrency: int = 8
    processes: int = 1
    attempts: int = 3
    sample_timeout: float = 600.0
    dataset: str = ""
    digest: str = ""
    ids: list[str] = []


def new_run_id() -> str:
    """Make an id for an evaluation. Ids sort by time."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"


class Evaluation:
    """Three mailboxes of one store: the spec, the samples that are not done, and the results."""

    def __init__(self, spec: EvalSpec, store: Any) -> None:
        self.spec = spec
        self._store = store
        limits = MailboxLimits(max_failures=spec.attempts, max_crashes=spec.attempts)
        self.samples: Mailbox[Any] = open_mailbox(
            store, f"{_PREFIX}{spec.run}/samples", limits=limits
        )
        self.results: Mailbox[Any] = open_mailbox(store, f"{_PREFIX}{spec.run}/results")

    def submit(self, dataset: Dataset) -> None:
        """Send every sample and then the spec; without a spec nothing is run. On SQL both are one
        transaction.
        """
        spec_mailbox = _spec_mailbox(self._store, self.spec.run)
        spec = msgspec.structs.replace(self.spec, store="")

        def both(tx: Any) -> None:
            submit_dataset(dataset, self.samples, reply_to=self.results, tx=tx)
            spec_mailbox.send(spec, tx=tx)

        if isinstance(self._store, Database):
            self._store.transact(both)
        else:
            both(None)

    def remaining(self) -> int:
        """The number of samples that have no result and were not given up."""
        stats = self.samples.stats()
        return stats.ready + stats.delayed + stats.leased

    def report(self) -> EvalReport:
        collected: CollectedResults = peek_results(
            self.results, self.samples, expected=self.spec.ids, limit=2 * len(self.spec.ids) + 1000
        )
        return EvalReport(
            run=self.spec.run,
            dataset=self.spec.dataset,
            digest=self.spec.digest,
            samples=len(self.spec.ids),
            results=collected.results,
            missing=collected.missing,
            subject=self.spec.loop,
        )


def evaluation_ids(store: Any) -> list[str]:
    """The ids of all evaluations in a store."""
    return [found[1] for name in mailbox_names(store) if (found := _SPEC_NAME.fullmatch(name))]


def find_evaluation(store: Any, run: str, *, url: str) -> Evaluation:
    """Find an evaluation in the store at this URL. Raises UsageError with the nearest id if there
    is none.
    """
    known = evaluation_ids(store)
    if run not in known:
        shown = ", ".join(sorted(known)[-5:])
        others = f"the last ones are: {shown}" if known else "`longwatch eval run` starts one"
        raise UsageError(
            f"no evaluation {run!r} in {mask_text(url)}; {did_you_mean(run, known, default=others)}"
        )
    spec_mailbox = _spec_mailbox(store, run)
    for delivery in spec_mailbox.backend.peek(limit=1):
        return Evaluation(msgspec.structs.replace(spec_mailbox.decode(delivery), store=url), store)
    raise UsageError(f"the spec of evaluation {run!r} was removed from the store; run it again")


def _spec_mailbox(store: Any, run: str) -> Mailbox[EvalSpec]:
    return open_mailbox(store, f"{_PREFIX}{run}/spec", EvalSpec, max_body_bytes=_MAX_SPEC_BYTES)


def group() -> LoopGroup:
    """Build the group for the spec in LONGWATCH_EVAL."""
    spec = msgspec.json.decode(os.environ.pop(EVAL_VARIABLE), type=EvalSpec)
    loop = _load_loop(spec.loop)
    evaluator = _load(
        spec.evaluator, "shop.checks:judge", definition="def judge(output, expected): ..."
    )
    evaluation = Evaluation(spec, open_store(spec.store))
    evals = EvalLoop(
        loop=loop,
        evaluator=evaluator,
        requests=evaluation.samples,
        name="eval",
        concurrency=spec.concurrency,
        retry=SAMPLE_RETRY,
    )
    interval = max(spec.sample_timeout / 12, 0.1)
    return LoopGroup(
        [evals],
        watchdog_threshold=spec.sample_timeout,
        watchdog_interval=interval,
        max_processing_seconds=spec.sample_timeout / 2,
    )


def _load_loop(import_path: str) -> MainLoop[Any, Any]:
    found = _load(import_path, "shop.agent:loop", definition="loop = Answers(requests=...)")
    if callable(found) and not isinstance(found, MainLoop):
        with user_code_errors(import_path):
            found = found()
    if not isinstance(found, MainLoop):
        raise UsageError(
            f"{import_path!r} is of type {type(found).__name__}; it has to be a MainLoop, or a "
            f"function that returns one"
        )
    return found


def _load(import_path: str, example: str, *, definition: str) -> Any:
    if ":" not in import_path:
        raise UsageError(
            f"{import_path!r} is no import path; write it as module:name, such as {example}"
        )
    with user_code_errors(import_path):
        return load_object(import_path, example=definition)
