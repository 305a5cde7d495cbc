"""A report each night at 02:30 in Zurich, whatever the clocks do; the last seven are kept.

`python nightly_report.py` runs eight nights on a fake clock. In one of them Zurich puts its clocks
back, so it has 02:30 twice.
"""

from __future__ import annotations

import tempfile
from contextlib import chdir
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from longwatch.errors import UnknownExecutionError
from longwatch.flow import Flow, Graph, SavedValue, not_
from longwatch.testing import run_graph

ZONE = "Europe/Zurich"
DAY = 86_400.0
SHOPS = ["Basel", "Bern", "Geneva"]


def announce(saved: SavedValue) -> None:
    """Called after the commit of each report. A crash may lose the call, so it only announces."""
    print(f"saved: {saved.value['night']}  {saved.value['total']:>5} CHF")


graph = Graph("nightly-report", version="1", retention_days=30)
graph.input("shops")
graph.input("discontinued")
graph.tick_recurring("night", after=not_("discontinued"), cron="30 2 * * *", timezone=ZONE)


@graph.map(over="shops", after="night", max_in_flight=10)
def sales(shop: str, night: float) -> int:
    """The sales of one shop. A shop that fails is retried alone. The day is that of the tick, so a
    retry next morning computes the same figures.
    """
    return 100 * len(shop) + local(night).day


@graph.compute(after=["night", "shops", "sales"], on_save=announce)
def report(night: float, shops: list[str], sales: list[int]) -> dict[str, Any]:
    return {
        "night": local(night).strftime("%a %d %b %Y, %H:%M %Z"),
        "total": sum(sales),
        "shops": dict(zip(shops, sales, strict=True)),
    }


graph.historian("last_reports", of="report", max_entries=7)
graph.archive("archived", after="discontinued")

flow = Flow("sqlite:///nightly_report.db", graphs=[graph])


def local(moment: float) -> datetime:
    return datetime.fromtimestamp(moment, ZoneInfo(ZONE))


# --- eight nights in a second ---


def main() -> None:
    begin = datetime(2026, 10, 20, 12, 0, tzinfo=ZoneInfo(ZONE))
    with tempfile.TemporaryDirectory() as folder, chdir(folder), run_graph(graph) as run:
        run.clock.jump_wall(begin.timestamp() - run.clock.wall())
        execution = run.start(shops=SHOPS)
        run.advance(8 * DAY)

        kept = [entry["value"]["night"] for entry in execution.get("last_reports", wait=False)]
        print(f"kept: {len(kept)} reports, {kept[0]} back to {kept[-1]}")
        print(execution.explain().describe("night"))

        execution.set(discontinued=True)
        print(f"discontinued: {run.flow.count(graph.name)} executions are listed")
        run.advance(31 * DAY)
        try:
            run.flow.execution(execution.id)
        except UnknownExecutionError:
            print(f"after {graph.retention_days:.0f} days: removed from the store")


if __name__ == "__main__":
    main()
