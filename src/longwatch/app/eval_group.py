"""The group that a worker process of an evaluation runs: one EvalLoop over the samples."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from longwatch.app.evaluation import EvalFacts, Evaluation
from longwatch.app.target import load_object, telling
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
    loop, evaluator = _loop(facts.target), _loaded(facts.evaluator, "shop.checks:judge")
    evaluation = Evaluation(facts, open_store(facts.store))
    evals = EvalLoop(
        loop=loop,
        evaluator=evaluator,
        requests=evaluation.samples,
        name="eval",
        concurrency=facts.concurrency,
        retry=RETRY,
    )
    interval = max(facts.sample_timeout / 12, 0.1)
    return LoopGroup(
        [evals],
        watchdog_threshold=facts.sample_timeout,
        watchdog_interval=interval,
        max_processing_seconds=facts.sample_timeout / 2,
    )


def _loop(target: str) -> MainLoop[Any, Any]:
    found = _loaded(target, "shop.agent:loop")
    if callable(found) and not isinstance(found, MainLoop):
        with telling(target):
            found = found()
    if not isinstance(found, MainLoop):
        raise UsageError(
            f"{target!r} is of type {type(found).__name__}; it has to be a MainLoop, or a "
            f"function that returns one"
        )
    return found


def _loaded(target: str, example: str) -> Any:
    if ":" not in target:
        raise UsageError(f"{target!r} names nothing; write it as module:name, such as {example}")
    with telling(target):
        return load_object(target)
