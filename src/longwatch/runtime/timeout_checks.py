"""Checks that the timeouts of a group fit together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

from longwatch.errors import UsageError


class TimeoutProblem(NamedTuple):
    """A setting with an unsuitable value, and the reason."""

    setting: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """The timeouts of one run. A `threshold` of None: no watchdog."""

    threshold: float | None
    interval: float
    wait: float
    visibility: float
    shutdown: float
    processing: float

    def validate(self) -> None:
        """Raise UsageError for timeouts that cannot work."""
        for name in ("interval", "visibility", "processing"):
            value = getattr(self, name)
            if not (isfinite(value) and value > 0):
                raise UsageError(
                    f"{_SETTING_NAMES[name]} must be a number of seconds above 0, not {value}"
                )
        if not (isfinite(self.shutdown) and self.shutdown >= 0):
            raise UsageError(f"shutdown_timeout must be a number of seconds, not {self.shutdown}")
        if self.threshold is not None and not self.threshold > self.wait:
            raise UsageError(
                f"watchdog_threshold ({self.threshold:g} s) must be more than "
                f"wait_time_seconds ({self.wait:g} s), or a loop that "
                "only waits for messages would be killed; raise the threshold, or lower the wait"
            )

    def problems(self, *, parent_renews: bool = False) -> Iterator[TimeoutProblem]:
        """Yield the timeouts that work but not as intended, each with a suitable value. With
        `parent_renews` the visibility timeout does not matter.
        """
        found = self._all_problems()
        yield from (
            problem
            for problem in found
            if not (parent_renews and problem.setting == "visibility_timeout")
        )

    def _all_problems(self) -> Iterator[TimeoutProblem]:
        longest = self.processing
        if self.threshold is not None:
            yield from self._watchdog_problems(self.threshold)
        if self.visibility <= self.shutdown + longest:
            yield _too_low(
                "visibility_timeout",
                self.visibility,
                self.shutdown + longest,
                "shutdown_timeout + max_processing_seconds",
            )

    def _watchdog_problems(self, threshold: float) -> Iterator[TimeoutProblem]:
        longest = self.processing
        if self.interval >= threshold / 3:
            problem = (
                f"{self.interval:g} s is not less than a third of watchdog_threshold: set it "
                f"below {threshold / 3:g}"
            )
            yield TimeoutProblem("watchdog_interval", problem)
        if threshold <= self.wait + longest:
            yield _too_low(
                "watchdog_threshold",
                threshold,
                self.wait + longest,
                "wait_time_seconds + max_processing_seconds",
            )
        if self.visibility <= threshold + longest:
            yield _too_low(
                "visibility_timeout",
                self.visibility,
                threshold + longest,
                "watchdog_threshold + max_processing_seconds",
            )


_SETTING_NAMES = {
    "interval": "watchdog_interval",
    "visibility": "visibility_timeout",
    "processing": "max_processing_seconds",
}


def _too_low(setting: str, value: float, minimum: float, bound: str) -> TimeoutProblem:
    return TimeoutProblem(
        setting, f"{value:g} s is not more than {bound}: set it above {minimum:g}"
    )
