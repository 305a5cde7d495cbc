"""`longwatch flow history`: how the attempts of an execution ended and its values changed."""

from __future__ import annotations

import json as json_
import time
from typing import TYPE_CHECKING

import click

from longwatch.cli.flow import execution_argument, open_by_words, store_option
from longwatch.cli.json_views import JsonObject, utc
from longwatch.cli.option_values import whole_number
from longwatch.cli.options import json_option, valid_text
from longwatch.cli.output import age, print_result, short_body, table
from longwatch.errors import UsageError

if TYPE_CHECKING:
    from longwatch.flow.history import HistoryEntry

_HEADERS = ("changed", "node", "state", "attempt", "cause", "revision", "value or error")


@click.command()
@execution_argument
@click.option("--node", metavar="NODE", type=valid_text, help="Only changes of this node.")
@click.option(
    "--limit",
    metavar="N",
    type=whole_number(1, 10_000),
    default=100,
    help="Show at most N, the newest.",
)
@store_option
@json_option
def history(
    *, execution: tuple[str, ...], node: str | None, limit: int, store: str | None, json: bool
) -> None:
    """Show how attempts ended and values changed, newest first."""
    from longwatch.app.flows import execution_history  # noqa: PLC0415 - help must not wait for it

    identity, opening = open_by_words("history", execution, "ID", store)
    if identity is None:
        raise UsageError("ID is missing; write: longwatch flow history module:flow ID")
    with opening as flow:
        found = execution_history(flow, identity, node=node, limit=limit)
    now = time.time()
    lines = table(_HEADERS, (_row(each, now) for each in found))
    what = f"node {node!r} of execution {identity}" if node else f"execution {identity}"
    print_result(
        lines if found else [f"no history of {what}"],
        [_entry_json(each) for each in found],
        as_json=json,
    )


def add_commands(app: click.Group) -> None:
    """Add the command to those of `longwatch flow`."""
    app.add_command(history)


def _row(entry: HistoryEntry, now: float) -> tuple[object, ...]:
    has_value = entry.revision is not None and entry.state != "unset"
    value = json_.dumps(entry.value, ensure_ascii=False) if has_value else entry.error or ""
    return (
        f"{age(max(now - entry.at, 0.0))} ago",
        entry.node,
        entry.state,
        entry.attempt,
        entry.end_cause,
        entry.revision,
        short_body(value.encode()) if value else "",
    )


def _entry_json(entry: HistoryEntry) -> JsonObject:
    started_at = None if entry.started_at is None else utc(entry.started_at)
    return {**entry._asdict(), "at": utc(entry.at), "started_at": started_at}
