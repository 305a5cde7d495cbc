"""The CPU time and memory of programs as metrics."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from longwatch.observe.counters import MetricSample
from longwatch.supervisor.managed_program import ProgramStatus


class UsageSamples:
    """Makes samples of the usage that a supervisor measures. Thread-safe.

    The CPU time of a program is summed over its processes one after another. It never goes back,
    even if a process tree loses some of it with an orphan.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: dict[str, float] = {}
        self._latest: dict[str, tuple[int, float]] = {}
        """By program: its pid, and the CPU seconds of that process tree."""

    def update(self, usages: Sequence[ProgramStatus]) -> list[MetricSample]:
        """The samples after a measurement. A value that is not visible is absent."""
        memory = {
            each["name"]: float(each["memory_bytes"])
            for each in usages
            if each["memory_bytes"] is not None
        }
        with self._lock:
            for each in usages:
                if each["cpu_seconds"] is not None:
                    self._record(each["name"], each["pid"], each["cpu_seconds"])
            cpu = {
                name: self._ended.get(name, 0.0) + latest
                for name, (_, latest) in self._latest.items()
            }
        return [
            MetricSample(metric, (name,), value)
            for metric, values in (
                ("longwatch_program_memory_bytes", memory),
                ("longwatch_program_cpu_seconds_total", cpu),
            )
            for name, value in values.items()
        ]

    def _record(self, name: str, pid: int, seconds: float) -> None:
        known_pid, known = self._latest.get(name, (pid, 0.0))
        if known_pid != pid:
            self._ended[name] = self._ended.get(name, 0.0) + known
            known = 0.0
        self._latest[name] = (pid, max(known, seconds))
