"""One evaluation that survives the night: what is remembered of it in the store, so that another
process can go on with it.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any

import msgspec

from longwatch.core.nearest import did_you_mean
from longwatch.errors import UsageError
from longwatch.evals.collecting import Collected, look_at_results
from longwatch.evals.dataset import Dataset
from longwatch.evals.report import EvalReport
from longwatch.evals.submitting import submit_dataset
from longwatch.mailbox.backend import Limits
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.opening import mailbox_names, open_mailbox
from longwatch.store.database import Database

_PREFIX = "eval/"
_FACTS = re.compile(rf"{_PREFIX}([^/]+)/facts")
_LARGEST = 256 << 20
"""Bytes of what is remembered of an evaluation: the ids of all its samples are in it."""


class EvalFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for; `target` and `evaluator` are module:name."""

    run: str
    target: str
    evaluator: str
    store: str = ""
    """Where it is now; not remembered there: the same store may have another URL tomorrow, and
    this one a password in it.
    """
    concurrency: int = 8
    processes: int = 1
    attempts: int = 3
    sample_timeout: float = 600.0
    dataset: str = ""
    digest: str = ""
    ids: list[str] = []


def new_run() -> str:
    """A name for an evaluation that sorts by time."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"


class Evaluation:
    """Three mailboxes of one store: what was asked for, the samples that are not done, and the
    results.
    """

    def __init__(self, facts: EvalFacts, store: Any) -> None:
        self.facts = facts
        self._store = store
        limits = Limits(max_failures=facts.attempts, max_crashes=facts.attempts)
        self.samples: Mailbox[Any] = open_mailbox(
            store, f"{_PREFIX}{facts.run}/samples", limits=limits
        )
        self.results: Mailbox[Any] = open_mailbox(store, f"{_PREFIX}{facts.run}/results")

    def submit(self, dataset: Dataset) -> None:
        """Send every sample, then remember what was asked for: what is not remembered is not
        run. On SQL both or nothing.
        """
        remembered = _remembered(self._store, self.facts.run)
        facts = msgspec.structs.replace(self.facts, store="")

        def both(tx: Any) -> None:
            submit_dataset(dataset, self.samples, reply_to=self.results, tx=tx)
            remembered.send(facts, tx=tx)

        if isinstance(self._store, Database):
            self._store.transact(both)
        else:
            both(None)

    def left(self) -> int:
        """How many samples have no result yet, and were not given up."""
        stats = self.samples.stats()
        return stats.ready + stats.delayed + stats.leased

    def report(self) -> EvalReport:
        collected: Collected = look_at_results(
            self.results, self.samples, expected=self.facts.ids, most=2 * len(self.facts.ids) + 1000
        )
        return EvalReport(
            run=self.facts.run,
            dataset=self.facts.dataset,
            digest=self.facts.digest,
            samples=len(self.facts.ids),
            results=collected.results,
            missing=collected.missing,
            subject=self.facts.target,
        )


def find(store: Any, run: str, *, url: str) -> Evaluation:
    """An evaluation of the store at this URL, by its name; UsageError with the nearest if there
    is none.
    """
    known = [found[1] for name in mailbox_names(store) if (found := _FACTS.fullmatch(name))]
    if run not in known:
        shown = ", ".join(sorted(known)[-5:]) or "none"
        raise UsageError(
            f"no evaluation {run!r} here; "
            f"{did_you_mean(run, known, otherwise=f'the last ones are: {shown}')}"
        )
    remembered = _remembered(store, run)
    for delivery in remembered.backend.peek(limit=1):
        return Evaluation(msgspec.structs.replace(remembered.decode(delivery), store=url), store)
    raise UsageError(
        f"what was asked for in evaluation {run!r} was removed from the store; run it again"
    )


def _remembered(store: Any, run: str) -> Mailbox[EvalFacts]:
    return open_mailbox(store, f"{_PREFIX}{run}/facts", EvalFacts, largest_body=_LARGEST)
