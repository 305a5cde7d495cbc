"""Events become logs and metrics (and, later, pages); nothing else logs or counts a state
change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from longwatch.lazy import lazy_names

if TYPE_CHECKING:
    from longwatch.observe.logs import JsonFormatter as JsonFormatter
    from longwatch.observe.logs import PrettyFormatter as PrettyFormatter
    from longwatch.observe.metrics import Metrics as Metrics

_HOMES = {
    "JsonFormatter": "longwatch.observe.logs",
    "Metrics": "longwatch.observe.metrics",
    "PrettyFormatter": "longwatch.observe.logs",
}

__all__ = [
    "JsonFormatter",
    "Metrics",
    "PrettyFormatter",
]

if not TYPE_CHECKING:  # or a checker would take every misspelt name for one of these
    __getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
