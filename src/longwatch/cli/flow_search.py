"""`longwatch flow ls` and `longwatch flow prune`: find executions, and remove finished ones."""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longwatch.cli import execution_views, output
from longwatch.cli.flow import FlowArgument, Store, open_by_words
from longwatch.cli.option_values import duration, whole_number
from longwatch.cli.options import Json, Yes, valid_text
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

GraphName = Annotated[
    str | None,
    typer.Option(metavar="NAME", callback=valid_text, help="Only executions of this graph."),
]
States = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        metavar="STATE",
        callback=valid_text,
        help="Only executions in this state. Repeat it for several.",
    ),
]


def list_executions(  # noqa: PLR0913 - one argument an option
    flow: FlowArgument = None,
    *,
    graph: GraphName = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE=VALUE",
            callback=valid_text,
            help="Only if a value is so: = != < <= > >= or ^= (its start).",
        ),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", callback=valid_text, help="Only with this entry of the metadata."
        ),
    ] = None,
    state: States = None,
    archived: Annotated[
        bool, typer.Option("--archived", help="List archived executions too.")
    ] = False,
    text: Annotated[bool, typer.Option("--text", help="A VALUE is plain text, not JSON.")] = False,
    sort: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            callback=valid_text,
            help="created, updated or a node; with - the largest first.",
        ),
    ] = _NEWEST_FIRST,
    limit: Annotated[
        int,
        typer.Option(metavar="N", parser=whole_number(1, 100_000), help="Show at most N."),
    ] = 100,
    store: Store = None,
    json: Json = False,
) -> None:
    """List executions, newest first.

    All conditions have to hold. A VALUE is JSON or text, as for `longwatch flow
    set`. Quote comparisons for the shell: --where 'age>=18'.
    """
    from longwatch.app.flows import masked_url, only_graph  # noqa: PLC0415 - help must not wait for it

    filters = _parse_filters(where or (), metadata or (), as_text=text)
    conditions: dict[str, Any] = {"where": filters, "state": state, "include_archived": archived}
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


def prune(  # noqa: PLR0913 - one argument an option
    flow: FlowArgument = None,
    *,
    older_than: Annotated[
        float,
        typer.Option(
            metavar="DURATION",
            parser=duration(0, _LONGEST_AGE),
            help="Only those that last changed longer ago.",
        ),
    ],
    graph: GraphName = None,
    state: States = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
    yes: Yes = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Remove finished executions for good.

    Removes those that are done, failed, cancelled or archived, with their values
    and attempts, in short transactions. A STATE is one of these words.
    """
    from longwatch.app.flows import only_graph  # noqa: PLC0415 - help must not wait for it

    _, opening = open_by_words("prune", flow, "", store)
    with opening as opened:
        chosen: dict[str, Any] = {"older_than": older_than, "graph": graph, "states": state}
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


def add_commands(app: typer.Typer) -> None:
    """Add the commands to those of `longwatch flow`."""
    app.command("ls")(list_executions)
    app.command()(prune)


def _remove(flow: Flow, chosen: Mapping[str, Any], expected: int) -> int:
    """Remove executions, and show how many on a terminal. An interrupt says how many are gone."""
    removed = 0

    def show(count: int) -> None:
        nonlocal removed
        removed += count
        if is_shown:
            typer.echo(f"\r{removed} of {expected} executions removed", nl=False, err=True)

    def end_progress() -> None:
        if is_shown:
            typer.echo("\r\x1b[K", nl=False, err=True)

    is_shown = sys.stderr is not None and sys.stderr.isatty()
    try:
        return flow.prune(**chosen, on_progress=show)
    except KeyboardInterrupt:
        end_progress()
        done = output.pluralize(removed, "execution")
        typer.echo(f"longwatch: {done} removed so far; run it again to go on", err=True)
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
