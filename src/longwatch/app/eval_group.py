"""The group that a worker process of an evaluation runs: one EvalLoop over the samples."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from longwatch.app.evaluation import EvalSpec, Evaluation
from longwatch.core.backoff import BackoffPolicy
from longwatch.errors import UsageError
from longwatch.evals.eval_loop import EvalLoop
from longwatch.mailbox.url import open_store
from longwatch.runtime.group import LoopGroup
from longwatch.runtime.main_loop import MainLoop
from longwatch.workers.import_path import load_object, user_code_errors

EVAL_VARIABLE = "LONGWATCH_EVAL"
"""The variable that says what to evaluate."""
SAMPLE_RETRY = BackoffPolicy(initial=0.5, factor=2.0, cap=10.0, jitter=0.25)


def group() -> LoopGroup:
    """What LONGWATCH_EVAL asks for."""
    spec = msgspec.json.decode(os.environ.pop(EVAL_VARIABLE), type=EvalSpec)
    loop, evaluator = _load_loop(spec.loop), _load(spec.evaluator, "shop.checks:judge")
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
    found = _load(import_path, "shop.agent:loop")
    if callable(found) and not isinstance(found, MainLoop):
        with user_code_errors(import_path):
            found = found()
    if not isinstance(found, MainLoop):
        raise UsageError(
            f"{import_path!r} is of type {type(found).__name__}; it has to be a MainLoop, or a "
            f"function that returns one"
        )
    return found


def _load(import_path: str, example: str) -> Any:
    if ":" not in import_path:
        raise UsageError(
            f"{import_path!r} names nothing; write it as module:name, such as {example}"
        )
    with user_code_errors(import_path):
        return load_object(import_path)
