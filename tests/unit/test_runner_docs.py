from __future__ import annotations

from longwatch.observe import runner_families
from longwatch.observe.runner_families import CATALOGUE
from markdown_files import ROOT

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
