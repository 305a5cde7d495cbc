"""The page about metrics names every metric that a worker or a supervisor may serve."""

from __future__ import annotations

import re

from longwatch.flow.attempt import AttemptEndCause, AttemptState
from longwatch.observe.metric_families import FAMILIES
from markdown_files import ROOT

TEXT = (ROOT / "docs" / "how-to" / "metrics.md").read_text(encoding="utf-8")
MERGED = {"sum": "sum", "max": "the largest", "last": ""}


def documented() -> dict[str, list[str]]:
    """The cells of each metric. `_more` in the first cell replaces the last word of the first name
    there.
    """
    found = {}
    for line in TEXT.splitlines():
        if line.startswith("| `longwatch_") and line.count("|") == 6:
            names, *cells = [cell.strip() for cell in line[1:-1].split("|")]
            first, *others = re.findall(r"`(\w+)`", names)
            for name in (first, *(first.rpartition("_")[0] + other for other in others)):
                found[name] = cells
    return found


def test_every_metric_is_there_with_its_kind_and_labels_and_no_other() -> None:
    assert {
        name: [family.kind.value, ", ".join(family.labels)] for name, family in FAMILIES.items()
    } == {name: cells[:2] for name, cells in documented().items()}


def test_gauges_of_graphs_say_how_those_of_several_processes_merge() -> None:
    gauges = {
        name: MERGED[family.merge.value]
        for name, family in FAMILIES.items()
        if name.startswith("longwatch_flow") and family.kind.value == "gauge"
    }
    assert gauges == {name: cells[2] for name, cells in documented().items() if name in gauges}


def test_every_way_in_which_a_worker_ends_an_attempt_is_there() -> None:
    """Only a call, in another program, abandons an attempt because it was asked to."""
    rows = dict(re.findall(r"^\| `(\w+)` \| (`.*) \|$", TEXT, re.MULTILINE))
    causes = {state: set(re.findall(r"`(\w+)`", rows[state])) for state in rows}
    ended = {str(state) for state in AttemptState} - {"not_set", "computing"}
    assert ended == set(causes)
    assert {str(cause) for cause in AttemptEndCause} - {"asked"} == set().union(*causes.values())
