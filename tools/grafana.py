"""How Grafana spells a dashboard: a panel is a title and its queries, the rest is said once here.

In a query `@` stands for the chosen targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_TARGETS = 'instance=~"$instance"'
_COLUMNS = 24
_HEIGHTS = {"stat": 4, "timeseries": 8, "table": 8}
_SCHEMA = 38
"""The version of the format of Grafana 10."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """`queries`: expressions by their legends. `width`: of 24 columns. `words`: by value. `empty`:
    what a panel says that may have no series while all is well.
    """

    title: str
    queries: Mapping[str, str]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 8
    about: str = ""
    thresholds: Sequence[tuple[float | None, str]] = ((None, "green"),)
    words: Mapping[str, str] | None = None
    empty: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """`variables`: the names of labels, and a metric that has each. `rows`: panels by headings."""

    name: str
    title: str
    variables: Mapping[str, str]
    rows: Mapping[str, Sequence[Panel]]


def stat(title: str, query: str, **more: Any) -> Panel:
    return Panel(title=title, queries={"": query}, kind="stat", width=more.pop("width", 4), **more)


def as_json(dashboard: Dashboard) -> Json:
    """The dashboard as Grafana imports it."""
    return {
        "uid": f"longwatch-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["longwatch"],
        "schemaVersion": _SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,  # one crosshair for all panels
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [_link_to_the_others()],
        "templating": {"list": list(_variables(dashboard))},
        "panels": list(_panels(dashboard)),
    }


def _link_to_the_others() -> Json:
    return {
        "type": "dashboards",
        "title": "Longwatch",
        "tags": ["longwatch"],
        "asDropdown": True,
        "includeVars": False,
        "keepTime": True,
    }


def _variables(dashboard: Dashboard) -> Iterator[Json]:
    yield {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": SOURCE["type"],
    }
    for label, metric in dashboard.variables.items():
        query = f"label_values({metric}, {label})"
        yield {
            "name": label,
            "label": label.capitalize(),
            "type": "query",
            "datasource": SOURCE,
            "definition": query,
            "query": {"query": query, "refId": label},
            "refresh": 2,  # when the time range changes
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        }


def _panels(dashboard: Dashboard) -> Iterator[Json]:
    """Rows of panels from left to right. A panel that does not fit begins the next line."""
    number, top = 0, 0
    for heading, panels in dashboard.rows.items():
        number += 1
        place = {"h": 1, "w": _COLUMNS, "x": 0, "y": top}
        yield {"id": number, "type": "row", "title": heading, "gridPos": place, "panels": []}
        top, left, height = top + 1, 0, 0
        for panel in panels:
            if left + panel.width > _COLUMNS:
                top, left, height = top + height, 0, 0
            number += 1
            height = max(height, _HEIGHTS[panel.kind])
            place = {"h": _HEIGHTS[panel.kind], "w": panel.width, "x": left, "y": top}
            yield _panel(panel, number, place)
            left += panel.width
        top += height


def _panel(panel: Panel, number: int, place: Json) -> Json:
    made: Json = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": list(_queries(panel)),
        "fieldConfig": {"defaults": _field_defaults(panel), "overrides": []},
        "options": _OPTIONS[panel.kind],
    }
    return made | ({"transformations": _TABLE_COLUMNS} if panel.kind == "table" else {})


def _queries(panel: Panel) -> Iterator[Json]:
    for letter, (legend, expression) in zip("ABCDEF", panel.queries.items(), strict=False):
        instant = panel.kind != "timeseries"
        yield {
            "refId": letter,
            "datasource": SOURCE,
            "expr": expression.replace("@", _TARGETS),
            "legendFormat": legend or panel.title,
            "instant": instant,
            "range": not instant,
            "format": "table" if panel.kind == "table" else "time_series",
        }


def _field_defaults(panel: Panel) -> Json:
    steps = [{"value": value, "color": color} for value, color in panel.thresholds]
    defaults: Json = {
        "unit": panel.unit,
        "min": 0,
        "thresholds": {"mode": "absolute", "steps": steps},
        "color": {"mode": "thresholds" if panel.kind == "stat" else "palette-classic"},
    }
    if panel.kind == "timeseries":
        has_line = len(steps) > 1
        defaults["custom"] = {
            "lineWidth": 1,
            "fillOpacity": 10,
            "showPoints": "auto",
            "thresholdsStyle": {"mode": "line" if has_line else "off"},
        }
    if panel.words is not None:
        options = {value: {"text": text} for value, text in panel.words.items()}
        defaults["mappings"] = [{"type": "value", "options": options}]
    if panel.empty:
        defaults["noValue"] = panel.empty
    return defaults


_OPTIONS: dict[str, Json] = {
    "stat": {
        "colorMode": "background",
        "graphMode": "none",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "value",
    },
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "table": {"showHeader": True},
}
_TABLE_COLUMNS = [
    {
        "id": "organize",
        "options": {"excludeByName": {"Time": True, "Value": True, "__name__": True}},
    }
]
