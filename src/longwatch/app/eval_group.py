"""The group that a worker process of an evaluation runs: one EvalLoop over the samples."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec

from longwatch.app.evaluation import EvalFacts, Evaluation
from longwatch.app.target import load_object
from longwatch.core.backoff import BackoffPolicy
from longwatch.errors import UsageError
from longwatch.evals.evalloop import EvalLoop
from longwatch.mailbox.opening import open_store
from longwatch.runtime.group import LoopGroup
from longwatch.runtime.mainloop import MainLoop

FACTS = "LONGWATCH_EVAL"
"""The variable that says what to evaluate."""
RETRY = BackoffPolicy(initial=0.5, factor=2.0, cap=10.0, jitter=0.25)


def group() -> LoopGroup:
    """What LONGWATCH_EVAL asks for."""
    facts = msgspec.json.decode(os.environ.pop(FACTS), type=EvalFacts)
    loop = _loop(facts.target)
    evaluator: Callable[..., Any] = load_object(facts.evaluator)
    evaluation = Evaluation(facts, open_store(facts.store))
    evals = EvalLoop(
        loop=loop, evaluator=evaluator, requests=evaluation.samples, name="eval", concurrency=facts.concurrency, retry=RETRY
    )
    interval = max(facts.sample_timeout / 12, 0.1)
    return LoopGroup(
        [evals],
        watchdog_threshold=facts.sample_timeout,
        watchdog_interval=interval,
        max_processing_seconds=facts.sample_timeout / 2,
    )


def _loop(target: str) -> MainLoop[Any, Any]:
    found = load_object(target)
    if callable(found) and not isinstance(found, MainLoop):
        found = found()
    if not isinstance(found, MainLoop):
        raise UsageError(f"{target!r} is of type {type(found).__name__}; it has to be a MainLoop, or a function that returns one")
    return found
