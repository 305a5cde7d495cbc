"""One evaluation that survives the night: what is remembered of it in the store, so that another process can go on with it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from longwatch.core.nearest import did_you_mean
from longwatch.errors import UsageError
from longwatch.evals.collecting import Collected, look_at_results
from longwatch.evals.dataset import Dataset
from longwatch.evals.report import EvalReport
from longwatch.evals.submitting import submit_dataset
from longwatch.mailbox.backend import Limits
from longwatch.mailbox.letters import Stats
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.opening import mailbox_names, open_mailbox, open_store

_PREFIX = "eval/"
_LARGEST = 256 << 20
"""Bytes of what is remembered of an evaluation: the ids of all its samples are in it."""


class EvalFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for; `target` and `evaluator` are module:name."""

    run: str
    store: str
    target: str
    evaluator: str
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
    """Three mailboxes of one store: what was asked for, the samples that are not done, and the results."""

    def __init__(self, facts: EvalFacts, store: Any) -> None:
        self.facts = facts
        self._store = store
        limits = Limits(max_failures=facts.attempts, max_crashes=facts.attempts)
        self.samples: Mailbox[Any] = open_mailbox(store, f"{_PREFIX}{facts.run}/samples", limits=limits)
        self.results: Mailbox[Any] = open_mailbox(store, f"{_PREFIX}{facts.run}/results")

    def submit(self, dataset: Dataset) -> None:
        """Send every sample, and remember what was asked for: on SQL both or nothing."""
        remembered = _remembered(self._store, self.facts.run)
        transact = getattr(self._store, "transact", None)
        if transact is None:
            submit_dataset(dataset, self.samples, reply_to=self.results)
            remembered.send(self.facts)
            return

        def both(tx: Any) -> None:
            submit_dataset(dataset, self.samples, reply_to=self.results, tx=tx)
            remembered.send(self.facts, tx=tx)

        transact(both)

    def standing(self) -> Stats:
        return self.samples.stats()

    def finished(self) -> int:
        """How many samples have a result, or were given up."""
        return len(self.facts.ids) - self.left()

    def left(self) -> int:
        stats = self.standing()
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


@contextmanager
def opened(url: str) -> Iterator[Any]:
    """The store of evaluations."""
    store = open_store(url, auto_migrate=True)
    try:
        yield store
    finally:
        if (close := getattr(store, "close", None)) is not None:
            close()


def find(store: Any, run: str) -> Evaluation:
    """An evaluation by its name; UsageError with the nearest if there is none."""
    known = [name.removeprefix(_PREFIX).removesuffix("/facts") for name in mailbox_names(store) if name.endswith("/facts")]
    if run not in known:
        shown = ", ".join(sorted(known)[-5:]) or "none"
        raise UsageError(f"no evaluation {run!r} here; {did_you_mean(run, known, otherwise=f'the last ones are: {shown}')}")
    remembered = _remembered(store, run)
    [delivery] = remembered.backend.peek(limit=1)
    return Evaluation(remembered.decode(delivery), store)


def _remembered(store: Any, run: str) -> Mailbox[EvalFacts]:
    return open_mailbox(store, f"{_PREFIX}{run}/facts", EvalFacts, largest_body=_LARGEST)
