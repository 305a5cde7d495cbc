"""What a parent knows about one Longwatch program, whatever its kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longwatch.host.parent_channel import PROTOCOL
from longwatch.observe.counters import MetricSample
from longwatch.observe.metric_families import Families
from longwatch.observe.runner_families import runner_families


class ChildRecord:
    """One process that reports its state and relays its events. `workers.worker_record` has more
    about a worker.
    """

    def __init__(self, pid: int, program: str, *, serial: int = 0) -> None:
        self.pid = pid
        self.program = program
        self.serial = serial
        """Unique among the programs of this parent; pids are reused."""
        self.is_stopping = False
        """Whether the supervisor is stopping it."""
        self.is_apart = False
        """Whether it speaks another protocol, so that it reports nothing and renews its leases
        itself.
        """
        self.families: Families = {}
        """The metrics that only this program has, by name."""
        self.failing: list[str] = []
        """The failing checks of its readiness, each with its reason."""
        self._is_ready = False
        self._naming: Any = None

    def accept(self, report: Mapping[str, Any]) -> None:
        """Note the parts of a report that must be known at once. Never waits."""
        if report["about"] == "apart":
            self.is_apart = True
            theirs = report["protocol"]
            self.failing = [
                f"parent: expected protocol {theirs}, found {PROTOCOL}; restart the parent"
            ]

    def record_state(self, facts: Mapping[str, Any], now: float) -> list[MetricSample]:  # noqa: ARG002 - a worker has ages
        """Note the readiness. Returns the metrics of the process."""
        self._is_ready = bool(facts.get("ready"))
        self.failing = [str(each) for each in facts.get("failing", ())]
        if (naming := facts.get("runner")) and naming != self._naming:
            named = runner_families(str(naming["namespace"]), naming["agent_timeout"])
            self.families = {family.name: family for family in named.values()}
            self._naming = naming
        return [
            MetricSample(str(name), tuple(map(str, labels)), value)
            for name, labels, value in facts.get("samples", ())
        ]

    def beat_ages(self, now: float) -> Mapping[str, float]:  # noqa: ARG002 - only a worker has loops
        """Seconds since the last beat of each running loop, at this time of the monotonic clock."""
        return {}

    def unready_reason(self, now: float) -> str:  # noqa: ARG002 - a worker may be unreachable since
        """Why it is not ready, by its own reports; empty if it is, or has not reported yet."""
        return ", ".join(self.failing)
