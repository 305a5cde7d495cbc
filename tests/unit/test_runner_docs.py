from __future__ import annotations

import inspect
import re

from longwatch.core.events import runner as events
from longwatch.core.events.base import Event
from longwatch.observe import runner_families
from longwatch.observe.runner_families import CATALOGUE
from markdown_files import ROOT, Page, section

REFERENCE = ROOT / "docs" / "reference"


def rows(text: str) -> dict[str, list[str]]:
    """The rows of tables whose first cell is one name: the other cells."""
    lines = (line[1:-1].split("|") for line in text.splitlines() if line.startswith("| `"))
    return {first.strip(" `"): [cell.strip() for cell in cells] for first, *cells in lines}


def test_the_reference_has_every_metric_with_its_kind_and_labels() -> None:
    documented = rows((REFERENCE / "runner-metrics.md").read_text(encoding="utf-8"))
    for name, each in CATALOGUE.items():
        kind, labels = documented[name][:2]
        assert (each.family.kind.value, ", ".join(each.family.labels)) == (
            kind,
            labels,
        )


def test_the_reference_has_every_value_of_a_closed_label() -> None:
    text = (REFERENCE / "runner-metrics.md").read_text(encoding="utf-8")
    values = {
        *runner_families.SEVERITIES,
        *runner_families.FILTER_REASONS,
        *runner_families.DROP_REASONS,
        *runner_families.RECONNECT_REASONS,
        *runner_families.STATUSES,
        *runner_families.ALERTS,
    }
    assert set() == {value for value in values if f"`{value}`" not in text}


def event_classes() -> list[type[Event]]:
    return [
        each
        for each in vars(events).values()
        if isinstance(each, type) and issubclass(each, Event) and each is not Event
    ]


def test_the_reference_has_every_event_with_its_level_its_sentence_and_its_fields() -> None:
    text = section(Page.read(REFERENCE / "events.md"), "The runner")
    assert text is not None
    documented = rows(text)
    for each in event_classes():
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", each.__name__).lower()
        level, when, fields = documented.pop(name)
        assert level.startswith(each.default_level.value)
        assert (f"message `{each.text}`" in when) == bool(each.text)
        assert set(inspect.signature(each).parameters) <= set(re.findall(r"`(\w+)`", fields))
    assert {} == documented
