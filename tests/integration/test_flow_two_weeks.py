"""Two weeks of schedules in which the clocks change, on both databases."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from flow_rig import database_fixture, url_fixture  # noqa: F401 - fixtures
from longwatch.flow import Execution, Graph
from longwatch.store.database import Database
from longwatch.testing import run_graph

DAY = 86_400.0
HALF_A_DAY = DAY / 2
ZURICH = ZoneInfo("Europe/Zurich")
Firings = dict[str, list[str]]

SPRING = {
    "nightly": [
        *(f"Mar {day} 02:30 +0100" for day in range(22, 28)),
        "Mar 28 03:00 +0200",  # at 02:00 it was 03:00
        *(f"Mar {day} 02:30 +0200" for day in range(29, 32)),
        *(f"Apr {day:02} 02:30 +0200" for day in range(1, 5)),
    ],
    "monday": ["Mar 22 09:00 +0100", "Mar 29 09:00 +0200"],
    "half_a_day": [
        "Mar 21 20:15 +0100",
        *(f"Mar {day} {hour}:15 +0100" for day in range(22, 28) for hour in ("08", "20")),
        *(f"Mar {day} {hour}:15 +0200" for day in range(28, 32) for hour in ("09", "21")),
        *(f"Apr {day:02} {hour}:15 +0200" for day in range(1, 4) for hour in ("09", "21")),
    ],
}
AUTUMN = {
    "nightly": [
        *(f"Oct {day} 02:30 +0200" for day in range(19, 26)),  # not once more an hour later
        *(f"Oct {day} 02:30 +0100" for day in range(26, 32)),
        "Nov 01 02:30 +0100",
    ],
    "monday": ["Oct 19 09:00 +0200", "Oct 26 09:00 +0100"],
    "half_a_day": [
        "Oct 18 20:15 +0200",
        *(f"Oct {day} {hour}:15 +0200" for day in range(19, 25) for hour in ("08", "20")),
        *(f"Oct {day} {hour}:15 +0100" for day in range(25, 32) for hour in ("07", "19")),
    ],
}


def schedule() -> Graph:
    graph = Graph("schedule", version="1")
    graph.tick_recurring("nightly", cron="30 2 * * *", timezone="Europe/Zurich")
    graph.tick_recurring("monday", cron="0 9 * * mon", timezone="Europe/Zurich")
    graph.tick_recurring("half_a_day", every=HALF_A_DAY)
    graph.historian("fired", of=["nightly", "monday", "half_a_day"])
    return graph


def firings(execution: Execution) -> Firings:
    """The firings of each tick in Zurich's time, to the minute, in order."""
    found = defaultdict(list)
    for entry in reversed(execution.get("fired", wait=False)):
        local = datetime.fromtimestamp(entry["value"], ZURICH)
        found[entry["node"]].append(f"{local:%b %d %H:%M %z}")
    return dict(found)


@pytest.mark.parametrize(
    ("begin", "expected"),
    [
        pytest.param(datetime(2027, 3, 21, 8, 15, tzinfo=ZURICH), SPRING, id="spring"),
        pytest.param(datetime(2026, 10, 18, 8, 15, tzinfo=ZURICH), AUTUMN, id="autumn"),
    ],
)
def test_two_weeks_with_a_change_of_the_clocks_fire_exactly_these_times(
    database: Database, begin: datetime, expected: Firings
) -> None:
    with run_graph(schedule(), database) as run:
        run.clock.jump_wall(begin.timestamp() - run.clock.wall())
        execution = run.start()
        run.advance(14 * DAY - 60)
        assert expected == firings(execution)
        assert 0 == run.runs.total()
