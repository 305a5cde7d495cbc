"""`longwatch flow ls` and `longwatch flow prune`: find executions, and remove finished ones."""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from longwatch.cli import execution_views, output
from longwatch.cli.flow import flow_argument, open_by_words, store_option
from longwatch.cli.option_values import duration, whole_number
from longwatch.cli.options import json_option, valid_text, yes_option
from longwatch.core.duration import format_duration
from longwatch.errors import UsageError

if TYPE_CHECKING:
    from longwatch.flow.flow import Flow
    from longwatch.flow.search_filters import Filter

_NEWEST_FIRST = "-created"
_LONGEST_AGE = 100 * 365 * 86_400.0
_COMPARISON = re.compile(
    r"(?P<name>.*?)(?P<operator>==|!=|<=|>=|\^=|=|<|>)(?P<value>.*)", re.DOTALL
)
_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "^=": lambda node, prefix: node.startswith(prefix),
}

graph_name_option = click.option(
    "--graph", metavar="NAME", type=valid_text, help="Only executions of this graph."
)
states_option = click.option(
    "--state",
    metavar="STATE",
    type=valid_text,
    multiple=True,
    help="Only executions in this state. Repeat it for several.",
)


@click.command("ls")
@flow_argument
@graph_name_option
@click.option(
    "--where",
    metavar="NODE=VALUE",
    type=valid_text,
    multiple=True,
    help="Only if a value is so: = != < <= > >= or ^= (its start).",
)
@click.option(
    "--metadata",
    metavar="KEY=VALUE",
    type=valid_text,
    multiple=True,
    help="Only with this entry of the metadata.",
)
@states_option
@click.option("--archived", is_flag=True, help="List archived executions too.")
@click.option("--text", is_flag=True, help="A VALUE is plain text, not JSON.")
@click.option(
    "--sort",
    metavar="KEY",
    type=valid_text,
    default=_NEWEST_FIRST,
    help="created, updated or a node; with - the largest first.",
)
@click.option(
    "--limit", metavar="N", type=whole_number(1, 100_000), default=100, help="Show at most N."
)
@store_option
@json_option
def list_executions(  # noqa: PLR0913 - one argument an option
    *,
    flow: tuple[str, ...],
    graph: str | None,
    where: tuple[str, ...],
    metadata: tuple[str, ...],
    state: tuple[str, ...],
    archived: bool,
    text: bool,
    sort: str,
    limit: int,
    store: str | None,
    json: bool,
) -> None:
    """List executions, newest first.

    All conditions have to hold. A VALUE is JSON or text, as for `longwatch flow
    set`. Quote comparisons for the shell: --where 'age>=18'.
    """
    from longwatch.app.flows import masked_url, only_graph  # noqa: PLC0415 - help must not wait for it

    filters = _parse_filters(where, metadata, as_text=text)
    conditions: dict[str, Any] = {
        "where": filters,
        "state": state or None,
        "include_archived": archived,
    }
    _, opening = open_by_words("ls", flow, "", store)
    with opening as opened:
        searched = only_graph(opened) if graph is None else graph
        found = opened.executions(searched, sort=sort, limit=limit + 1, **conditions)
        place = masked_url(opened)
    page = found[:limit]
    none = "no matching executions" if filters or state else "no executions"
    lines = (
        execution_views.summary_table(page)
        if page
        else [f"{none}{f' of graph {graph!r}' if graph else ''} in {place}"]
    )
    order = "newest" if sort == _NEWEST_FIRST else "first"
    more = [f"the {order} {limit}; more with --limit"] if len(found) > limit else []
    output.print_result(
        [*lines, *more], [execution_views.summary_json(each) for each in page], as_json=json
    )


@click.command()
@flow_argument
@click.option(
    "--older-than",
    metavar="DURATION",
    type=duration(0, _LONGEST_AGE),
    required=True,
    help="Only those that last changed longer ago.",
)
@graph_name_option
@states_option
@click.option("--dry-run", is_flag=True, help="Only count them.")
@yes_option
@store_option
@json_option
def prune(  # noqa: PLR0913 - one argument an option
    *,
    flow: tuple[str, ...],
    older_than: float,
    graph: str | None,
    state: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    store: str | None,
    json: bool,
) -> None:
    """Remove finished executions for good.

    Removes those that are done, failed, cancelled or archived, with their values
    and attempts, in short transactions. A STATE is one of these words.
    """
    from longwatch.app.flows import only_graph  # noqa: PLC0415 - help must not wait for it

    _, opening = open_by_words("prune", flow, "", store)
    with opening as opened:
        chosen: dict[str, Any] = {"older_than": older_than, "graph": graph, "states": state or None}
        count = opened.prune(**chosen, dry_run=True)
        if count and not dry_run:
            of_all = " of all graphs" if graph is None and only_graph(opened) is None else ""
            which = f"{output.pluralize(count, 'execution')}{of_all}, unchanged for "
            question = f"Remove {which}{format_duration(older_than)}, for good?"
            output.confirm(question, yes=yes)
            count = _remove(opened, chosen, count)
    done = "would be removed" if dry_run else "removed"
    output.print_result(
        f"{output.pluralize(count, 'execution')} {done}",
        {"executions": count, "removed": not dry_run},
        as_json=json,
    )


def add_commands(app: click.Group) -> None:
    """Add the commands to those of `longwatch flow`."""
    app.add_command(list_executions)
    app.add_command(prune)


def _remove(flow: Flow, chosen: Mapping[str, Any], expected: int) -> int:
    """Remove executions, and show how many on a terminal. An interrupt says how many are gone."""
    removed = 0

    def show(count: int) -> None:
        nonlocal removed
        removed += count
        if is_shown:
            click.echo(f"\r{removed} of {expected} executions removed", nl=False, err=True)

    def end_progress() -> None:
        if is_shown:
            click.echo("\r\x1b[K", nl=False, err=True)

    is_shown = sys.stderr is not None and sys.stderr.isatty()
    try:
        return flow.prune(**chosen, on_progress=show)
    except KeyboardInterrupt:
        end_progress()
        done = output.pluralize(removed, "execution")
        click.echo(f"longwatch: {done} removed so far; run it again to go on", err=True)
        raise
    finally:
        end_progress()


# --- arguments ---


def _parse_filters(where: Iterable[str], metadata: Iterable[str], *, as_text: bool) -> list[Filter]:
    from longwatch.flow import search_filters  # noqa: PLC0415 - help must not wait for it

    filters: list[Filter] = []
    for word in where:
        name, compare, given = _comparison(word)
        operand = _value(name, given, as_text=as_text)
        filters.append(_OPERATORS[compare](search_filters.value(name), operand))
    for word in metadata:
        name, equals, given = word.partition("=")
        if not equals:
            raise UsageError(f"{word!r} compares nothing; write it as KEY=VALUE, such as team=a")
        filters.append(search_filters.metadata(name) == _value(name, given, as_text=as_text))
    return filters


def _comparison(word: str) -> tuple[str, str, str]:
    found = _COMPARISON.fullmatch(word)
    if found is None or not found["name"].strip():
        raise UsageError(
            f"{word!r} compares nothing; write it as NODE=VALUE, such as country=CH or 'age>=18'"
        )
    return found["name"].strip(), found["operator"], found["value"]


def _value(name: str, given: str, *, as_text: bool) -> Any:
    """The operand of a comparison; nothing after the operator is empty text."""
    from longwatch.app.flows import parse_value  # noqa: PLC0415 - help must not wait for it

    return given if as_text or not given else parse_value(name, given)
