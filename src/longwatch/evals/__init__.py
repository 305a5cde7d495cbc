"""Measuring a loop on a dataset: samples go in as messages, scores come out as messages, and a
report is made of them.

The way of an evaluation
    dataset (`dataset.py`) → submitted, all samples or none (`submitting.py`) → EvalLoop runs the
    loop under test on each, and has its output scored (`evalloop.py`, `scoring.py`) → results, one
    a sample, settled in one transaction with the sample where the store can → collected,
    de-duplicated by sample, the missing named (`collecting.py`) → report (`report.py`,
    `comparing.py`)
A finished sample is a row of the results mailbox, and its message is gone: whatever is killed, it
is never run again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from longwatch.lazy import lazy_names

if TYPE_CHECKING:
    from longwatch.evals.collecting import Collected as Collected
    from longwatch.evals.collecting import collect_results as collect_results
    from longwatch.evals.comparing import Comparison as Comparison
    from longwatch.evals.dataset import Dataset as Dataset
    from longwatch.evals.dataset import Sample as Sample
    from longwatch.evals.evalloop import EvalLoop as EvalLoop
    from longwatch.evals.report import EvalReport as EvalReport
    from longwatch.evals.results import EvalResult as EvalResult
    from longwatch.evals.scoring import Score as Score
    from longwatch.evals.scoring import all_of as all_of
    from longwatch.evals.scoring import any_of as any_of
    from longwatch.evals.scoring import contains as contains
    from longwatch.evals.scoring import exact_match as exact_match
    from longwatch.evals.submitting import submit_dataset as submit_dataset

_HOMES = {
    "Collected": "longwatch.evals.collecting",
    "Comparison": "longwatch.evals.comparing",
    "Dataset": "longwatch.evals.dataset",
    "EvalLoop": "longwatch.evals.evalloop",
    "EvalReport": "longwatch.evals.report",
    "EvalResult": "longwatch.evals.results",
    "Sample": "longwatch.evals.dataset",
    "Score": "longwatch.evals.scoring",
    "all_of": "longwatch.evals.scoring",
    "any_of": "longwatch.evals.scoring",
    "collect_results": "longwatch.evals.collecting",
    "contains": "longwatch.evals.scoring",
    "exact_match": "longwatch.evals.scoring",
    "submit_dataset": "longwatch.evals.submitting",
}

__all__ = [
    "Collected",
    "Comparison",
    "Dataset",
    "EvalLoop",
    "EvalReport",
    "EvalResult",
    "Sample",
    "Score",
    "all_of",
    "any_of",
    "collect_results",
    "contains",
    "exact_match",
    "submit_dataset",
]

if not TYPE_CHECKING:  # or a checker would take every misspelt name for one of these
    __getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
