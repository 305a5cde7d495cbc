"""What a check found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum, auto

from longwatch.core.masking import mask_text


class Severity(StrEnum):
    """How bad a finding is. Only a problem changes the exit code."""

    OK = auto()
    WARNING = auto()
    PROBLEM = auto()


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `cure` says what to do; it is empty if all is well."""

    severity: Severity
    text: str
    cure: str = ""


def ok(text: str) -> Finding:
    return Finding(Severity.OK, text)


def warning(text: str, cure: str) -> Finding:
    return Finding(Severity.WARNING, text, cure)


def problem(text: str, cure: str) -> Finding:
    return Finding(Severity.PROBLEM, text, cure)


def problem_from(text: object) -> Finding:
    """A problem from the text of an error of Longwatch, which ends with `; ` and the cure."""
    reason, separator, cure = mask_text(str(text)).partition("; ")
    return problem(reason, cure if separator else "mend that, and try again")


def or_ok(found: Iterable[Finding], text: str) -> list[Finding]:
    """The findings, or an ok finding if there are none."""
    return [*found] or [ok(text)]


def size_text(size: float) -> str:
    """A number of bytes in its largest unit: `1.5 GiB`."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:  # noqa: PLR2004 - the factor between the units
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
