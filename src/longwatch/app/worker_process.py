"""A worker process: runs one group under a parent that keeps its leases. Started by `longwatch worker` and `longwatch up`.

`python -m longwatch.app.worker_process check module:name` only looks at the group, and says what a parent has to know, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence

from longwatch.app.preflight import LOG_FORMAT, LOG_LEVEL
from longwatch.app.target import load_group
from longwatch.core.clock import SystemClock
from longwatch.core.events import Events, Level
from longwatch.errors import LongwatchError, UsageError
from longwatch.host.parent import ParentLine
from longwatch.observe.logs import EventLog, Sink, take_over_logging
from longwatch.observe.metrics import Metrics
from longwatch.observe.outlet import Outlet
from longwatch.observe.render import to_json, to_pretty
from longwatch.runtime.group import LoopGroup

WAIT = 30.0
_LAST_WORDS = 1.0


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0 for a clean end, 2 for a group that cannot be run, 1 for one that crashed."""
    task, target = arguments
    parent = ParentLine.from_environment()
    try:
        group = load_group(target)
        if task == "check":
            print(json.dumps(facts(group)))  # noqa: T201 - the answer
            return 0
        return _run(group, parent)
    except LongwatchError as error:
        print(error, file=sys.stderr)  # noqa: T201 - one line, as the command line has it
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - user code of any kind, told in full: it is theirs to mend
        traceback.print_exc()
        return UsageError.exit_code if task == "check" else _told(error)


def facts(group: LoopGroup) -> dict[str, object]:
    """What a parent has to know of a group before it runs."""
    limits = [getattr(loop, "shutdown_timeout", None) for loop in group.loops]
    return {
        "loops": group.names,
        "health_host": group.health_host,
        "health_port": group.health_port,
        "shutdown_timeout": max(group.shutdown_timeout if limit is None else limit for limit in limits),
        "watchdog_threshold": group.watchdog_threshold,
    }


def _run(group: LoopGroup, parent: ParentLine | None) -> int:
    outlet = Outlet(2, name="longwatch-stderr")
    form = to_pretty if os.environ.get(LOG_FORMAT) == "pretty" else to_json
    level = Level(os.environ.get(LOG_LEVEL, Level.INFO.value))
    log = EventLog([Sink(writer=outlet, form=form, level=level)], clock=SystemClock())
    restore = take_over_logging(log, level=level)
    try:
        if group.is_logged_plainly:
            group.events = Events(log)
        else:
            group.events.subscribe(log)
        if parent is not None:
            group.adopt(parent)
            group.metrics = Metrics()
        group.run(wait_time_seconds=_wait(group))
    finally:
        restore()
        outlet.close(_LAST_WORDS)
    return 0


def _wait(group: LoopGroup) -> float:
    """The longest poll: less than what the watchdog takes for a stall."""
    return WAIT if group.watchdog_threshold is None else min(WAIT, group.watchdog_threshold / 4)


def _told(error: Exception) -> int:
    return error.exit_code if isinstance(error, LongwatchError) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
