"""The reference of metrics is made from their definitions; its prose has the label values."""

from __future__ import annotations

import re

from longwatch.flow.attempt import AttemptEndCause, AttemptState
from longwatch.observe import runner_families
from longwatch.observe.metric_families import FAMILIES
from longwatch.observe.runner_families import CATALOGUE
from markdown_files import Page, section
from reference.metrics import PAGE

TEXT = PAGE.path.read_text(encoding="utf-8")


def documented() -> dict[str, list[str]]:
    """The cells of each metric."""
    lines = [line for line in TEXT.splitlines() if line.startswith("| `longwatch")]
    rows = ([cell.strip(" `") for cell in line[1:-1].split("|")] for line in lines)
    return {name: cells for name, *cells in rows}


def test_every_metric_of_the_product_is_there_with_its_kind_and_labels_and_no_other() -> None:
    families = [*FAMILIES.values(), *(each.family for each in CATALOGUE.values())]
    names = [*FAMILIES, *(f"longwatch_runner_{name}" for name in CATALOGUE)]
    assert {
        name: [family.kind.value, ", ".join(family.labels)]
        for name, family in zip(names, families, strict=True)
    } == {name: cells[:2] for name, cells in documented().items()}


def test_gauges_say_how_those_of_several_processes_merge() -> None:
    words = {"sum": "sum", "max": "the largest", "last": "the last"}
    gauges = {
        name: words[family.merge.value]
        for name, family in FAMILIES.items()
        if family.kind.value == "gauge"
    }
    assert gauges == {name: cells[2] for name, cells in documented().items() if name in gauges}


def test_every_way_in_which_a_worker_ends_an_attempt_is_there() -> None:
    """Only a call, in another program, abandons an attempt because it was asked to."""
    graphs = section(Page.read(PAGE.path), "Graphs") or ""
    rows = dict(re.findall(r"^\| `(\w+)` \| (`.*) \|$", graphs, re.MULTILINE))
    causes = {state: set(re.findall(r"`(\w+)`", rows[state])) for state in rows if state != "state"}
    ended = {str(state) for state in AttemptState} - {"not_set", "computing"}
    assert ended == set(causes)
    assert {str(cause) for cause in AttemptEndCause} - {"asked"} == set().union(*causes.values())


def test_every_value_of_a_closed_label_of_the_runner_is_there() -> None:
    runner = section(Page.read(PAGE.path), "The runner") or ""
    values = {value for each in CATALOGUE.values() for value in each.values}
    assert set() == {value for value in values if f"`{value}`" not in runner}
    assert f"`{runner_families.UNKNOWN_REASON}`" in runner
