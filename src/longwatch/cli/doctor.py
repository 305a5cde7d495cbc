"""`longwatch doctor`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longwatch.cli import output
from longwatch.cli.options import json_option, valid_text
from longwatch.cli.programs import config_option, state_dir_option

if TYPE_CHECKING:
    from longwatch.app.doctor.examination import Report

stores_option = click.option(
    "--store",
    metavar="URL",
    type=valid_text,
    multiple=True,
    help="A further store to check. Repeat it for several.",
)
EXIT_PROBLEMS = 1
_COLOURS = {"ok": "32", "warning": "33", "problem": "31"}
_STATUS_WIDTH = len("problem")


@click.command()
@stores_option
@config_option
@state_dir_option
@json_option
def doctor(
    *, store: tuple[str, ...], config: Path | None, state_dir: str | None, json: bool
) -> int:
    """Find what is wrong on this machine, and how to mend it.

    Checks clocks, disks, permissions, limits, settings, stores, timeouts and what
    runs. Changes nothing. Exits with 1 if there is a problem; warnings do not count.
    """
    from longwatch.app.doctor.checks import checks_of  # noqa: PLC0415 - help must not wait for what only the command needs
    from longwatch.app.doctor.examination import all_ok, examine  # noqa: PLC0415
    from longwatch.app.doctor.subject import find_subject  # noqa: PLC0415

    subject = find_subject(config, state_dir, store, os.environ)
    report = examine(subject, checks_of(subject))
    if json:
        output.print_result("", _report_json(report), as_json=True)
    else:
        _print_report(report)
    return 0 if all_ok(report) else EXIT_PROBLEMS


def _report_json(report: Report) -> dict[str, Any]:
    findings = [
        {
            "check": result.check,
            "status": finding.severity.value,
            "text": finding.text,
            "cure": finding.cure or None,
        }
        for result in report.results
        for finding in result.findings
    ]
    counts = _counts(report)
    return {
        "ok": counts["problem"] == 0,
        "problems": counts["problem"],
        "warnings": counts["warning"],
        "findings": findings,
    }


def _print_report(report: Report) -> None:
    from longwatch.core.sanitize import printable  # noqa: PLC0415
    from longwatch.observe.log_format import wants_colour  # noqa: PLC0415

    colour = wants_colour(1, os.environ)
    for status, line in _lines(report):
        mark = f"{status:<{_STATUS_WIDTH}}"
        if colour and status:
            mark = f"\x1b[{_COLOURS[status]}m{mark}\x1b[0m"
        click.echo(f"{mark}  {printable(line)}", color=True)
    counts = _counts(report)
    click.echo(
        f"{output.pluralize(counts['problem'], 'problem')}, "
        f"{output.pluralize(counts['warning'], 'warning')}, {counts['ok']} ok"
    )


def _lines(report: Report) -> Iterator[tuple[str, str]]:
    """The status and the text of each line; a cure has a line of its own without a status."""
    for result in report.results:
        for finding in result.findings:
            yield finding.severity.value, f"{result.check}: {finding.text}"
            if finding.cure:
                yield "", f"  → {finding.cure}"


def _counts(report: Report) -> dict[str, int]:
    from longwatch.app.doctor.findings import Severity  # noqa: PLC0415

    return {severity.value: report.count(severity) for severity in Severity}
