"""Runs checks side by side, each in a thread of its own and with a time limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from longwatch.app.doctor.findings import Finding, Severity, problem, problem_from, warning
from longwatch.app.doctor.subject import Subject
from longwatch.core.clock import Clock, SystemClock
from longwatch.core.deadline import Deadline
from longwatch.core.error_text import describe_error
from longwatch.core.masking import mask_text
from longwatch.errors import LongwatchError
from longwatch.host.background_thread import BackgroundThread

CHECK_TIMEOUT = 10.0
"""Seconds that a check may take."""


@dataclass(frozen=True, slots=True)
class Check:
    """A named check. `run` may block and may raise. A check that finds nothing is not shown."""

    name: str
    run: Callable[[Subject], Iterable[Finding]]
    timeout: float = CHECK_TIMEOUT


@dataclass(frozen=True, slots=True)
class Result:
    """The findings of a check."""

    check: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """All results, in the order of the checks."""

    results: tuple[Result, ...]

    def count(self, severity: Severity) -> int:
        return sum(
            finding.severity is severity for result in self.results for finding in result.findings
        )


def examine(subject: Subject, checks: Sequence[Check], *, clock: Clock | None = None) -> Report:
    """Run all checks. Returns when each has ended or used up its time. A check that hangs keeps its
    thread, which does not keep the process.
    """
    clock = clock or SystemClock()
    running = [_RunningCheck(check, subject, clock) for check in checks]
    found = (Result(each.check.name, each.findings()) for each in running)
    return Report(tuple(result for result in found if result.findings))


class _RunningCheck:
    """A check in its thread."""

    def __init__(self, check: Check, subject: Subject, clock: Clock) -> None:
        self.check = check
        self._subject = subject
        self._clock = clock
        self._found: list[Finding] = []
        self._deadline = Deadline.after(check.timeout, clock)
        self._thread = BackgroundThread(self._run, name=f"longwatch-doctor {check.name}")
        self._thread.start(inline_fallback=True)

    def findings(self) -> tuple[Finding, ...]:
        """Wait for the end, and return the findings. Of a check that hangs, those so far."""
        if self._thread.done.is_set() or self._thread.wait(self._clock, self._deadline):
            return tuple(self._found)
        return (*self._found, _late(self.check.timeout))

    def _run(self) -> None:
        try:
            for finding in self.check.run(self._subject):
                self._found.append(finding)
        except LongwatchError as error:
            self._found.append(problem_from(error))
        except Exception as error:  # noqa: BLE001 - a check that fails must not stop the others
            text = f"this check failed: {mask_text(describe_error(error))}"
            self._found.append(warning(text, "report it, with the output of `longwatch doctor`"))


def _late(timeout: float) -> Finding:
    return problem(
        f"gave no answer within {timeout:g} s",
        "check that it is not frozen, and that no firewall drops its packets",
    )


def all_ok(report: Report) -> bool:
    return report.count(Severity.PROBLEM) == 0
