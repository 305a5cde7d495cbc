"""A worker process: runs one group under a parent that keeps its leases. Started by `longwatch
worker` and `longwatch up`.

`python -m longwatch.app.worker_process check module:name` only looks at the group, and says what a
parent has to know.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import longwatch
from longwatch.app.preflight import ANSWER, LOG_FORMAT, LOG_LEVEL
from longwatch.app.target import load_group
from longwatch.core.clock import SystemClock
from longwatch.core.events import Events, Level
from longwatch.core.masking import mask_text
from longwatch.errors import LongwatchError
from longwatch.host.parent import ParentLine
from longwatch.observe.logs import EventLog, Sink, take_over_logging
from longwatch.observe.metrics import Metrics
from longwatch.observe.outlet import Outlet
from longwatch.observe.render import to_json, to_pretty
from longwatch.runtime.group import LoopGroup
from longwatch.work.judging import described

WAIT = 30.0
_LAST_WORDS = 1.0


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0 for a clean end, 2 for a group that cannot be run, 1 for one that
    crashed.
    """
    task, target = arguments
    if task == "check":
        signal.pthread_sigmask(
            signal.SIG_UNBLOCK, signal.valid_signals()
        )  # Ctrl-C ends an import, whoever holds it back
        answer = f"\n{ANSWER}{json.dumps(_looked_at(target))}\n"
        os.write(1, answer.encode())
        return 0
    parent = ParentLine.from_environment()
    try:
        return _run(load_group(target), parent)
    except LongwatchError as error:
        print(error, file=sys.stderr)  # noqa: T201 - one line, as the command line has it
        return error.exit_code
    except Exception:  # noqa: BLE001 - user code of any kind, told in full: it is theirs to mend
        traceback.print_exc()
        return 1


def _looked_at(target: str) -> dict[str, object]:
    """The facts of the group, or why it cannot be run, in one line."""
    try:
        return facts(load_group(target))
    except LongwatchError as error:
        return {"problem": str(error)}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code of any kind
        return {
            "problem": f"{target!r} cannot be imported: "
            f"{mask_text(' '.join(described(error).split()))}{_place(error)}"
        }


def _place(error: BaseException) -> str:
    """Where in somebody's code that was."""
    if isinstance(error, SyntaxError):
        return ""  # which its text says
    ours = str(Path(longwatch.__file__).parent)
    frames = (frame for frame in reversed(traceback.extract_tb(error.__traceback__)))
    frame = next((frame for frame in frames if not frame.filename.startswith(("<", ours))), None)
    return "" if frame is None else f" ({frame.filename}, line {frame.lineno})"


def facts(group: LoopGroup) -> dict[str, object]:
    """What a parent has to know of a group before it runs."""
    limits = [getattr(loop, "shutdown_timeout", None) for loop in group.loops]
    return {
        "loops": group.names,
        "health_host": group.health_host,
        "health_port": group.health_port,
        "shutdown_timeout": max(
            group.shutdown_timeout if limit is None else limit for limit in limits
        ),
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
            group.metrics = group.metrics if isinstance(group.metrics, Metrics) else Metrics()
        group.before_exit = lambda: outlet.close(_LAST_WORDS)
        group.run(wait_time_seconds=_wait(group))
    finally:
        restore()
        outlet.close(_LAST_WORDS)
    return 0


def _wait(group: LoopGroup) -> float:
    """The longest poll: less than what the watchdog takes for a stall."""
    return WAIT if group.watchdog_threshold is None else min(WAIT, group.watchdog_threshold / 4)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
