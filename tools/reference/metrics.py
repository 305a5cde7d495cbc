"""docs/reference/metrics.md: a table for each group of metrics, from their definitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from longwatch.observe.metric_families import (
    FLOW_FAMILIES,
    LOOP_FAMILIES,
    MAILBOX_FAMILIES,
    PROGRAM_FAMILIES,
    UP_FAMILIES,
    GaugeMerge,
    MetricFamily,
    MetricKind,
)
from longwatch.observe.runner_families import CATALOGUE, DEFAULT_NAMESPACE
from reference.parts import Part, ReferencePage, cell, table

HEADER = ("metric", "kind", "labels", "processes", "meaning", "absent")
_MERGES = {
    GaugeMerge.SUM: "sum",
    GaugeMerge.MAX: "the largest",
    GaugeMerge.LAST: "the last",
}


def parts() -> Mapping[str, Part]:
    groups: dict[str, Iterable[MetricFamily]] = {
        "loops": LOOP_FAMILIES,
        "mailboxes": MAILBOX_FAMILIES,
        "graphs": FLOW_FAMILIES,
        "programs": PROGRAM_FAMILIES,
        "longwatch up": UP_FAMILIES,
        "the runner": _runner(),
    }
    return {
        f"metrics of {name}": Part(table(HEADER, [row(each) for each in families]))
        for name, families in groups.items()
    }


def _runner() -> Iterator[MetricFamily]:
    """The metrics of the runner under the default namespace."""
    for each in CATALOGUE.values():
        yield replace(each.family, name=f"{DEFAULT_NAMESPACE}_{each.family.name}")


def row(family: MetricFamily) -> tuple[str, ...]:
    meaning = " ".join(part for part in (family.help, family.note, _buckets(family)) if part)
    return (
        f"`{family.name}`",
        family.kind.value,
        ", ".join(family.labels),
        _merge(family),
        cell(meaning),
        family.absent,
    )


def _merge(family: MetricFamily) -> str:
    if family.name.startswith(f"{DEFAULT_NAMESPACE}_"):
        return ""  # there is one runner, hence nothing to merge
    return "sum" if family.kind is not MetricKind.GAUGE else _MERGES[family.merge]


def _buckets(family: MetricFamily) -> str:
    bounds = ", ".join(f"{bound:g}" for bound in family.buckets)
    return f"Buckets: {bounds}." if bounds else ""


PAGE = ReferencePage("metrics.md", parts)
