"""What expressions of Prometheus ask for, compared with the metrics that there are."""

from __future__ import annotations

import re
from collections.abc import Iterator

from longwatch.observe.metric_families import FAMILIES, MetricKind
from longwatch.observe.runner_families import CATALOGUE, DEFAULT_NAMESPACE

_SELECTOR = re.compile(r"\b(longwatch_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
TARGET_LABELS = {"job", "instance"}


def known_series() -> dict[str, set[str]]:
    """The labels of every series by its name, those of histograms with their suffixes."""
    families = {
        **FAMILIES,
        **{f"{DEFAULT_NAMESPACE}_{name}": each.family for name, each in CATALOGUE.items()},
    }
    found: dict[str, set[str]] = {}
    for name, family in families.items():
        labels = {*family.labels, *TARGET_LABELS}
        if family.kind is MetricKind.HISTOGRAM:
            found |= {f"{name}_bucket": labels | {"le"}}
            found |= {f"{name}_{part}": labels for part in ("count", "sum")}
        else:
            found[name] = labels
    return found


def unknown_parts(expression: str) -> Iterator[str]:
    """The series of an expression that do not exist, and the labels that they do not have."""
    known = known_series()
    for name, matchers in _SELECTOR.findall(expression):
        if name not in known:
            yield name
        else:
            yield from (
                f"{name}{{{label}}}"
                for label in _MATCHER.findall(matchers)
                if label not in known[name]
            )
