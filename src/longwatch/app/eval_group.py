"""The group that a worker process of an evaluation runs: one EvalLoop over the samples."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from longwatch.app.evaluation import EvalFacts, Evaluation
from longwatch.app.target import load_object
from longwatch.core.backoff import BackoffPolicy
from longwatch.core.masking import mask_text
from longwatch.errors import LongwatchError, UsageError
from longwatch.evals.evalloop import EvalLoop
from longwatch.mailbox.opening import open_store
from longwatch.runtime.group import LoopGroup
from longwatch.runtime.mainloop import MainLoop
from longwatch.work.judging import described

FACTS = "LONGWATCH_EVAL"
"""The variable that says what to evaluate."""
RETRY = BackoffPolicy(initial=0.5, factor=2.0, cap=10.0, jitter=0.25)


def group() -> LoopGroup:
    """What LONGWATCH_EVAL asks for."""
    facts = msgspec.json.decode(os.environ.pop(FACTS), type=EvalFacts)
    loop, evaluator = _loop(facts.target), _loaded(facts.evaluator, "shop.checks:judge")
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
    found = _loaded(target, "shop.agent:loop")
    if callable(found) and not isinstance(found, MainLoop):
        with _telling(target):
            found = found()
    if not isinstance(found, MainLoop):
        raise UsageError(f"{target!r} is of type {type(found).__name__}; it has to be a MainLoop, or a function that returns one")
    return found


def _loaded(target: str, example: str) -> Any:
    if ":" not in target:
        raise UsageError(f"{target!r} names nothing; write it as module:name, such as {example}")
    with _telling(target):
        return load_object(target)


@contextmanager
def _telling(target: str) -> Iterator[None]:
    """What somebody's code raises is told by the name that was asked for, and where it was; UsageError."""
    try:
        yield
    except LongwatchError:
        raise
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = "" if frame.filename.startswith(("<", __file__)) else f" ({frame.filename}, line {frame.lineno})"
        raise UsageError(f"{target!r} cannot be used: {mask_text(' '.join(described(error).split()))}{place}") from error
