"""What a supervised program finds in its environment."""

from __future__ import annotations

from collections.abc import Mapping

_WITHHELD = frozenset(
    {
        "NOTIFY_SOCKET",
        "WATCHDOG_PID",
        "WATCHDOG_USEC",
        "LISTEN_PID",
        "LISTEN_FDS",
        "LISTEN_FDNAMES",
        "PIDFILE",
    }
)


def child_environment(
    ours: Mapping[str, str], extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Our environment without what is meant for us alone, then `extra`, then the mark that says who
    manages it.

    Withheld are `LONGWATCH_*` and the notify, socket and pid-file variables that address this
    process; all else passes through.
    """
    passed = {
        name: value
        for name, value in ours.items()
        if not name.startswith("LONGWATCH_") and name not in _WITHHELD
    }
    return {**passed, **(extra or {}), "MANAGED_BY": "longwatch"}
