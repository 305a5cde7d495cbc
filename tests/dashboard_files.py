"""The dashboards of deploy/grafana as Grafana reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dashboards

FILES = sorted(dashboards.DIRECTORY.glob("*.json"))


def board(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def panels(path: Path) -> list[Any]:
    return [each for each in board(path)["panels"] if each["type"] != "row"]


def expressions(path: Path) -> list[str]:
    return [target["expr"] for panel in panels(path) for target in panel["targets"]]
