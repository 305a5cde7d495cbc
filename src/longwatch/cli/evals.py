"""`longwatch eval …`: evaluate a loop on a dataset."""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longwatch.cli import output
from longwatch.cli.command_groups import CommandGroup
from longwatch.cli.option_values import duration, number, whole_number
from longwatch.cli.options import json_option, valid_text

if TYPE_CHECKING:
    from longwatch.evals.report import EvalReport, SavedReport

app = CommandGroup("eval", help="Evaluate a loop on a dataset, and compare evaluations.")

STATE_DIR = Path(".longwatch")
DEFAULT_STORE = "sqlite:///.longwatch/evals.db"
store_option = click.option(
    "--store", metavar="URL", type=valid_text, default=DEFAULT_STORE, help="The store URL."
)


pass_rate_option = click.option(
    "--min-pass-rate",
    metavar="RATE",
    type=number(0, 1),
    help="Exit with 1 below this pass rate, a number from 0 to 1.",
)
timeout_option = click.option(
    "--sample-timeout",
    metavar="DURATION",
    type=duration(1, 86_400),
    default=600,
    help="Time without a heartbeat after which a sample has hung.",
)


@app.command("run")
@click.argument(
    "dataset",
    metavar="DATASET",
    type=click.Path(path_type=Path),
    help="A file with one JSON object a line.",
)
@click.argument("target", metavar="MODULE:LOOP", help="Import path of the loop.")
@click.option(
    "--evaluator",
    metavar="MODULE:FUNCTION",
    default="longwatch.evals:exact_match",
    help="Import path of a function that scores (output, expected).",
)
@click.option(
    "--concurrency",
    metavar="N",
    type=whole_number(1, 1000),
    default=8,
    help="Samples at a time in each process.",
)
@click.option(
    "--processes",
    metavar="N",
    type=whole_number(1, 256),
    default=1,
    help="Number of worker processes, 256 at most.",
)
@click.option(
    "--attempts",
    metavar="N",
    type=whole_number(1, 100),
    default=3,
    help="Attempts at a sample that fails or crashes.",
)
@timeout_option
@pass_rate_option
@store_option
@json_option
def run_(  # noqa: PLR0913 - one argument an option
    *,
    dataset: Path,
    target: str,
    evaluator: str,
    concurrency: int,
    processes: int,
    attempts: int,
    sample_timeout: float,
    min_pass_rate: float | None,
    store: str,
    json: bool,
) -> int:
    """Run every sample through a loop, score it and report.

    `longwatch eval resume ID` continues an evaluation that was interrupted or
    killed. The report is in .longwatch/evals, as Markdown and JSON.
    """
    from longwatch.app import eval_runner  # noqa: PLC0415 - help must not wait for what only running needs
    from longwatch.app.evaluation import EvalSpec, new_run_id  # noqa: PLC0415
    from longwatch.evals.dataset import Dataset  # noqa: PLC0415

    facts = EvalSpec(
        run=new_run_id(),
        store=store,
        loop=target,
        evaluator=evaluator,
        concurrency=concurrency,
        processes=processes,
        attempts=attempts,
        sample_timeout=sample_timeout,
    )
    go_on = _resume_command(facts.run, store)
    report = eval_runner.run(
        facts,
        Dataset.load(dataset),
        state=STATE_DIR,
        environ=dict(os.environ),
        resume_command=go_on,
    )
    return _print_report(report, min_pass_rate, as_json=json)


@app.command()
@click.argument("run", metavar="ID", help="ID of the evaluation.")
@pass_rate_option
@store_option
@json_option
def resume(*, run: str, min_pass_rate: float | None, store: str, json: bool) -> int:
    """Continue an evaluation that was interrupted.

    Finished samples do not run again.
    """
    from longwatch.app import eval_runner  # noqa: PLC0415 - help must not wait for what only running needs

    report = eval_runner.resume(
        run,
        store=store,
        state=STATE_DIR,
        environ=dict(os.environ),
        resume_command=_resume_command(run, store),
    )
    return _print_report(report, min_pass_rate, as_json=json)


@app.command("ls")
@json_option
def list_reports(*, json: bool) -> None:
    """List the saved reports, newest first.

    Evaluations without a report follow, with the command that continues them.
    """
    from longwatch.evals.report import saved_reports  # noqa: PLC0415 - help must not wait for what only the command needs

    directory = STATE_DIR / "evals"
    found = saved_reports(directory)
    rows = [
        (
            report.run,
            report.finished_at.astimezone().strftime("%Y-%m-%d %H:%M:%S"),
            f"{report.subject} on {report.dataset}",
            report.summary.samples,
            report.summary.passed,
            f"{report.summary.mean_score:.3f}",
        )
        for report in found.reports
    ]
    head = ("evaluation", "finished", "what", "samples", "passed", "score")
    lines = [
        *(output.table(head, rows) if rows else ()),
        *_unfinished_lines({report.run for report in found.reports}),
    ]
    for path in found.unreadable:
        click.echo(f"{path} is no report of an evaluation; delete it", err=True)
    output.print_result(
        lines or [f"no reports in {directory}; `longwatch eval run` makes one"],
        [_report_json(report) for report in found.reports],
        as_json=json,
    )


def _unfinished_lines(finished: Container[str]) -> list[str]:
    """A line for each evaluation in the default store that has no report."""
    from longwatch.app.evaluation import evaluation_ids  # noqa: PLC0415
    from longwatch.app.mailboxes import has_mailboxes, opened_store  # noqa: PLC0415
    from longwatch.errors import LongwatchError  # noqa: PLC0415

    if not (STATE_DIR / "evals.db").exists():
        return []
    try:
        with opened_store(DEFAULT_STORE) as store:
            known = evaluation_ids(store) if has_mailboxes(store) else []
    except LongwatchError as error:
        click.echo(f"cannot list evaluations without a report: {error}", err=True)
        return []
    return [
        f"{run} has no report; if it was interrupted, continue it with `longwatch eval resume "
        f"{run}`"
        for run in sorted(known, reverse=True)
        if run not in finished
    ]


def _report_json(report: SavedReport) -> dict[str, Any]:
    import msgspec  # noqa: PLC0415

    return {
        "run": report.run,
        "finished_at": report.finished_at.timestamp(),
        "loop": report.subject,
        "dataset": report.dataset,
        **msgspec.structs.asdict(report.summary),
    }


@app.command()
@click.argument("before", metavar="A", help="ID of an evaluation, or its report as a JSON file.")
@click.argument("after", metavar="B", help="Another evaluation of the same dataset.")
@json_option
def compare(*, before: str, after: str, json: bool) -> None:
    """Compare two evaluations of one dataset."""
    from longwatch.evals.report import Comparison  # noqa: PLC0415 - help must not wait for what only the command needs

    found = Comparison.of(_load_report(before), _load_report(after))
    facts: dict[str, Any] = {
        "before": found.before.summary(),
        "after": found.after.summary(),
        "improved": found.improved,
        "regressed": found.regressed,
    }
    lines = output.table(("what", "before", "after", "difference"), found.rows())
    listed = [
        f"{word}: {', '.join(ids)}"
        for word, ids in (("improved", found.improved), ("regressed", found.regressed))
        if ids
    ]
    output.print_result([*lines, *listed], facts, as_json=json)


def _resume_command(run: str, store: str) -> str:
    """The command that resumes the evaluation."""
    from longwatch.core.masking import mask_text  # noqa: PLC0415

    return f"longwatch eval resume {run}" + (
        "" if store == DEFAULT_STORE else f" --store {mask_text(store)}"
    )


def _load_report(named: str) -> EvalReport:
    from longwatch.errors import UsageError  # noqa: PLC0415
    from longwatch.evals.report import EvalReport  # noqa: PLC0415

    kept = STATE_DIR / "evals" / f"{named}.json"
    found = [path for path in (kept, Path(named)) if os.path.exists(path)]  # noqa: PTH110 - never raises
    if not found:
        raise UsageError(
            f"no report {named!r}: there is no {kept}, nor a file of that name; `longwatch "
            f"eval ls` lists the reports"
        )
    return EvalReport.load(found[0])


def _print_report(report: EvalReport, min_pass_rate: float | None, *, as_json: bool) -> int:
    from longwatch.app.eval_runner import exit_code_for  # noqa: PLC0415
    from longwatch.evals.report import failure_reason  # noqa: PLC0415

    worst = [*report.errors, *report.failures][:10]
    rows = [
        (
            result.sample_id,
            result.ended.value,
            "" if result.score is None else f"{result.score.value:.3f}",
            failure_reason(result),
        )
        for result in worst
    ]
    lines = output.key_value_lines(dict(report.figures()))
    shown = ["", *output.table(("sample", "ended", "score", "why"), rows)] if rows else []
    where = f"evaluation {report.run}: {STATE_DIR / 'evals' / report.run}.md"
    output.print_result(
        [*lines, *shown, "", where], {"run": report.run, **report.summary()}, as_json=as_json
    )
    return exit_code_for(report, min_pass_rate)
