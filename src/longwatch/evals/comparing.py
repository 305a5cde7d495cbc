"""Two reports of one dataset, side by side."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from longwatch.errors import UsageError
from longwatch.evals.report import EvalReport, cell


class Comparison(NamedTuple):
    """What is different in the second of two reports."""

    before: EvalReport
    after: EvalReport
    improved: list[str]
    """Samples that pass now and did not."""
    regressed: list[str]
    """Samples that passed and do not now."""

    @classmethod
    def of(cls, before: EvalReport, after: EvalReport) -> Comparison:
        """UsageError for reports of different datasets."""
        if before.digest != after.digest:
            raise UsageError(
                f"these are reports of different datasets ({before.dataset}, {before.samples} "
                f"samples; {after.dataset},"
                f" {after.samples} samples); run both on the same one"
            )
        once = {result.sample_id for result in before.results if result.passed}
        now = {result.sample_id for result in after.results if result.passed}
        return cls(before, after, sorted(now - once), sorted(once - now))

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Each figure: its name, before, after, and the difference."""
        before, after = self.before.summary(), self.after.summary()
        return [
            (name, form(before[key]), form(after[key]), _difference(before[key], after[key], form))
            for key, name, form in _SHOWN
        ]

    def to_markdown(self) -> str:
        lines = [f"# {self.before.run or 'before'} → {self.after.run or 'after'}", ""]
        lines += ["| what | before | after | difference |", "|---|---:|---:|---:|"]
        lines += [f"| {' | '.join(row)} |" for row in self.rows()]
        for title, ids in (("Improved", self.improved), ("Regressed", self.regressed)):
            lines += ["", f"## {title}: {len(ids)}", "", *(f"- {cell(each)}" for each in ids)]
        return "\n".join([*lines, ""])


def _count(number: float | None) -> str:
    return "–" if number is None else f"{number:g}"


def _share(number: float | None) -> str:
    return "–" if number is None else f"{number:.1%}"


def _value(number: float | None) -> str:
    return "–" if number is None else f"{number:.3f}"


def _milliseconds(number: float | None) -> str:
    return "–" if number is None else f"{number * 1000:.1f} ms"


_SHOWN: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("passed", "passed", _count),
    ("failed", "failed", _count),
    ("errors", "errors", _count),
    ("missing", "missing", _count),
    ("pass_rate", "pass rate", _share),
    ("mean_score", "mean score", _value),
    ("latency_p50", "latency p50", _milliseconds),
    ("latency_p95", "latency p95", _milliseconds),
)


def _difference(
    before: float | None, after: float | None, form: Callable[[float | None], str]
) -> str:
    if before is None or after is None:
        return "–"
    sign = "+" if after > before else "-" if after < before else "±"
    return f"{sign}{form(abs(after - before))}"
