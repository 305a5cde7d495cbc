"""The public test kit: what a program built on Longwatch needs to be tested without sleeping."""

from __future__ import annotations

from typing import TYPE_CHECKING

from longwatch.lazy import lazy_names

if TYPE_CHECKING:
    from longwatch.core.fake_clock import FakeClock as FakeClock
    from longwatch.testing.flow_check import check_graph as check_graph
    from longwatch.testing.flow_crashes import Step as Step
    from longwatch.testing.flows import GraphRun as GraphRun
    from longwatch.testing.flows import run_graph as run_graph
    from longwatch.testing.mailboxes import check_mailbox as check_mailbox
    from longwatch.testing.observer import RecordingObserver as RecordingObserver
    from longwatch.testing.services import check_service as check_service

_HOMES = {
    "FakeClock": "longwatch.core.fake_clock",
    "GraphRun": "longwatch.testing.flows",
    "RecordingObserver": "longwatch.testing.observer",
    "Step": "longwatch.testing.flow_crashes",
    "check_graph": "longwatch.testing.flow_check",
    "check_mailbox": "longwatch.testing.mailboxes",
    "check_service": "longwatch.testing.services",
    "run_graph": "longwatch.testing.flows",
}

__all__ = [
    "FakeClock",
    "GraphRun",
    "RecordingObserver",
    "Step",
    "check_graph",
    "check_mailbox",
    "check_service",
    "run_graph",
]


if not TYPE_CHECKING:  # or a checker would take every misspelt name for one of these
    __getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
