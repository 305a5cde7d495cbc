"""The dashboards of deploy/grafana are what their definitions make, and well formed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dashboards
from dashboard_files import FILES, board, expressions, panels
from promql import unknown_parts


def test_the_files_are_what_the_definitions_make() -> None:
    written = {path: path.read_text(encoding="utf-8") for path in FILES}
    assert dashboards.texts() == written, "run make reference"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_dashboard_asks_only_for_metrics_and_labels_that_exist(path: Path) -> None:
    assert [] == [part for each in expressions(path) for part in unknown_parts(each)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_dashboard_defines_each_variable_that_it_uses_and_uses_each(path: Path) -> None:
    defined = {each["name"] for each in board(path)["templating"]["list"]} - {"datasource"}
    used = set(re.findall(r'"\$(\w+)"', " ".join(expressions(path))))
    assert defined == used
    assert {"${datasource}"} == {each["datasource"]["uid"] for each in panels(path)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_panels_have_numbers_of_their_own_and_do_not_overlap(path: Path) -> None:
    every = board(path)["panels"]
    assert len({each["id"] for each in every}) == len(every)
    cells = [
        (column, line)
        for place in (each["gridPos"] for each in every)
        for column in range(place["x"], place["x"] + place["w"])
        for line in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert {column for column, _ in cells} == set(range(24))
