"""`longwatch runner`: run an agent for each event; `longwatch runner sources|events|runs …`: show
them, retry and cancel runs.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longwatch.cli import output, runner_views
from longwatch.cli.command_groups import CommandGroup
from longwatch.cli.option_values import choice, whole_number
from longwatch.cli.options import Json, valid_text
from longwatch.core.sanitize import terminal_text

if TYPE_CHECKING:
    from longwatch.app.runner_store import RunnerStore

app = typer.Typer(invoke_without_command=True)
runs_app = typer.Typer(help="Show, retry or cancel runs of agents.", no_args_is_help=True)
events_app = typer.Typer(help="Show the events of the sources.", no_args_is_help=True)
app.add_typer(events_app, name="events", cls=CommandGroup)
app.add_typer(runs_app, name="runs", cls=CommandGroup)

FOLLOW_INTERVAL = 0.5


def _flag(metavar: str, text: str) -> Any:
    return typer.Option(metavar=metavar, help=text)


Config = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", readable=False, help="The configuration file. [longwatch.toml]"
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="URL", callback=valid_text, help="The store URL. [store_url of the file]"
    ),
]
Source = Annotated[
    str | None,
    typer.Option("--source", metavar="NAME", callback=valid_text, help="Only this source."),
]
RunId = Annotated[str, typer.Argument(metavar="ID", callback=valid_text, help="ID of the run.")]


@app.callback()
def runner(  # noqa: PLR0913, PLR0917 - one argument an option, and typer passes them by name
    context: typer.Context,
    config: Config = None,
    agent_timeout: Annotated[
        str | None, _flag("DURATION", "The longest run of an agent; `off`: no limit. [300]")
    ] = None,
    progress_timeout: Annotated[
        str | None, _flag("DURATION", "End an agent that writes nothing for this long. [off]")
    ] = None,
    max_queue_age: Annotated[
        str | None, _flag("DURATION", "Events that wait longer expire; `off`: never. [600]")
    ] = None,
    queue_sweep_interval: Annotated[
        str | None, _flag("DURATION", "Time between sweeps of the queues. [60]")
    ] = None,
    shutdown_timeout: Annotated[
        str | None, _flag("DURATION", "The longest wait for running agents at a stop. [30]")
    ] = None,
    health_port: Annotated[
        str | None, _flag("PORT", "Port of health; 0: any free port, `off`: none. [8080]")
    ] = None,
    health_host: Annotated[str | None, _flag("HOST", "Address of health. [0.0.0.0]")] = None,
    metrics_port: Annotated[
        str | None, _flag("PORT", "Port of metrics; 0: any free port, `off`: none. [9090]")
    ] = None,
    metrics_host: Annotated[str | None, _flag("HOST", "Address of metrics. [0.0.0.0]")] = None,
    metrics_namespace: Annotated[
        str | None, _flag("NAME", "Prefix of the names of metrics. [longwatch_runner]")
    ] = None,
    sse_reconnect_initial_delay: Annotated[
        str | None, _flag("DURATION", "The wait before the first reconnect. [1]")
    ] = None,
    sse_reconnect_max_delay: Annotated[
        str | None, _flag("DURATION", "The longest wait before a reconnect. [60]")
    ] = None,
    sse_read_timeout: Annotated[
        str | None, _flag("DURATION", "Reconnect after this long without a byte. [120]")
    ] = None,
    severity_threshold: Annotated[
        str | None,
        _flag(
            "SEVERITY",
            "Run agents from this severity on: debug, info, warning, error, critical. [info]",
        ),
    ] = None,
    max_concurrent_agents: Annotated[str | None, _flag("N", "Agents at a time. [5]")] = None,
    max_concurrent_per_source: Annotated[
        str | None, _flag("N", "Agents at a time for one source. [1]")
    ] = None,
    source_queue_size: Annotated[
        str | None, _flag("N", "Events that may wait for one source. [1000]")
    ] = None,
    queue_overflow_policy: Annotated[
        str | None, _flag("POLICY", "When a queue is full: drop-oldest or reject. [drop-oldest]")
    ] = None,
    dedup_window: Annotated[
        str | None,
        _flag("DURATION", "Skip an event that repeats within this time; 0: run all. [300]"),
    ] = None,
    max_attempts: Annotated[
        str | None, _flag("N", "Runs of one event before it is dead-lettered. [3]")
    ] = None,
    retry_delay: Annotated[
        str | None,
        _flag("DURATION", "Wait before the second attempt; doubles for each further one. [10]"),
    ] = None,
    work_breaker_failures: Annotated[
        str | None, _flag("N", "Open the work breaker after this many failed runs in a row. [5]")
    ] = None,
    work_breaker_cooldown: Annotated[
        str | None, _flag("DURATION", "Time until an open breaker tries one run. [300]")
    ] = None,
    breaker_affects_readiness: Annotated[
        str | None, _flag("BOOL", "Not ready while the work breaker is open. [true]")
    ] = None,
    alert_after_failures: Annotated[
        str | None, _flag("N", "Report an outage after this many failures in a row. [5]")
    ] = None,
    max_event_bytes: Annotated[str | None, _flag("N", "Drop larger events. [4194304]")] = None,
    run_retention_days: Annotated[
        str | None, _flag("DAYS", "Days to keep runs and workspaces. [14]")
    ] = None,
    event_retention_days: Annotated[
        str | None, _flag("DAYS", "Days to keep events and dead letters. [7]")
    ] = None,
    store_url: Annotated[
        str | None, _flag("URL", "The store URL. [sqlite:///longwatch.db]")
    ] = None,
    state_dir: Annotated[
        str | None, _flag("DIR", "The state directory; `off`: keep no files. [.longwatch]")
    ] = None,
    max_threads: Annotated[str | None, _flag("N", "Unhealthy with more threads. [off]")] = None,
    max_tasks: Annotated[str | None, _flag("N", "Unhealthy with more tasks. [off]")] = None,
    max_rss_mb: Annotated[
        str | None, _flag("MB", "Unhealthy with more resident memory. [off]")
    ] = None,
    log_level: Annotated[
        str | None, _flag("LEVEL", "Lowest level: debug, info, warning, error or critical. [info]")
    ] = None,
    log_format: Annotated[
        str | None, _flag("FORMAT", "Format of logs: auto, json or pretty. [auto]")
    ] = None,
) -> int | None:
    """Run an agent for each event of the sources.

    longwatch.toml configures the sources and the agent. Every option but --config,
    --log-level and --log-format has an environment variable; `longwatch init`
    writes a file with their names. SIGTERM and Ctrl-C drain: the runner waits for
    running agents, and the events of those that do not end in time stay queued. A
    second signal ends the agents at once. Exits with 0, 1 if an agent could not be
    ended, 2 for wrong use, 75 to try again.
    """
    given = dict(locals())
    if context.invoked_subcommand is not None:
        from longwatch.cli.main import unblock_signals  # noqa: PLC0415 - which imports this

        unblock_signals()
        return None
    from longwatch.app.runner import runner as run  # noqa: PLC0415 - help must not wait for what only running needs

    flags = {
        f"{'supervisor.log' if option.startswith('log_') else 'runner'}."
        f"{option.removeprefix('log_')}": value
        for option, value in given.items()
        if option not in {"context", "config", "state_dir"}
    }
    return run(config, dict(os.environ), {**flags, "state_dir": state_dir})


def _open(store: str | None, config: Path | None) -> AbstractContextManager[RunnerStore]:
    from longwatch.app.runner_store import opened_runner_store  # noqa: PLC0415 - help must not wait for what only commands need

    return opened_runner_store(store, config, os.environ)


@app.command()
def sources(*, store: Store = None, config: Config = None, json: Json = False) -> None:
    """Show the state, last event, reconnects and queue of each source."""
    with _open(store, config) as opened:
        found = opened.events.sources()
    text = (
        output.table(runner_views.SOURCE_HEAD, map(runner_views.source_row, found))
        if found
        else [f"no sources in {opened.shown}"]
    )
    output.print_result(text, [runner_views.source_json(each) for each in found], as_json=json)


# --- events ---


@events_app.command()
def tail(  # noqa: PLR0913 - one argument an option
    *,
    source: Source = None,
    outcome: Annotated[
        str | None,
        typer.Option(
            "--outcome",
            metavar="OUTCOME",
            parser=choice(runner_views.OUTCOMES),
            help=f"Only with this outcome: {', '.join(runner_views.OUTCOMES)}.",
        ),
    ] = None,
    lines: Annotated[
        int,
        typer.Option(
            "--lines",
            "-n",
            metavar="N",
            parser=whole_number(0, 100_000),
            help="Number of last events.",
        ),
    ] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show new events until Ctrl-C.")
    ] = False,
    store: Store = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Show the last events, newest last.

    --json prints one object a line.
    """
    with _open(store, config) as opened:
        opened.require_source(source)
        for record in _following(opened, source, outcome, lines=lines, follow=follow):
            output.print_result(
                runner_views.event_line(record), runner_views.event_json(record), as_json=json
            )
            sys.stdout.flush()


def _following(
    opened: RunnerStore, source: str | None, outcome: str | None, *, lines: int, follow: bool
) -> Iterator[Any]:
    shown = opened.events.events(source=source, outcome=outcome, limit=max(lines, 1))
    last = max((record.seq for record in shown), default=0)
    yield from shown if lines else ()
    while follow:
        time.sleep(FOLLOW_INTERVAL)
        for record in opened.events.events(
            source=source, outcome=outcome, after=last, limit=10_000
        ):
            last = record.seq
            yield record


@events_app.command()
def dead(
    *,
    source: Source = None,
    limit: Annotated[
        int,
        typer.Option(
            metavar="N", parser=whole_number(1, 100_000), help="Show at most N, the newest."
        ),
    ] = 100,
    store: Store = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """List dead-lettered and dropped events, newest last."""
    with _open(store, config) as opened:
        opened.require_source(source)
        given_up = [
            event
            for outcome in ("dead-lettered", "dropped")
            for event in opened.events.events(source=source, outcome=outcome, limit=limit)
        ]
    found = sorted(given_up)[-limit:]
    text = (
        output.table(runner_views.DEAD_HEAD, map(runner_views.dead_row, found))
        if found
        else [f"no events were given up in {opened.shown}"]
    )
    output.print_result(text, [runner_views.event_json(each) for each in found], as_json=json)


# --- runs ---


@runs_app.command("ls")
def list_runs(  # noqa: PLR0913 - one argument an option
    *,
    source: Source = None,
    status: Annotated[
        str | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            parser=choice(runner_views.STATUSES),
            help=f"Only with this status: {', '.join(runner_views.STATUSES)}.",
        ),
    ] = None,
    event: Annotated[
        str | None,
        typer.Option("--event", metavar="ID", callback=valid_text, help="Only this event."),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            metavar="N", parser=whole_number(1, 100_000), help="Show at most N, the newest."
        ),
    ] = 50,
    store: Store = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """List runs, newest first."""
    with _open(store, config) as opened:
        opened.require_source(source)
        found = opened.runs.runs(source=source, event=event, status=status, limit=limit)
    text = (
        output.table(runner_views.RUN_HEAD, map(runner_views.run_row, found))
        if found
        else [f"no runs in {opened.shown}"]
    )
    output.print_result(text, [runner_views.run_json(each) for each in found], as_json=json)


@runs_app.command()
def show(run: RunId, *, store: Store = None, config: Config = None, json: Json = False) -> None:
    """Show a run, its event and the end of its output."""
    with _open(store, config) as opened:
        record = opened.run(run)
        event = opened.events.event(record.event)
    output.print_result(
        runner_views.run_lines(record, event),
        runner_views.run_json(record, event=event),
        as_json=json,
    )


@runs_app.command()
def logs(
    run: RunId,
    *,
    stderr: Annotated[bool, typer.Option("--stderr", help="Print only stderr.")] = False,
    stdout: Annotated[bool, typer.Option("--stdout", help="Print only stdout.")] = False,
    store: Store = None,
    config: Config = None,
) -> None:
    """Print the output of a run."""
    from longwatch.app.runner_store import STREAMS, read_log  # noqa: PLC0415 - help must not wait for it

    with _open(store, config) as opened:
        record = opened.run(run)
    chosen = [name for name, asked in zip(STREAMS, (stdout, stderr), strict=True) if asked]
    written = [read_log(record, stream) for stream in chosen or STREAMS]
    if all(text is None for text in written):
        typer.echo(f"longwatch: the workspace {record.workspace} is not here; its end:", err=True)
        written = [(record.output or "").encode()]
    for text in written:
        typer.echo(terminal_text(text or b"") if os.isatty(1) else text or b"", nl=False)


@runs_app.command()
def retry(run: RunId, *, store: Store = None, config: Config = None, json: Json = False) -> None:
    """Queue the event of a run again, with all its attempts."""
    with _open(store, config) as opened:
        record = opened.retry(run)
    output.print_result(
        f"event {record.id} of {record.source} is queued again",
        {"event": record.id, "source": record.source},
        as_json=json,
    )


@runs_app.command()
def cancel(run: RunId, *, store: Store = None, config: Config = None, json: Json = False) -> None:
    """End a run and dead-letter its event."""
    from longwatch.errors import UsageError  # noqa: PLC0415

    with _open(store, config) as opened:
        record = opened.run(run)
        if not opened.runs.request_cancel(run):
            raise UsageError(
                f"the run {run} has ended ({record.cause or record.status}), so there is nothing "
                f"to cancel; `longwatch runner runs ls --status running` lists those that run"
            )
    output.print_result(f"run {run} is being cancelled", {"run": run}, as_json=json)
