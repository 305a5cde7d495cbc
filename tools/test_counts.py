"""Counts over several pytest runs, read from the XML reports that pytest writes."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

MOST_FLAKY = 2
"""A run passes with this many flaky tests; one more fails it."""


class TestCounts:
    """Counts passed, failed, skipped and flaky tests; an error in set-up or tear-down counts as a
    failure.

    A flaky test failed in the parallel run and passed when it ran again alone.
    """

    __test__ = False

    def __init__(self) -> None:
        self.passed = 0
        self.flaky: dict[str, str] = {}
        self._failed: dict[str, str] = {}
        self._skips: Counter[str] = Counter()

    @property
    def failed(self) -> int:
        return len(self._failed)

    @property
    def too_flaky(self) -> bool:
        return len(self.flaky) > MOST_FLAKY

    def add(self, run: str, report: Path) -> None:
        """Count the report of one pytest run; `run` keeps equal tests of several Pythons apart."""
        for name, case in _cases(run, report):
            skipped = case.find("skipped")
            failure = _failure(case)
            if failure is not None:
                self._failed.setdefault(
                    name, failure
                )  # a test that also fails in tear-down has two entries
            elif skipped is not None:
                self._skips[skipped.get("message", "no reason given")] += 1
            else:
                self.passed += 1

    def add_rerun(self, run: str, report: Path) -> None:
        """Turn the failed tests of `run` that passed in this rerun into flaky ones."""
        cases = list(_cases(run, report))
        failed_again = {name for name, case in cases if _failure(case) is not None}
        for name, _ in cases:
            if name in self._failed and name not in failed_again:
                self.flaky[name] = self._failed.pop(name)
                self.passed += 1

    def skip_reasons(self) -> list[str]:
        return [f"{count} × {reason}" for reason, count in sorted(self._skips.items())]

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self._skips.total()} skipped"


def _cases(run: str, report: Path) -> Iterator[tuple[str, ET.Element]]:
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 (pytest wrote it a moment ago)
        yield f"{run}: {case.get('classname')}.{case.get('name')}", case


def _failure(case: ET.Element) -> str | None:
    """Return the text of a failure or error, None if there is none."""
    for kind in ("failure", "error"):
        if (found := case.find(kind)) is not None:
            return found.text or found.get("message") or "no text"
    return None
