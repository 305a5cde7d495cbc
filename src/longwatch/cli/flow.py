"""`longwatch flow …`: compute graphs, and look after their executions."""

from __future__ import annotations

import json as json_
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longwatch.cli import answer, executions
from longwatch.cli.stores import DEFAULT_STORE, Json, readable
from longwatch.cli.worker import LogFormat, LogLevel, Processes, StateDir, run_processes
from longwatch.errors import UsageError

if TYPE_CHECKING:
    from longwatch.flow.flow import Flow

app = typer.Typer(
    help="Durable computation graphs: compute them, and look after their executions.\n\n"
    "The flow comes first, as module:name: `longwatch flow explain scrape:flow ID`.\n"
    "LONGWATCH_FLOW in the environment stands for it. `ls` and `show` need no code:\nthey "
    "take --store URL as well.",
    no_args_is_help=True,
)

FLOW = "LONGWATCH_FLOW"
"""The variable that stands for MODULE:FLOW."""


def _words(metavar: str, text: str) -> Any:
    return typer.Argument(metavar=metavar, show_default=False, callback=readable, help=text)


OnlyFlow = Annotated[list[str] | None, _words("[MODULE:FLOW]", "The Flow.")]
OnlyId = Annotated[list[str] | None, _words("[MODULE:FLOW] ID", "The Flow, and the execution.")]
IdAndNode = Annotated[
    list[str] | None, _words("[MODULE:FLOW] ID NODE", "The Flow, the execution, and its node.")
]
Store = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        callback=readable,
        help="A store, instead of a flow. [LONGWATCH_STORE, else sqlite:///longwatch.db]",
    ),
]
Limit = Annotated[
    int, typer.Option(metavar="N", min=1, max=100_000, help="So many at the most, the newest.")
]


@app.callback()
def group(context: typer.Context) -> None:
    from longwatch.cli.main import let_through  # noqa: PLC0415 - which imports this

    if context.invoked_subcommand != "work":  # which lets them through when it is ready for them
        let_through()


@app.command()
def work(  # noqa: PLR0913, PLR0917 - one argument an option, and typer passes them by name
    target: OnlyFlow = None,
    concurrency: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=10_000, help="Nodes at a time in each process. [8]"),
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
            metavar="PORT", min=0, max=65535, help="Where health and metrics are. [nowhere]"
        ),
    ] = None,
    health_host: Annotated[
        str | None, typer.Option(metavar="HOST", help="On which address. [every one]")
    ] = None,
    state_dir: StateDir = ".longwatch",
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> int:
    """Compute what is ready, in worker processes.

    As `longwatch worker` does with loops: a process that dies or hangs is replaced,
    and what it was at is tried by others at once. SIGTERM and Ctrl-C finish what is
    in flight; SIGHUP restarts the processes one after another.
    """
    from longwatch.app.preflight import split  # noqa: PLC0415 - help must not wait for what only running needs
    from longwatch.app.target import FLOW_WORK  # noqa: PLC0415

    named, _ = _addressed("work", target)
    split(flow := _required(named, "work"))
    told = {} if concurrency is None else {"concurrency": concurrency}
    return run_processes(
        flow,
        processes=processes,
        name=name,
        health_port=health_port,
        health_host=health_host,
        state_dir=state_dir,
        log_level=log_level,
        log_format=log_format,
        env={FLOW_WORK: json_.dumps(told)},
    )


@app.command("ls")
def list_executions(
    flow: OnlyFlow = None,
    *,
    graph: Annotated[
        str | None,
        typer.Option(metavar="NAME", callback=readable, help="Only those of this graph."),
    ] = None,
    limit: Limit = 100,
    store: Store = None,
    json: Json = False,
) -> None:
    """List executions, the newest first."""
    from longwatch.app.flows import shown_url  # noqa: PLC0415 - help must not wait for it

    named, _ = _addressed("ls", flow)
    with _looked_at(named, store) as opened:
        found = opened.executions(graph=graph, limit=limit + 1)
        where = shown_url(opened)
    told = found[:limit]
    text = (
        executions.summaries(told)
        if told
        else [f"no executions{f' of graph {graph!r}' if graph else ''} in {where}"]
    )
    more = [f"the newest {limit}; more with --limit"] if len(found) > limit else []
    answer.tell([*text, *more], [executions.of_summary(each) for each in told], as_json=json)


@app.command()
def show(
    execution: OnlyId = None, *, limit: Limit = 100, store: Store = None, json: Json = False
) -> None:
    """Show an execution with its values and its attempts."""
    from longwatch.app.flows import seen  # noqa: PLC0415 - help must not wait for it

    named, [identity] = _addressed("show", execution, "ID")
    with _looked_at(named, store) as opened:
        found = seen(opened, identity)
    attempts = found.attempts[-limit:]
    answer.tell(
        executions.shown(found, attempts), executions.of_seen(found, attempts), as_json=json
    )


@app.command()
def explain(execution: OnlyId = None, *, json: Json = False) -> None:
    """Say for every node what it waits for."""
    named, [identity] = _addressed("explain", execution, "ID")
    with _existing(named, "explain") as flow:
        found = flow.execution(identity).explain()
    answer.tell(str(found).splitlines(), executions.of_explanation(found), as_json=json)


@app.command()
def graph(
    graph: Annotated[
        list[str] | None,
        _words("[MODULE:FLOW] [NAME]", "The Flow, and its graph if it has several."),
    ] = None,
    *,
    version: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Of the graph. [the one given last]")
    ] = None,
    execution: Annotated[
        str | None, typer.Option(metavar="ID", callback=readable, help="As this execution stands.")
    ] = None,
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="As the source of a Mermaid flowchart.")
    ] = False,
    json: Json = False,
) -> None:
    """Draw a graph, or an execution of it as it stands."""
    from longwatch.app.flows import drawn, graph_named, loaded_flow  # noqa: PLC0415 - help must not wait for it
    from longwatch.flow import picture  # noqa: PLC0415

    named, words = _addressed("graph", graph, optional="NAME")
    draw = picture.mermaid if mermaid else picture.text
    if execution is not None:
        if words or version is not None:
            raise UsageError("an execution is of one graph; leave out its name and --version")
        with _existing(named, "graph") as flow:
            its_graph, standing = drawn(flow, execution)
            text = draw(its_graph, standing)
    else:
        with loaded_flow(_required(named, "graph")) as flow:
            its_graph = graph_named(flow, next(iter(words), None), version)
            text = draw(its_graph)
    answer.tell(text.splitlines(), executions.of_graph(its_graph, execution, text), as_json=json)


@app.command("set")
def set_(
    assignments: Annotated[
        list[str] | None,
        _words(
            "[MODULE:FLOW] ID NODE=VALUE...",
            "The Flow, the execution, and what its inputs are set to.",
        ),
    ] = None,
    *,
    text: Annotated[
        bool, typer.Option("--text", help="The values are plain text, not JSON.")
    ] = False,
    json: Json = False,
) -> None:
    """Set inputs of an execution, all at once.

    What follows from them is computed.

    A VALUE is JSON. One that is not, and does not begin like JSON or a number, is
    text: `url=https://example.org` does without quotes, a date needs them, or --text.
    """
    from longwatch.app.flows import read_value  # noqa: PLC0415 - help must not wait for it

    named, [identity, *words] = _addressed("set", assignments, "ID", "NODE=VALUE", more=True)
    pairs = [_assignment(word) for word in words]
    values = {node: value if text else read_value(node, value) for node, value in pairs}
    if len(values) < len(pairs):
        raise UsageError(
            f"a node is set twice: {', '.join(node for node, _ in pairs)}; set each once"
        )
    with _existing(named, "set") as flow:
        revision = flow.execution(identity).set(values)
    _tell_revision(identity, revision, "has its inputs", as_json=json)


@app.command()
def retry(node: IdAndNode = None, *, json: Json = False) -> None:
    """Try a node again, now, with all its attempts.

    One that was given up, or waits for its next attempt.
    """
    named, [identity, name] = _addressed("retry", node, "ID", "NODE")
    with _existing(named, "retry") as flow:
        revision = flow.execution(identity).retry(name)
    _tell_revision(identity, revision, f"tries {name} again", as_json=json)


@app.command()
def abandon(node: IdAndNode = None, *, json: Json = False) -> None:
    """Give up the attempt at a node.

    It is tried again if it may be.
    """
    named, [identity, name] = _addressed("abandon", node, "ID", "NODE")
    with _existing(named, "abandon") as flow:
        revision = flow.execution(identity).abandon(name)
    _tell_revision(identity, revision, f"has given up its attempt at {name}", as_json=json)


@app.command()
def cancel(execution: OnlyId = None, *, json: Json = False) -> None:
    """Call off an execution for good; its values stay."""
    named, [identity] = _addressed("cancel", execution, "ID")
    with _existing(named, "cancel") as flow:
        revision = flow.execution(identity).cancel()
    _tell_revision(identity, revision, "is cancelled", as_json=json)


@app.command()
def sweep(flow: OnlyFlow = None, *, json: Json = False) -> None:
    """Bring back, now, what dead workers held.

    And go on with what could go on and does not. Every worker does that by itself.
    """
    named, _ = _addressed("sweep", flow)
    with _existing(named, "sweep") as opened:
        moved = opened.sweep()
    answer.tell(f"{answer.counted(moved, 'row')} moved", {"moved": moved}, as_json=json)


# --- what was asked for ---


def _addressed(
    command: str, words: Sequence[str] | None, *wanted: str, optional: str = "", more: bool = False
) -> tuple[str | None, list[str]]:
    """The flow, if the words begin with one, and the others, which have to be as many as are
    wanted.
    """
    given = list(words or ())
    flow = given.pop(0) if given and ":" in given[0].partition("=")[0] else None
    most = None if more else len(wanted) + bool(optional)
    if len(given) < len(wanted):
        raise UsageError(f"{wanted[len(given)]} is missing; write: {_usage(command, *wanted)}")
    if most is not None and len(given) > most:
        if flow is None and ":" not in given[0]:
            raise UsageError(
                f"{given[0]!r} is no flow; write: "
                f"{_usage(command, *wanted, *filter(None, [optional]))}"
            )
        raise UsageError(
            f"{given[most]!r} is too much; write: "
            f"{_usage(command, *wanted, *filter(None, [optional]))}"
        )
    return flow, given


def _usage(command: str, *wanted: str) -> str:
    return " ".join(("longwatch flow", command, "module:flow", *wanted))


def _required(named: str | None, command: str) -> str:
    """The flow that was named, here or in the environment."""
    target = named or os.environ.get(FLOW, "")
    if not target:
        raise UsageError(
            f"name the flow first, as in `longwatch flow {command} scrape:flow …`, or set "
            f"{FLOW}: its code is needed"
        )
    return target


def _existing(named: str | None, command: str) -> AbstractContextManager[Flow]:
    """A flow in whose store something was started."""
    from longwatch.app.flows import existing_flow  # noqa: PLC0415 - help must not wait for what only commands need

    return existing_flow(_required(named, command))


def _looked_at(named: str | None, store: str | None) -> AbstractContextManager[Flow]:
    """A flow, or a store without the code of its graphs."""
    from longwatch.app.flows import existing_flow, existing_store  # noqa: PLC0415 - help must not wait for what only commands need

    if named and store:
        raise UsageError("a flow has its own store; name the flow or give --store, not both")
    target = named or ("" if store else os.environ.get(FLOW, ""))
    if target:
        return existing_flow(target)
    named_store = store or os.environ.get("LONGWATCH_STORE")
    return existing_store(named_store or DEFAULT_STORE, given=bool(named_store))


def _assignment(word: str) -> tuple[str, str]:
    node, equals, value = word.partition("=")
    if not equals or not node:
        raise UsageError(
            f"{word!r} sets nothing; write it as NODE=VALUE, such as url=https://example.org"
        )
    return node, value


def _tell_revision(identity: str, revision: int, what: str, *, as_json: bool) -> None:
    text = f"execution {identity} {what}, at revision {revision}"
    answer.tell(text, {"execution": identity, "revision": revision}, as_json=as_json)
