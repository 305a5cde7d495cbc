"""Counts over several test runs, read from the XML reports that pytest writes."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path


class Tally:
    """Passed, failed and skipped over all reports added; an error in set-up or tear-down counts as a failure."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0
        self._skips: Counter[str] = Counter()

    def add(self, report: Path) -> None:
        for case in ET.parse(report).iter("testcase"):  # noqa: S314 (pytest wrote it a moment ago)
            skipped = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                self.failed += 1
            elif skipped is not None:
                self._skips[skipped.get("message", "no reason given")] += 1
            else:
                self.passed += 1

    def reasons(self) -> list[str]:
        return [f"{count} × {reason}" for reason, count in sorted(self._skips.items())]

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self._skips.total()} skipped"
