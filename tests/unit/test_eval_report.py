"""Reports: numbers over all samples, what there is to look at, and two of them side by side."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.errors import UsageError
from longwatch.evals import (
    CollectedResults,
    Comparison,
    Dataset,
    EvalReport,
    EvalResult,
    Sample,
    Score,
)
from longwatch.evals.report import percentile
from longwatch.evals.results import SampleEnd, read_result
from longwatch.runtime import MainLoopResult

NOON = datetime(2031, 5, 6, 12, tzinfo=UTC)


def scored(
    sample: str, value: float, *, passed: bool | None = None, reason: str = "", seconds: float = 0.1
) -> EvalResult:
    score = Score(value, value == 1.0 if passed is None else passed, reason)
    return EvalResult(sample, SampleEnd.SCORED, score=score, output=value, seconds=seconds)


def failed(
    sample: str, ended: SampleEnd = SampleEnd.ERROR, error: str = "RuntimeError: no"
) -> EvalResult:
    return EvalResult(sample, ended, error=error, attempt=3)


def report(*results: EvalResult, missing: tuple[str, ...] = (), **facts: Any) -> EvalReport:
    told = {
        "run": "night-1",
        "dataset": "qa.jsonl",
        "digest": "d1",
        "subject": "shop:agent",
        **facts,
    }
    whole = {"samples": len(results) + len(missing), "finished_at": NOON, **told}
    return EvalReport(results=list(results), missing=list(missing), **whole)


MIXED = report(
    scored("a", 1.0, seconds=0.01),
    scored("b", 0.5, reason="half of it", seconds=2.0),
    scored("c", 0.75, passed=True, seconds=0.02),
    failed("d"),
    failed("e", SampleEnd.CRASHED, "its process died or hung 3 times"),
    missing=("f", "g", "h"),
)


# --- numbers ---


def test_the_pass_rate_and_the_mean_are_over_all_samples_those_without_a_score_count_as_nothing() -> (  # noqa: E501 - one name
    None
):
    assert (2, 2 / 8, 2.25 / 8) == (MIXED.passed, MIXED.pass_rate, MIXED.mean_score)


def test_failures_and_errors_are_told_apart() -> None:
    assert (["b"], ["d", "e"]) == (
        [each.sample_id for each in MIXED.failures],
        [each.sample_id for each in MIXED.errors],
    )


def test_the_summary_has_every_number() -> None:
    assert {
        "samples": 8,
        "passed": 2,
        "failed": 1,
        "errors": 2,
        "missing": 3,
        "pass_rate": 0.25,
        "mean_score": 0.28125,
        "latency_p50": 0.02,
        "latency_p95": 2.0,
    } == MIXED.summary()


def test_without_results_there_is_no_latency_and_nothing_passed() -> None:
    empty = report(missing=("a",))
    assert (0.0, 0.0, None) == (empty.pass_rate, empty.mean_score, empty.latency(0.5))


def test_errors_have_no_part_in_the_latency() -> None:
    assert 0.1 == report(scored("a", 1.0), failed("b"), failed("c")).latency(0.95)


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=50), st.floats(0, 1))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(
    values: list[float], quantile: float
) -> None:
    found = percentile(values, quantile)
    rank = max(math.ceil(quantile * len(values)), 1)
    assert sorted(values)[rank - 1] == found


def test_the_percentiles_of_a_hundred_are_what_everybody_expects() -> None:
    values = [float(number) for number in range(1, 101)]
    assert (50.0, 95.0, 100.0, 1.0) == tuple(
        percentile(values, quantile) for quantile in (0.5, 0.95, 1.0, 0.0)
    )


# --- forms ---


def test_a_report_is_made_of_a_dataset_and_what_was_collected() -> None:
    dataset = Dataset([Sample("a", 1), Sample("b", 2)], name="pair")
    made = EvalReport.of(dataset, CollectedResults([scored("a", 1.0)], ["b"]), run="r", subject="s")
    assert ("r", "pair", dataset.digest, 2, ["b"], "s", 0.5) == (
        made.run,
        made.dataset,
        made.digest,
        made.samples,
        made.missing,
        made.subject,
        made.pass_rate,
    )


def test_what_is_saved_as_json_is_loaded_as_it_was(tmp_path: Path) -> None:
    MIXED.save(tmp_path / "report.json")
    assert MIXED == EvalReport.load(tmp_path / "report.json")


def test_the_json_has_the_numbers_in_front(tmp_path: Path) -> None:
    MIXED.save(tmp_path / "report.json")
    plain = json.loads((tmp_path / "report.json").read_text())
    assert ("summary", MIXED.summary()) == (next(iter(plain)), plain["summary"])
    assert {"value": 0.5, "passed": False, "reason": "half of it"} == plain["results"][1]["score"]


def test_the_markdown_has_the_figures_and_whatever_is_to_be_looked_at(tmp_path: Path) -> None:
    MIXED.save(tmp_path / "report.md")
    assert (
        (tmp_path / "report.md").read_text()
        == """\
# Evaluation night-1

shop:agent on qa.jsonl

| what | figure |
|---|---:|
| samples | 8 |
| passed | 2 (25.0%) |
| failed | 1 |
| errors | 2 |
| missing | 3 |
| mean score | 0.281 |
| latency p50 | 20.0 ms |
| latency p95 | 2.00 s |

## Failures

| sample | ended | score | why |
|---|---|---:|---|
| b | scored | 0.500 | half of it |

## Errors

| sample | ended | score | why |
|---|---|---:|---|
| d | error | – | RuntimeError: no |
| e | crashed | – | its process died or hung 3 times |

## Missing

- f
- g
- h
"""
    )


def test_where_all_is_well_there_is_nothing_to_look_at() -> None:
    assert "##" not in report(scored("a", 1.0)).to_markdown()


def test_a_text_that_would_break_a_table_stays_in_its_cell() -> None:
    text = report(scored("a|b", 0.0, reason="one\ntwo | three"), missing=("x\ny",)).to_markdown()
    assert "| a\\|b | scored | 0.000 | one two \\| three |" in text.splitlines()
    assert "- x y" in text.splitlines()


def test_a_file_that_is_no_report_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"^the report \S+/none.json cannot be read: no such file or directory; "
    ):
        EvalReport.load(tmp_path / "none.json")
    for text in ("not json", "[]", '{"run": "a"}', '{"run": 1}'):
        (tmp_path / "no.json").write_text(text)
        with pytest.raises(UsageError, match=r"^\S+/no.json is no report of an evaluation: "):
            EvalReport.load(tmp_path / "no.json")


# --- results as they arrive ---


def test_a_result_is_read_from_its_answer() -> None:
    result = scored("a", 1.0)
    body = json.loads(json.dumps({"request_id": "a", "output": _plain(result)}))
    assert result == read_result(body)


def test_an_answer_with_an_error_is_the_sample_of_its_request_id() -> None:
    answer = MainLoopResult[Any]("a", error="RuntimeError: no", attempt=3, completed_at=NOON)
    assert EvalResult("a", SampleEnd.ERROR, error="RuntimeError: no", attempt=3) == read_result(
        _plain(answer)
    )


@pytest.mark.parametrize(
    "body",
    [None, [], "text", {"id": 1}, {"request_id": "a", "output": {"score": 2}}, {"request_id": 5}],
)
def test_what_is_no_answer_is_none(body: Any) -> None:
    assert read_result(body) is None


def _plain(value: Any) -> Any:
    """As a mailbox has it."""
    return msgspec.to_builtins(value)


# --- two of them ---

BEFORE = report(scored("a", 1.0), scored("b", 0.0), scored("c", 1.0), failed("d"), run="old")
AFTER = report(
    scored("a", 1.0, seconds=0.05),
    scored("b", 1.0, seconds=0.05),
    scored("c", 0.5),
    missing=("d",),
    run="new",
)


def test_a_comparison_names_what_got_better_and_worse() -> None:
    found = Comparison.of(BEFORE, AFTER)
    assert (["b"], ["c"]) == (found.improved, found.regressed)


def test_a_sample_that_has_no_score_any_more_has_got_worse() -> None:
    assert ["a"] == Comparison.of(report(scored("a", 1.0)), report(missing=("a",))).regressed
    assert ["a"] == Comparison.of(report(failed("a")), report(scored("a", 1.0))).improved


def test_a_report_compared_to_itself_shows_no_difference() -> None:
    found = Comparison.of(MIXED, MIXED)
    assert ([], []) == (found.improved, found.regressed)
    assert {"±0", "±0.0%", "±0.000", "±0.0 ms"} == {row[3] for row in found.rows()}


def test_the_rows_show_each_figure_and_its_difference() -> None:
    assert [
        ("passed", "2", "2", "±0"),
        ("failed", "1", "1", "±0"),
        ("errors", "1", "0", "-1"),
        ("missing", "0", "1", "+1"),
        ("pass rate", "50.0%", "50.0%", "±0.0%"),
        ("mean score", "0.500", "0.625", "+0.125"),
        ("latency p50", "100.0 ms", "50.0 ms", "-50.0 ms"),
        ("latency p95", "100.0 ms", "100.0 ms", "±0.0 ms"),
    ] == Comparison.of(BEFORE, AFTER).rows()


def test_a_difference_too_small_for_its_digits_has_no_sign() -> None:
    slow, fast = (
        report(scored("a", 1.0, seconds=0.00002)),
        report(scored("a", 0.9999, seconds=0.00001)),
    )
    differences = {row[0]: row[3] for row in Comparison.of(slow, fast).rows()}
    assert ("±0.000", "±0.0 ms") == (differences["mean score"], differences["latency p50"])


def test_what_was_not_measured_has_no_difference() -> None:
    rows = {
        row[0]: row[1:]
        for row in Comparison.of(report(failed("a")), report(scored("a", 1.0))).rows()
    }
    assert ("–", "100.0 ms", "–") == rows["latency p50"]


def test_a_comparison_is_markdown_too() -> None:
    text = Comparison.of(BEFORE, AFTER).to_markdown().splitlines()
    assert "# old → new" == text[0]
    assert "| mean score | 0.500 | 0.625 | +0.125 |" in text
    assert ["## Improved: 1", "", "- b", "", "## Regressed: 1", "", "- c"] == text[-7:]


def test_an_id_of_two_lines_stays_one_item_of_the_markdown() -> None:
    found = Comparison.of(report(failed("x\n# y")), report(scored("x\n# y", 1.0)))
    assert "- x # y" in found.to_markdown().splitlines()


def test_reports_of_different_datasets_are_not_compared() -> None:
    with pytest.raises(UsageError) as refused:
        Comparison.of(BEFORE, report(scored("a", 1.0), dataset="other.jsonl", digest="d2"))
    assert (
        "these are reports of different datasets (qa.jsonl, 4 samples; other.jsonl, 1 "
        "samples); run both on the same one" == str(refused.value)
    )


def test_the_same_samples_in_another_file_are_the_same_dataset() -> None:
    assert ["b"] == Comparison.of(
        BEFORE, report(*AFTER.results, missing=("d",), dataset="copy.jsonl")
    ).improved
