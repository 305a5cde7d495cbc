"""Measures a loop on a dataset. Samples and results are messages of two mailboxes.

The steps of an evaluation
    `dataset.py`     sends all samples of a dataset, or none
    `eval_loop.py`   runs the loop under test on each sample, and scores its output with an
                     evaluator (`evaluators.py`)
    `results.py`     collects one result per sample, and names the samples without one
    `report.py`      computes the report, and compares two of them
On a SQL store the result of a sample is stored in one transaction with the end of its message. So a
finished sample is never run again, whatever is killed.
"""

from __future__ import annotations

from longwatch.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
