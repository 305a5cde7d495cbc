"""The report of a loop on a dataset, and the comparison of two reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from longwatch.core.error_text import json_reason, os_reason
from longwatch.errors import UsageError
from longwatch.evals.dataset import Dataset
from longwatch.evals.results import CollectedResults, EvalResult, SampleEnd


class EvalReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one run over one dataset. A sample without a result counts as not passed."""

    run: str
    dataset: str
    digest: str
    """The hash of the dataset. Only reports with equal hashes can be compared."""
    samples: int
    results: list[EvalResult]
    missing: list[str] = []
    finished_at: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))
    subject: str = ""
    """The import path of the measured loop."""

    @classmethod
    def of(
        cls, dataset: Dataset, collected: CollectedResults, *, run: str = "", subject: str = ""
    ) -> EvalReport:
        return cls(
            run=run,
            dataset=dataset.name,
            digest=dataset.digest,
            samples=len(dataset),
            results=list(collected.results),
            missing=list(collected.missing),
            subject=subject,
        )

    @classmethod
    def load(cls, path: str | Path) -> EvalReport:
        """Load a report that was saved as JSON. Raises UsageError if the file is no report."""
        try:
            return msgspec.json.decode(Path(path).read_bytes(), type=cls)
        except OSError as error:
            raise UsageError(
                f"the report {path} cannot be read: {os_reason(error)}; name a report that was "
                f"saved as JSON"
            ) from None
        except msgspec.MsgspecError as error:
            raise UsageError(
                f"{path} is no report of an evaluation: {json_reason(str(error))}"
            ) from None

    def save(self, path: str | Path) -> None:
        """Save the report as Markdown if the file name ends in .md, else as JSON."""
        file = Path(path)
        file.write_text(
            self.to_markdown(), encoding="utf-8"
        ) if file.suffix == ".md" else file.write_bytes(self.to_json())

    # --- numbers ---

    @property
    def passed(self) -> int:
        return sum(result.passed for result in self.results)

    @property
    def pass_rate(self) -> float:
        """Passed samples over all samples, including those with errors and those
        without a result.
        """
        return self.passed / self.samples if self.samples else 0.0

    @property
    def mean_score(self) -> float:
        """The mean score over all samples. A sample without a score counts as 0."""
        return (
            sum(result.score.value for result in self.results if result.score) / self.samples
            if self.samples
            else 0.0
        )

    @property
    def failures(self) -> list[EvalResult]:
        """The results that have a score and did not pass."""
        return [
            result
            for result in self.results
            if result.score is not None and not result.score.passed
        ]

    @property
    def errors(self) -> list[EvalResult]:
        """The results without a score: the loop raised, or its process died."""
        return [result for result in self.results if result.ended is not SampleEnd.SCORED]

    def latency(self, quantile: float) -> float | None:
        """A quantile of the seconds that the loop took, by nearest rank. None if no result has a
        time.
        """
        return percentile(
            (result.seconds for result in self.results if result.seconds is not None), quantile
        )

    def summary(self) -> dict[str, Any]:
        """The numbers of the report, by name."""
        return {
            "samples": self.samples,
            "passed": self.passed,
            "failed": len(self.failures),
            "errors": len(self.errors),
            "missing": len(self.missing),
            "pass_rate": self.pass_rate,
            "mean_score": self.mean_score,
            "latency_p50": self.latency(0.5),
            "latency_p95": self.latency(0.95),
        }

    # --- forms ---

    def to_json(self) -> bytes:
        """The report as JSON that `load` reads. The numbers come first, for other readers."""
        plain = {"summary": self.summary(), **msgspec.to_builtins(self)}
        return msgspec.json.format(msgspec.json.encode(plain))

    def to_markdown(self) -> str:
        lines = [
            f"# Evaluation {self.run}".rstrip(),
            "",
            f"{self.subject} on {self.dataset}".strip(),
            "",
        ]
        lines += [
            "| what | figure |",
            "|---|---:|",
            *(f"| {name} | {figure} |" for name, figure in self.figures()),
        ]
        return "\n".join(
            [
                *lines,
                *self._result_table("Failures", self.failures),
                *self._result_table("Errors", self.errors),
                *self._missing_list(),
                "",
            ]
        )

    def figures(self) -> list[tuple[str, str]]:
        """The numbers as pairs of label and text, for people."""
        p50, p95 = self.latency(0.5), self.latency(0.95)
        return [
            ("samples", str(self.samples)),
            ("passed", f"{self.passed} ({self.pass_rate:.1%})"),
            ("failed", str(len(self.failures))),
            ("errors", str(len(self.errors))),
            ("missing", str(len(self.missing))),
            ("mean score", f"{self.mean_score:.3f}"),
            ("latency p50", _format_seconds(p50)),
            ("latency p95", _format_seconds(p95)),
        ]

    def _result_table(self, title: str, results: Sequence[EvalResult]) -> list[str]:
        if not results:
            return []
        rows = [
            f"| {table_cell(result.sample_id)} | {result.ended} | {_format_score(result)} | "
            f"{table_cell(failure_reason(result))} |"
            for result in results
        ]
        return [
            "",
            f"## {title}",
            "",
            "| sample | ended | score | why |",
            "|---|---|---:|---|",
            *rows,
        ]

    def _missing_list(self) -> list[str]:
        return (
            ["", "## Missing", "", *(f"- {table_cell(each)}" for each in self.missing)]
            if self.missing
            else []
        )


class ReportNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a saved report, as `EvalReport.summary` returns them."""

    samples: int
    passed: int
    failed: int
    errors: int
    missing: int
    pass_rate: float
    mean_score: float
    latency_p50: float | None
    latency_p95: float | None


class SavedReport(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a saved report: its evaluation and its numbers."""

    run: str
    dataset: str
    subject: str
    finished_at: datetime
    summary: ReportNumbers


class SavedReports(NamedTuple):
    """The reports in a directory, the newest first, and the files that are no report."""

    reports: list[SavedReport]
    unreadable: list[Path]


def saved_reports(directory: Path) -> SavedReports:
    """Read the heads of all reports in a directory; a directory that does not exist has none."""
    reports, unreadable = [], []
    for path in sorted(directory.glob("*.json")):
        try:
            reports.append(msgspec.json.decode(path.read_bytes(), type=SavedReport))
        except (OSError, msgspec.MsgspecError):
            unreadable.append(path)
    reports.sort(key=lambda report: (report.finished_at, report.run), reverse=True)
    return SavedReports(reports, unreadable)


def failure_reason(result: EvalResult) -> str:
    """Why a sample did not pass: its error, or the reason of its score."""
    return result.error or (result.score.reason if result.score else "") or ""


def percentile(values: Iterable[float], quantile: float) -> float | None:
    """A quantile of values by nearest rank; None without values."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[min(max(-int(-quantile * len(ordered) // 1) - 1, 0), len(ordered) - 1)]


def _format_score(result: EvalResult) -> str:
    return "–" if result.score is None else f"{result.score.value:.3f}"


def _format_seconds(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def table_cell(text: str) -> str:
    """The text for a cell of a Markdown table: on one line, with `|` escaped."""
    return " ".join(text.split()).replace("|", "\\|")


class Comparison(NamedTuple):
    """The differences between two reports of one dataset."""

    before: EvalReport
    after: EvalReport
    improved: list[str]
    """Samples that pass only in the second report."""
    regressed: list[str]
    """Samples that pass only in the first report."""

    @classmethod
    def of(cls, before: EvalReport, after: EvalReport) -> Comparison:
        """Compare two reports. Raises UsageError if their datasets differ."""
        if before.digest != after.digest:
            raise UsageError(
                f"these are reports of different datasets ({before.dataset}, {before.samples} "
                f"samples; {after.dataset},"
                f" {after.samples} samples); run both on the same one"
            )
        passed_before = {result.sample_id for result in before.results if result.passed}
        passed_after = {result.sample_id for result in after.results if result.passed}
        return cls(
            before,
            after,
            sorted(passed_after - passed_before),
            sorted(passed_before - passed_after),
        )

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Rows for a table: the name of each figure, its two values, and their difference."""
        before, after = self.before.summary(), self.after.summary()
        return [
            (
                name,
                format_number(before[key]),
                format_number(after[key]),
                _difference(before[key], after[key], format_number),
            )
            for key, name, format_number in _COMPARED
        ]

    def to_markdown(self) -> str:
        lines = [f"# {self.before.run or 'before'} → {self.after.run or 'after'}", ""]
        lines += ["| what | before | after | difference |", "|---|---:|---:|---:|"]
        lines += [f"| {' | '.join(row)} |" for row in self.rows()]
        for title, ids in (("Improved", self.improved), ("Regressed", self.regressed)):
            lines += ["", f"## {title}: {len(ids)}", "", *(f"- {table_cell(each)}" for each in ids)]
        return "\n".join([*lines, ""])


def _format_count(number: float | None) -> str:
    return "–" if number is None else f"{number:g}"


def _format_percent(number: float | None) -> str:
    return "–" if number is None else f"{number:.1%}"


def _format_value(number: float | None) -> str:
    return "–" if number is None else f"{number:.3f}"


def _format_milliseconds(number: float | None) -> str:
    return "–" if number is None else f"{number * 1000:.1f} ms"


_COMPARED: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("passed", "passed", _format_count),
    ("failed", "failed", _format_count),
    ("errors", "errors", _format_count),
    ("missing", "missing", _format_count),
    ("pass_rate", "pass rate", _format_percent),
    ("mean_score", "mean score", _format_value),
    ("latency_p50", "latency p50", _format_milliseconds),
    ("latency_p95", "latency p95", _format_milliseconds),
)


def _difference(
    before: float | None, after: float | None, format_number: Callable[[float | None], str]
) -> str:
    if before is None or after is None:
        return "–"
    size = format_number(abs(after - before))
    if size == format_number(0.0):  # nothing is left of it in these digits
        return f"±{size}"
    return f"{'+' if after > before else '-'}{size}"
