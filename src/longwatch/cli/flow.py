"""`longwatch flow …`: compute graphs, and look after their executions."""

from __future__ import annotations

import json as json_
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longwatch.cli import execution_views, output
from longwatch.cli.option_values import whole_number
from longwatch.cli.options import DEFAULT_STORE, Json, valid_text
from longwatch.cli.worker import LogFormat, LogLevel, Processes, StateDir, run_workers
from longwatch.errors import UsageError

if TYPE_CHECKING:
    from longwatch.flow.flow import Flow

app = typer.Typer(
    help="Durable graphs: compute them, and look after executions.\n\n"
    "The flow comes first, as module:name: `longwatch flow explain scrape:flow ID`.\n"
    "LONGWATCH_FLOW in the environment stands for it. `ls` and `show` need no code:\nthey "
    "take --store URL as well.",
    no_args_is_help=True,
)

FLOW_VARIABLE = "LONGWATCH_FLOW"
"""The variable that stands for MODULE:FLOW."""


def _argument(metavar: str, text: str) -> Any:
    return typer.Argument(metavar=metavar, show_default=False, callback=valid_text, help=text)


FlowArgument = Annotated[list[str] | None, _argument("[MODULE:FLOW]", "The Flow.")]
ExecutionArguments = Annotated[
    list[str] | None, _argument("[MODULE:FLOW] ID", "The Flow, and the execution.")
]
NodeArguments = Annotated[
    list[str] | None, _argument("[MODULE:FLOW] ID NODE", "The Flow, the execution, and its node.")
]
Store = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        callback=valid_text,
        help="A store, instead of a flow. [LONGWATCH_STORE, else sqlite:///longwatch.db]",
    ),
]
Limit = Annotated[
    int,
    typer.Option(
        metavar="N", parser=whole_number(1, 100_000), help="So many at the most, the newest."
    ),
]


@app.callback()
def group(context: typer.Context) -> None:
    from longwatch.cli.main import unblock_signals  # noqa: PLC0415 - which imports this

    if context.invoked_subcommand != "work":  # which lets them through when it is ready for them
        unblock_signals()


@app.command()
def work(  # noqa: PLR0913, PLR0917 - one argument an option, and typer passes them by name
    target: FlowArgument = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            metavar="N", parser=whole_number(1, 10_000), help="Nodes at a time in each process. [8]"
        ),
    ] = None,
    processes: Processes = 1,
    name: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="What the processes are called in logs. [flow]", show_default=False
        ),
    ] = "flow",
    health_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            parser=whole_number(0, 65_535),
            help="Where health and metrics are. [nowhere]",
        ),
    ] = None,
    health_host: Annotated[
        str | None, typer.Option(metavar="HOST", help="On which address. [every one]")
    ] = None,
    state_dir: StateDir = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> int:
    """Compute what is ready, in worker processes.

    As `longwatch worker` does with loops: a process that dies or hangs is replaced,
    and what it was at is tried by others at once. SIGTERM and Ctrl-C finish what is
    in flight; SIGHUP restarts the processes one after another.
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


@app.command("ls")
def list_executions(
    flow: FlowArgument = None,
    *,
    graph: Annotated[
        str | None,
        typer.Option(metavar="NAME", callback=valid_text, help="Only those of this graph."),
    ] = None,
    limit: Limit = 100,
    store: Store = None,
    json: Json = False,
) -> None:
    """List executions, the newest first."""
    from longwatch.app.flows import masked_url  # noqa: PLC0415 - help must not wait for it

    named, _ = _parse_words("ls", flow)
    with _open_to_read(named, store) as opened:
        found = opened.executions(graph=graph, limit=limit + 1)
        where = masked_url(opened)
    page = found[:limit]
    text = (
        execution_views.summary_table(page)
        if page
        else [f"no executions{f' of graph {graph!r}' if graph else ''} in {where}"]
    )
    more = [f"the newest {limit}; more with --limit"] if len(found) > limit else []
    output.print_result(
        [*text, *more], [execution_views.summary_json(each) for each in page], as_json=json
    )


@app.command()
def show(
    execution: ExecutionArguments = None,
    *,
    limit: Limit = 100,
    errors: Annotated[
        bool,
        typer.Option("--errors", help="The errors of its attempts in full, with tracebacks."),
    ] = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Show an execution with its values and its attempts."""
    from longwatch.app.flows import view_execution  # noqa: PLC0415 - help must not wait for it

    named, [identity] = _parse_words("show", execution, "ID")
    with _open_to_read(named, store) as opened:
        found = view_execution(opened, identity)
    attempts = found.attempts[-limit:]
    output.print_result(
        [
            *execution_views.execution_lines(found, attempts),
            *(execution_views.error_lines(attempts) if errors else ()),
        ],
        execution_views.execution_json(found, attempts, with_tracebacks=errors),
        as_json=json,
    )


@app.command()
def explain(execution: ExecutionArguments = None, *, json: Json = False) -> None:
    """Say for every node what it waits for."""
    named, [identity] = _parse_words("explain", execution, "ID")
    with _open_existing(named, "explain") as flow:
        found = flow.execution(identity).explain()
    output.print_result(
        str(found).splitlines(), execution_views.explanation_json(found), as_json=json
    )


@app.command()
def graph(
    graph: Annotated[
        list[str] | None,
        _argument("[MODULE:FLOW] [NAME]", "The Flow, and its graph if it has several."),
    ] = None,
    *,
    version: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Of the graph. [the one given last]")
    ] = None,
    execution: Annotated[
        str | None,
        typer.Option(metavar="ID", callback=valid_text, help="As this execution stands."),
    ] = None,
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="As the source of a Mermaid flowchart.")
    ] = False,
    json: Json = False,
) -> None:
    """Draw a graph, or an execution of it as it stands."""
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


AsText = Annotated[bool, typer.Option("--text", help="The values are plain text, not JSON.")]


@app.command()
def start(
    words: Annotated[
        list[str] | None,
        _argument(
            "[MODULE:FLOW] GRAPH [NODE=VALUE]...", "The Flow, the graph, and values of its inputs."
        ),
    ] = None,
    *,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            callback=valid_text,
            help="Start one execution of the graph for this key; later calls return it.",
        ),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(metavar="VERSION", callback=valid_text, help="Of the graph. [the last given]"),
    ] = None,
    text: AsText = False,
    json: Json = False,
) -> None:
    """Start an execution of a graph, with these inputs set.

    A worker computes it: `longwatch flow work`. A SQLite store is made if it does not
    exist. A VALUE is JSON or text, as for `longwatch flow set`.
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
def set_(
    assignments: Annotated[
        list[str] | None,
        _argument(
            "[MODULE:FLOW] ID NODE=VALUE...",
            "The Flow, the execution, and what its inputs are set to.",
        ),
    ] = None,
    *,
    text: AsText = False,
    json: Json = False,
) -> None:
    """Set inputs of an execution, all at once.

    What follows from them is computed.

    A VALUE is JSON. One that is not, and does not begin like JSON or a number, is
    text: `url=https://example.org` does without quotes, a date needs them, or --text.
    """
    named, [identity, *words] = _parse_words("set", assignments, "ID", "NODE=VALUE", more=True)
    values = _parse_assignments(words, as_text=text)
    with _open_existing(named, "set") as flow:
        revision = flow.execution(identity).set(values)
    _print_revision(identity, revision, "has its inputs", as_json=json)


@app.command()
def unset(
    nodes: Annotated[
        list[str] | None,
        _argument("[MODULE:FLOW] ID NODE...", "The Flow, the execution, and its inputs."),
    ] = None,
    *,
    json: Json = False,
) -> None:
    """Unset inputs of an execution, all at once.

    Values that were computed from them are cleared.
    """
    named, [identity, *names] = _parse_words("unset", nodes, "ID", "NODE", more=True)
    with _open_existing(named, "unset") as flow:
        revision = flow.execution(identity).unset(*names)
    _print_revision(identity, revision, f"has no {', '.join(names)}", as_json=json)


@app.command()
def retry(node: NodeArguments = None, *, json: Json = False) -> None:
    """Try a node again, now, with all its attempts.

    One that was given up, or waits for its next attempt.
    """
    named, [identity, name] = _parse_words("retry", node, "ID", "NODE")
    with _open_existing(named, "retry") as flow:
        revision = flow.execution(identity).retry(name)
    _print_revision(identity, revision, f"tries {name} again", as_json=json)


@app.command()
def abandon(node: NodeArguments = None, *, json: Json = False) -> None:
    """Give up the attempt at a node.

    It is tried again if it may be.
    """
    named, [identity, name] = _parse_words("abandon", node, "ID", "NODE")
    with _open_existing(named, "abandon") as flow:
        revision = flow.execution(identity).abandon(name)
    _print_revision(identity, revision, f"has given up its attempt at {name}", as_json=json)


@app.command()
def cancel(execution: ExecutionArguments = None, *, json: Json = False) -> None:
    """Call off an execution for good; its values stay."""
    named, [identity] = _parse_words("cancel", execution, "ID")
    with _open_existing(named, "cancel") as flow:
        revision = flow.execution(identity).cancel()
    _print_revision(identity, revision, "is cancelled", as_json=json)


@app.command()
def sweep(flow: FlowArgument = None, *, json: Json = False) -> None:
    """Bring back, now, what dead workers held.

    And go on with what could go on and does not. Every worker does that by itself.
    """
    named, _ = _parse_words("sweep", flow)
    with _open_existing(named, "sweep") as opened:
        moved = opened.sweep()
    output.print_result(f"{output.pluralize(moved, 'row')} moved", {"moved": moved}, as_json=json)


# --- what was asked for ---


def _parse_words(
    command: str,
    words: Sequence[str] | None,
    *required: str,
    optional: str = "",
    more: bool = False,
) -> tuple[str | None, list[str]]:
    """The flow, if the words begin with one, and the others, which have to be as many as are
    wanted.
    """
    given = list(words or ())
    flow = given.pop(0) if given and ":" in given[0].partition("=")[0] else None
    most = None if more else len(required) + bool(optional)
    if len(given) < len(required):
        raise UsageError(f"{required[len(given)]} is missing; write: {_usage(command, *required)}")
    if most is not None and len(given) > most:
        if flow is None and ":" not in given[0]:
            raise UsageError(
                f"{given[0]!r} is no flow; write: "
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
    """The flow that was named, here or in the environment."""
    target = named or os.environ.get(FLOW_VARIABLE, "")
    if not target:
        raise UsageError(
            f"name the flow first, as in `longwatch flow {command} scrape:flow …`, or set "
            f"{FLOW_VARIABLE}: its code is needed"
        )
    return target


def _open_existing(named: str | None, command: str) -> AbstractContextManager[Flow]:
    """A flow in whose store something was started."""
    from longwatch.app.flows import existing_flow  # noqa: PLC0415 - help must not wait for what only commands need

    return existing_flow(_require_flow(named, command))


def _open_to_read(named: str | None, store: str | None) -> AbstractContextManager[Flow]:
    """A flow, or a store without the code of its graphs."""
    from longwatch.app.flows import existing_flow, existing_flow_store  # noqa: PLC0415 - help must not wait for what only commands need

    if named and store:
        raise UsageError("a flow has its own store; name the flow or give --store, not both")
    target = named or ("" if store else os.environ.get(FLOW_VARIABLE, ""))
    if target:
        return existing_flow(target)
    named_store = store or os.environ.get("LONGWATCH_STORE")
    return existing_flow_store(named_store or DEFAULT_STORE, is_explicit=bool(named_store))


def _parse_assignments(words: Sequence[str], *, as_text: bool) -> dict[str, Any]:
    """The values of NODE=VALUE words, by node."""
    from longwatch.app.flows import parse_value  # noqa: PLC0415 - help must not wait for it

    pairs = [_assignment(word) for word in words]
    values = {node: value if as_text else parse_value(node, value) for node, value in pairs}
    if len(values) < len(pairs):
        raise UsageError(
            f"a node is set twice: {', '.join(node for node, _ in pairs)}; set each once"
        )
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
