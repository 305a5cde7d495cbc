"""A worker process: runs one group under a parent that renews its leases. Started by `longwatch
worker` and `longwatch up`.

`python -m longwatch.workers.worker_process check module:name` only inspects the group, and prints
its facts. With `LONGWATCH_SUSPECTS` in its environment it runs only the suspects of the group
(`workers.suspects`). If the parent speaks another protocol, it renews its leases itself.
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
from longwatch.core.clock import SystemClock
from longwatch.core.error_text import describe_error
from longwatch.core.events.base import Events, Level
from longwatch.core.masking import mask_text
from longwatch.core.traceback_text import describe_traceback
from longwatch.errors import LongwatchError
from longwatch.host.nonblocking_writer import NonblockingWriter
from longwatch.host.parent_channel import PARENT_SOCKET_VARIABLE, SUSPECTS_VARIABLE, ParentChannel
from longwatch.observe.event_log import EventLog, LogSink, redirect_logging
from longwatch.observe.log_format import to_json, to_pretty
from longwatch.observe.metrics import Metrics
from longwatch.observe.tracing import flush, install_if_wanted
from longwatch.runtime.group import LoopGroup
from longwatch.workers.event_relay import EventRelay
from longwatch.workers.import_path import load_group
from longwatch.workers.preflight import GROUP_INFO_PREFIX, LOG_FORMAT, LOG_LEVEL

MAX_POLL_WAIT = 30.0
_CLOSE_TIMEOUT = 1.0


def main(arguments: Sequence[str]) -> int:
    """Run a worker process. Returns 0 after a clean end, 2 for a group that cannot run, 1 for one
    that crashed.
    """
    task, import_path = arguments
    if task == "check":
        signal.pthread_sigmask(
            signal.SIG_UNBLOCK, signal.valid_signals()
        )  # Ctrl-C ends an import even if the parent blocks it
        line = f"\n{GROUP_INFO_PREFIX}{json.dumps(_inspect(import_path))}\n"
        os.write(1, line.encode())
        return 0
    has_parent = PARENT_SOCKET_VARIABLE in os.environ
    parent = ParentChannel.from_environment()
    is_apart = has_parent and parent is None
    runs_suspects = os.environ.pop(SUSPECTS_VARIABLE, "") != ""
    if is_apart and runs_suspects:
        return 0  # without the parent, ordinary processes run their suspects themselves
    try:
        group = load_group(import_path)
        if is_apart:
            group.health_port = None  # the parent may serve it
        install_if_wanted(os.environ)
        return _run(group, parent, runs_suspects=runs_suspects)
    except LongwatchError as error:
        if parent is not None:
            parent.report_finished()
        print(error, file=sys.stderr)  # noqa: T201 - one line, as the command line has it
        return error.exit_code
    except Exception:  # noqa: BLE001 - user code of any kind; its author needs the whole traceback
        traceback.print_exc()
        return 1


def _inspect(import_path: str) -> dict[str, object]:
    """The facts of the group, or the reason why it cannot run: one line and a traceback."""
    try:
        return group_info(load_group(import_path))
    except LongwatchError as error:
        return {"problem": str(error), "traceback": describe_traceback(error)}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code of any kind
        return {
            "problem": f"{import_path!r} cannot be imported: "
            f"{mask_text(' '.join(describe_error(error).split()))}{_location(error)}",
            "traceback": describe_traceback(error),
        }


def _location(error: BaseException) -> str:
    """The file and line of user code that raised; empty if unknown."""
    if isinstance(error, SyntaxError):
        return ""  # the text of the error has the location
    package = str(Path(longwatch.__file__).parent)
    frames = (frame for frame in reversed(traceback.extract_tb(error.__traceback__)))
    frame = next((frame for frame in frames if not frame.filename.startswith(("<", package))), None)
    return "" if frame is None else f" ({frame.filename}, line {frame.lineno})"


def group_info(group: LoopGroup) -> dict[str, object]:
    """The facts about a group that its parent needs before it runs."""
    limits = [getattr(loop, "shutdown_timeout", None) for loop in group.loops]
    return {
        "loops": group.names,
        "health_host": group.health_host,
        "health_port": group.health_port,
        "shutdown_timeout": max(
            group.shutdown_timeout if limit is None else limit for limit in limits
        ),
        "watchdog_threshold": group.watchdog_threshold,
        "timeout_problems": list(group.timeout_problems(wait_time_seconds=_poll_wait(group))),
    }


def _run(group: LoopGroup, parent: ParentChannel | None, *, runs_suspects: bool) -> int:
    outlet = NonblockingWriter(2, name="longwatch-stderr")
    form = to_pretty if os.environ.get(LOG_FORMAT) == "pretty" else to_json
    level = Level(os.environ.get(LOG_LEVEL, Level.INFO.value))
    log = EventLog([LogSink(writer=outlet, format_record=form, level=level)], clock=SystemClock())
    relay = None if parent is None else EventRelay(parent, clock=SystemClock())

    def close_outputs() -> None:
        flush(_CLOSE_TIMEOUT)
        outlet.close(_CLOSE_TIMEOUT)
        if relay is not None:
            relay.close(_CLOSE_TIMEOUT)

    restore = redirect_logging(log, level=level)
    try:
        if group.uses_default_events:
            group.events = Events()
        group.events.subscribe(log)
        if relay is not None:
            group.events.subscribe(relay.log)
        if parent is not None:
            group.set_parent(parent, runs_suspects=runs_suspects)
            group.metrics = group.metrics if isinstance(group.metrics, Metrics) else Metrics()
        group.before_exit = close_outputs
        group.run(wait_time_seconds=_poll_wait(group))
    finally:
        restore()
        close_outputs()
    return 0


def _poll_wait(group: LoopGroup) -> float:
    """The longest poll in seconds. It must be shorter than the watchdog's threshold."""
    return (
        MAX_POLL_WAIT
        if group.watchdog_threshold is None
        else min(MAX_POLL_WAIT, group.watchdog_threshold / 4)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
