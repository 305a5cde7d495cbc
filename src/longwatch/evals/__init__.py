"""Measuring a loop on a dataset: samples go in as messages, scores come out as messages, and a
report is made of them.

The way of an evaluation
    dataset → submitted, all samples or none (`dataset.py`) → EvalLoop runs the loop under test on
    each, and has its output scored (`eval_loop.py`, `evaluators.py`) → results, one a sample,
    settled in one transaction with the sample where the store can → collected,
    de-duplicated by sample, the missing named (`results.py`) → report (`report.py`)
A finished sample is a row of the results mailbox, and its message is gone: whatever is killed, it
is never run again.
"""

from __future__ import annotations

from longwatch.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
