"""`longwatch flow …`: run workers for graphs, and manage executions."""

from __future__ import annotations

import json as json_
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import click

from longwatch.cli import execution_views, output
from longwatch.cli.command_groups import CommandGroup
from longwatch.cli.option_values import whole_number
from longwatch.cli.options import DEFAULT_STORE, Function, json_option, valid_text
from longwatch.cli.worker import (
    log_format_option,
    log_level_option,
    processes_option,
    run_workers,
    state_dir_option,
)
from longwatch.errors import UsageError

if TYPE_CHECKING:
    from longwatch.flow.flow import Flow

FLOW_VARIABLE = "LONGWATCH_FLOW"
"""The environment variable that replaces MODULE:FLOW."""


def _argument(name: str, metavar: str, text: str) -> Callable[[Function], Function]:
    return click.argument(name, metavar=metavar, type=valid_text, nargs=-1, help=text)


flow_argument = _argument("flow", "[MODULE:FLOW]", "Import path of the flow.")
execution_argument = _argument(
    "execution", "[MODULE:FLOW] ID", "Import path of the flow; ID of the execution."
)
node_argument = _argument(
    "node",
    "[MODULE:FLOW] ID NODE",
    "Import path of the flow; ID of the execution; name of the node.",
)
store_option = click.option(
    "--store",
    metavar="URL",
    type=valid_text,
    help="The store URL, instead of a flow. [LONGWATCH_STORE, else sqlite:///longwatch.db]",
)
limit_option = click.option(
    "--limit",
    metavar="N",
    type=whole_number(1, 100_000),
    default=100,
    help="Show at most N, the newest.",
)


@click.group("flow", cls=CommandGroup)
@click.pass_context
def app(context: click.Context) -> None:
    """Run workers for durable graphs, and manage executions.

    The import path of the flow comes first: `longwatch flow explain scrape:flow ID`.
    It may be left out if LONGWATCH_FLOW is set. `ls`, `show`, `history`, `stats`
    and `prune` need no code: they take --store URL instead.
    """
    from longwatch.cli.main import unblock_signals  # noqa: PLC0415 - which imports this

    if context.invoked_subcommand != "work":  # which unblocks them when its handlers are installed
        unblock_signals()


@app.command()
@_argument("target", "[MODULE:FLOW]", "Import path of the flow.")
@click.option(
    "--concurrency",
    metavar="N",
    type=whole_number(1, 10_000),
    help="Nodes at a time in each process. [8]",
)
@processes_option
@click.option(
    "--name",
    metavar="NAME",
    default="flow",
    show_default=False,
    help="Name of the processes in logs. [flow]",
)
@click.option(
    "--health-port",
    metavar="PORT",
    type=whole_number(0, 65_535),
    help="Port of health and metrics. [none]",
)
@click.option("--health-host", metavar="HOST", help="Address of health and metrics. [0.0.0.0]")
@state_dir_option
@log_level_option
@log_format_option
def work(  # noqa: PLR0913 - one argument an option
    *,
    target: tuple[str, ...],
    concurrency: int | None,
    processes: int,
    name: str,
    health_port: int | None,
    health_host: str | None,
    state_dir: str | None,
    log_level: str | None,
    log_format: str | None,
) -> int:
    """Compute the nodes that are ready, in worker processes.

    The parent process restarts workers that die or hang; other workers retry their
    nodes at once. SIGTERM and Ctrl-C finish the nodes in flight; SIGHUP restarts
    the workers one after another. Exits as `longwatch worker` does.
    """
    from longwatch.workers.import_path import FLOW_WORK_VARIABLE  # noqa: PLC0415
    from longwatch.workers.preflight import split_import_path  # noqa: PLC0415 - help must not wait for what only running needs

    named, _ = _parse_words("work", target)
    split_import_path(flow := _require_flow(named, "work"))
    options = {} if concurrency is None else {"concurrency": concurrency}
    return run_workers(
        flow,
        processes=processes,
        name=name,
        health_port=health_port,
        health_host=health_host,
        state_dir=state_dir,
        log_level=log_level,
        log_format=log_format,
        env={FLOW_WORK_VARIABLE: json_.dumps(options)},
    )


@app.command()
@execution_argument
@limit_option
@click.option(
    "--errors", is_flag=True, help="Show errors in full, of the newest attempts that failed."
)
@store_option
@json_option
def show(
    *, execution: tuple[str, ...], limit: int, errors: bool, store: str | None, json: bool
) -> None:
    """Show the values and attempts of an execution."""
    from longwatch.app.flows import view_execution  # noqa: PLC0415 - help must not wait for it

    named, [identity] = _parse_words("show", execution, "ID")
    with _open_to_read(named, store) as opened:
        found = view_execution(opened, identity)
    attempts = execution_views.choose_attempts(found.attempts, limit, errors_first=errors)
    output.print_result(
        [
            *execution_views.execution_lines(found, attempts),
            *(execution_views.error_lines(attempts) if errors else ()),
        ],
        execution_views.execution_json(found, attempts, with_tracebacks=errors),
        as_json=json,
    )


@app.command()
@execution_argument
@json_option
def explain(*, execution: tuple[str, ...], json: bool) -> None:
    """Show for every node what it waits for."""
    named, [identity] = _parse_words("explain", execution, "ID")
    with _open_existing(named, "explain") as flow:
        found = flow.execution(identity).explain()
    output.print_result(
        execution_views.explanation_lines(found, _require_flow(named, "explain")),
        execution_views.explanation_json(found),
        as_json=json,
    )


@app.command()
@_argument(
    "graph",
    "[MODULE:FLOW] [NAME]",
    "Import path of the flow; name of the graph, if there are several.",
)
@click.option(
    "--version", metavar="VERSION", help="Version of the graph. [the last one registered]"
)
@click.option(
    "--execution", metavar="ID", type=valid_text, help="Show the state of this execution."
)
@click.option("--mermaid", is_flag=True, help="Print a Mermaid flowchart.")
@json_option
def graph(
    *, graph: tuple[str, ...], version: str | None, execution: str | None, mermaid: bool, json: bool
) -> None:
    """Draw a graph, or the state of an execution."""
    from longwatch.app.flows import find_graph, graph_and_state, load_flow  # noqa: PLC0415 - help must not wait for it
    from longwatch.flow import diagram  # noqa: PLC0415

    named, words = _parse_words("graph", graph, optional="NAME")
    draw = diagram.mermaid_diagram if mermaid else diagram.text_diagram
    if execution is not None:
        if words or version is not None:
            raise UsageError("an execution is of one graph; leave out its name and --version")
        with _open_existing(named, "graph") as flow:
            drawn_graph, state = graph_and_state(flow, execution)
            text = draw(drawn_graph, state)
    else:
        with load_flow(_require_flow(named, "graph")) as flow:
            drawn_graph = find_graph(flow, next(iter(words), None), version)
            text = draw(drawn_graph)
    output.print_result(
        text.splitlines(), execution_views.graph_json(drawn_graph, execution, text), as_json=json
    )


as_text_option = click.option("--text", is_flag=True, help="The values are plain text, not JSON.")


@app.command()
@_argument(
    "words",
    "[MODULE:FLOW] GRAPH [NODE=VALUE]...",
    "Import path of the flow; name of the graph; values of inputs.",
)
@click.option(
    "--key",
    metavar="KEY",
    type=valid_text,
    help="Start only one execution for this key; later calls return it.",
)
@click.option(
    "--version",
    metavar="VERSION",
    type=valid_text,
    help="Version of the graph. [the last one registered]",
)
@as_text_option
@json_option
def start(
    *, words: tuple[str, ...], key: str | None, version: str | None, text: bool, json: bool
) -> None:
    """Start an execution of a graph.

    `longwatch flow work` computes it. Creates a SQLite file that does not exist. A
    VALUE is JSON or text, as for `longwatch flow set`.
    """
    from longwatch.app.flows import load_flow  # noqa: PLC0415 - help must not wait for it

    named, [graph, *assignments] = _parse_words("start", words, "GRAPH", more=True)
    values = _parse_assignments(assignments, as_text=text)
    with load_flow(_require_flow(named, "start")) as flow:
        started = flow.start(graph, values, version=version, idempotency_key=key)
        revision = started.revision
    output.print_result(
        f"execution {started.id} of {started.graph} {started.version}, at revision {revision}",
        {
            "execution": started.id,
            "graph": started.graph,
            "version": started.version,
            "revision": revision,
        },
        as_json=json,
    )


@app.command("set")
@_argument(
    "assignments",
    "[MODULE:FLOW] ID NODE=VALUE...",
    "Import path of the flow; ID of the execution; values of inputs.",
)
@as_text_option
@json_option
def set_(*, assignments: tuple[str, ...], text: bool, json: bool) -> None:
    """Set inputs of an execution in one transaction.

    Workers then compute the nodes that depend on them.

    A VALUE is JSON. A value that does not begin like JSON or a number is text:
    `url=https://example.org` needs no quotes, a date needs quotes or --text.
    """
    named, [identity, *words] = _parse_words("set", assignments, "ID", "NODE=VALUE", more=True)
    values = _parse_assignments(words, as_text=text)
    with _open_existing(named, "set") as flow:
        revision = flow.execution(identity).set(values)
    _print_revision(identity, revision, "has its inputs", as_json=json)


@app.command()
@_argument(
    "nodes",
    "[MODULE:FLOW] ID NODE...",
    "Import path of the flow; ID of the execution; names of inputs.",
)
@json_option
def unset(*, nodes: tuple[str, ...], json: bool) -> None:
    """Unset inputs of an execution in one transaction.

    Values that were computed from them are cleared.
    """
    named, [identity, *names] = _parse_words("unset", nodes, "ID", "NODE", more=True)
    with _open_existing(named, "unset") as flow:
        revision = flow.execution(identity).unset(*names)
    _print_revision(identity, revision, f"has no {', '.join(names)}", as_json=json)


@app.command()
@node_argument
@json_option
def retry(*, node: tuple[str, ...], json: bool) -> None:
    """Retry a node now, with all its attempts.

    The node has failed for good or waits for its next attempt.
    """
    change_node("retry", node, "tries {node} again", as_json=json)


@app.command()
@node_argument
@json_option
def abandon(*, node: tuple[str, ...], json: bool) -> None:
    """Abandon the running attempt of a node.

    The node is retried if it has attempts left.
    """
    change_node("abandon", node, "has given up its attempt at {node}", as_json=json)


@app.command()
@execution_argument
@json_option
def cancel(*, execution: tuple[str, ...], json: bool) -> None:
    """Cancel an execution for good; its values stay."""
    change_execution("cancel", execution, "is cancelled", as_json=json)


@app.command()
@flow_argument
@json_option
def sweep(*, flow: tuple[str, ...], json: bool) -> None:
    """Reclaim the nodes of dead workers now.

    Also continues stalled executions. Every worker sweeps periodically.
    """
    named, _ = _parse_words("sweep", flow)
    with _open_existing(named, "sweep") as opened:
        moved = opened.sweep()
    output.print_result(f"{output.pluralize(moved, 'row')} moved", {"moved": moved}, as_json=json)


def change_node(command: str, words: Sequence[str] | None, what: str, *, as_json: bool) -> None:
    """Run a command on a node: the method of the execution that has its name."""
    named, [identity, name] = _parse_words(command, words, "ID", "NODE")
    with _open_existing(named, command) as flow:
        revision: int = getattr(flow.execution(identity), command)(name)
    _print_revision(identity, revision, what.format(node=name), as_json=as_json)


def change_execution(
    command: str, words: Sequence[str] | None, what: str, *, as_json: bool
) -> None:
    """Run a command on an execution: the method that has its name."""
    named, [identity] = _parse_words(command, words, "ID")
    with _open_existing(named, command) as flow:
        revision: int = getattr(flow.execution(identity), command)()
    _print_revision(identity, revision, what, as_json=as_json)


# --- arguments ---


def _parse_words(
    command: str,
    words: Sequence[str] | None,
    *required: str,
    optional: str = "",
    more: bool = False,
) -> tuple[str | None, list[str]]:
    """Split the words into the import path of the flow, None if missing, and the others. Raises
    UsageError if there are too few or too many words.
    """
    given = list(words or ())
    flow = given.pop(0) if given and ":" in given[0].partition("=")[0] else None
    most = None if more else len(required) + bool(optional)
    if len(given) < len(required):
        raise UsageError(f"{required[len(given)]} is missing; write: {_usage(command, *required)}")
    if most is not None and len(given) > most:
        if flow is None and ":" not in given[0]:
            raise UsageError(
                f"{given[0]!r} is no import path; write: "
                f"{_usage(command, *required, *filter(None, [optional]))}"
            )
        raise UsageError(
            f"{given[most]!r} is too much; write: "
            f"{_usage(command, *required, *filter(None, [optional]))}"
        )
    return flow, given


def _usage(command: str, *required: str) -> str:
    return " ".join(("longwatch flow", command, "module:flow", *required))


def _require_flow(named: str | None, command: str) -> str:
    """The import path of the flow, from the command line or the environment. Raises UsageError if
    there is none.
    """
    target = named or os.environ.get(FLOW_VARIABLE, "")
    if not target:
        raise UsageError(
            f"name the flow first, as in `longwatch flow {command} scrape:flow …`, or set "
            f"{FLOW_VARIABLE}: its code is needed"
        )
    return target


def _open_existing(named: str | None, command: str) -> AbstractContextManager[Flow]:
    """Open a flow whose store exists."""
    from longwatch.app.flows import existing_flow  # noqa: PLC0415 - help must not wait for what only commands need

    return existing_flow(_require_flow(named, command))


def _open_to_read(named: str | None, store: str | None) -> AbstractContextManager[Flow]:
    """Open a flow, or a store without the code of its graphs."""
    from longwatch.app.flows import existing_flow, existing_flow_store  # noqa: PLC0415 - help must not wait for what only commands need

    if store is not None and not store.strip():
        raise UsageError("--store is empty; give the URL of a store, or leave --store out")
    if named and store:
        raise UsageError("a flow has its own store; name the flow or give --store, not both")
    target = named or ("" if store else os.environ.get(FLOW_VARIABLE, ""))
    if target:
        return existing_flow(target)
    named_store = store or os.environ.get("LONGWATCH_STORE")
    return existing_flow_store(named_store or DEFAULT_STORE, is_explicit=bool(named_store))


def open_by_words(
    command: str, words: Sequence[str] | None, optional: str, store: str | None
) -> tuple[str | None, AbstractContextManager[Flow]]:
    """Open the flow or the store of a command that needs no code; also return its optional word."""
    named, others = _parse_words(command, words, optional=optional)
    return next(iter(others), None), _open_to_read(named, store)


def _parse_assignments(words: Sequence[str], *, as_text: bool) -> dict[str, Any]:
    """The values of NODE=VALUE words, by node."""
    from longwatch.app.flows import parse_value  # noqa: PLC0415 - help must not wait for it

    pairs = [_assignment(word) for word in words]
    values = {node: value if as_text else parse_value(node, value) for node, value in pairs}
    if len(values) < len(pairs):
        nodes = [node for node, _ in pairs]
        twice = ", ".join(node for node in values if nodes.count(node) > 1)
        raise UsageError(f"more than one value for {twice}; set each node once")
    return values


def _assignment(word: str) -> tuple[str, str]:
    node, equals, value = word.partition("=")
    if not equals or not node:
        raise UsageError(
            f"{word!r} sets nothing; write it as NODE=VALUE, such as url=https://example.org"
        )
    return node, value


def _print_revision(identity: str, revision: int, what: str, *, as_json: bool) -> None:
    text = f"execution {identity} {what}, at revision {revision}"
    output.print_result(text, {"execution": identity, "revision": revision}, as_json=as_json)
