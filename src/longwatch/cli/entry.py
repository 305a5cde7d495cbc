"""The entry point of the `longwatch` command: block the stop signals until handlers are installed.

Importing takes a moment. A stop signal in that time would end the process with a traceback, or be
dropped for good if the process is PID 1. A blocked signal is delivered as soon as handlers are
installed. `longwatch run` unblocks the signals when it is ready, every other command at once.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping

BLOCKED_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP})


def main() -> None:
    """Run the command line and exit."""
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    from longwatch.cli.fast_up import parse_up_options  # noqa: PLC0415 - the moment that this file is about

    options = parse_up_options(sys.argv[1:])
    if options is not None:
        sys.exit(_run_up(options))
    from longwatch.cli.main import main as run  # noqa: PLC0415

    run()


def _run_up(options: Mapping[str, str]) -> int:
    from longwatch.cli.fast_up import run_up  # noqa: PLC0415

    try:
        return run_up(**options)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - reported as every other error is
        from longwatch.cli.main import report_error  # noqa: PLC0415

        return report_error(error, sys.argv[1:])
