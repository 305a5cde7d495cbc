"""`longwatch runner`: run an agent for each event; `longwatch runner sources|events|runs …`: show
them, retry and cancel runs.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longwatch.cli import output, runner_views
from longwatch.cli.command_groups import CommandGroup
from longwatch.cli.option_values import choice, whole_number
from longwatch.cli.options import Function, json_option, valid_text
from longwatch.core.sanitize import terminal_text

if TYPE_CHECKING:
    from longwatch.app.runner_store import RunnerStore

events_app = CommandGroup("events", help="Show the events of the sources.")
runs_app = CommandGroup("runs", help="Show, retry or cancel runs of agents.")

FOLLOW_INTERVAL = 0.5


def _flag(name: str, metavar: str, text: str) -> Callable[[Function], Function]:
    return click.option(name, metavar=metavar, help=text)


config_option = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(readable=False, path_type=Path),
    help="The configuration file. [longwatch.toml]",
)
store_option = click.option(
    "--store", metavar="URL", type=valid_text, help="The store URL. [store_url of the file]"
)
source_option = click.option("--source", metavar="NAME", type=valid_text, help="Only this source.")
run_id_argument = click.argument("run", metavar="ID", type=valid_text, help="ID of the run.")


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.pass_context
@config_option
@_flag("--agent-timeout", "DURATION", "The longest run of an agent; `off`: no limit. [300]")
@_flag("--progress-timeout", "DURATION", "End an agent that writes nothing for this long. [off]")
@_flag("--max-queue-age", "DURATION", "Events that wait longer expire; `off`: never. [600]")
@_flag("--queue-sweep-interval", "DURATION", "Time between sweeps of the queues. [60]")
@_flag("--shutdown-timeout", "DURATION", "The longest wait for running agents at a stop. [30]")
@_flag("--health-port", "PORT", "Port of health; 0: any free port, `off`: none. [8080]")
@_flag("--health-host", "HOST", "Address of health. [0.0.0.0]")
@_flag("--metrics-port", "PORT", "Port of metrics; 0: any free port, `off`: none. [9090]")
@_flag("--metrics-host", "HOST", "Address of metrics. [0.0.0.0]")
@_flag("--metrics-namespace", "NAME", "Prefix of the names of metrics. [longwatch_runner]")
@_flag("--sse-reconnect-initial-delay", "DURATION", "The wait before the first reconnect. [1]")
@_flag("--sse-reconnect-max-delay", "DURATION", "The longest wait before a reconnect. [60]")
@_flag("--sse-read-timeout", "DURATION", "Reconnect after this long without a byte. [120]")
@_flag(
    "--severity-threshold",
    "SEVERITY",
    "Run agents from this severity on: debug, info, warning, error, critical. [info]",
)
@_flag("--max-concurrent-agents", "N", "Agents at a time. [5]")
@_flag("--max-concurrent-per-source", "N", "Agents at a time for one source. [1]")
@_flag("--source-queue-size", "N", "Events that may wait for one source. [1000]")
@_flag(
    "--queue-overflow-policy",
    "POLICY",
    "When a queue is full: drop-oldest or reject. [drop-oldest]",
)
@_flag(
    "--dedup-window", "DURATION", "Skip an event that repeats within this time; 0: run all. [300]"
)
@_flag("--max-attempts", "N", "Runs of one event before it is dead-lettered. [3]")
@_flag(
    "--retry-delay",
    "DURATION",
    "Wait before the second attempt; doubles for each further one. [10]",
)
@_flag(
    "--work-breaker-failures",
    "N",
    "Open the work breaker after this many failed runs in a row. [5]",
)
@_flag("--work-breaker-cooldown", "DURATION", "Time until an open breaker tries one run. [300]")
@_flag("--breaker-affects-readiness", "BOOL", "Not ready while the work breaker is open. [true]")
@_flag("--alert-after-failures", "N", "Report an outage after this many failures in a row. [5]")
@_flag("--max-event-bytes", "N", "Drop larger events. [4194304]")
@_flag("--run-retention-days", "DAYS", "Days to keep runs and workspaces. [14]")
@_flag("--event-retention-days", "DAYS", "Days to keep events and dead letters. [7]")
@_flag("--store-url", "URL", "The store URL. [sqlite:///longwatch.db]")
@_flag("--state-dir", "DIR", "The state directory; `off`: keep no files. [.longwatch]")
@_flag("--max-threads", "N", "Unhealthy with more threads. [off]")
@_flag("--max-tasks", "N", "Unhealthy with more tasks. [off]")
@_flag("--max-rss-mb", "MB", "Unhealthy with more resident memory. [off]")
@_flag("--log-level", "LEVEL", "Lowest level: debug, info, warning, error or critical. [info]")
@_flag("--log-format", "FORMAT", "Format of logs: auto, json or pretty. [auto]")
def runner(  # noqa: PLR0913 - one argument an option
    context: click.Context,
    *,
    config: Path | None,
    agent_timeout: str | None,
    progress_timeout: str | None,
    max_queue_age: str | None,
    queue_sweep_interval: str | None,
    shutdown_timeout: str | None,
    health_port: str | None,
    health_host: str | None,
    metrics_port: str | None,
    metrics_host: str | None,
    metrics_namespace: str | None,
    sse_reconnect_initial_delay: str | None,
    sse_reconnect_max_delay: str | None,
    sse_read_timeout: str | None,
    severity_threshold: str | None,
    max_concurrent_agents: str | None,
    max_concurrent_per_source: str | None,
    source_queue_size: str | None,
    queue_overflow_policy: str | None,
    dedup_window: str | None,
    max_attempts: str | None,
    retry_delay: str | None,
    work_breaker_failures: str | None,
    work_breaker_cooldown: str | None,
    breaker_affects_readiness: str | None,
    alert_after_failures: str | None,
    max_event_bytes: str | None,
    run_retention_days: str | None,
    event_retention_days: str | None,
    store_url: str | None,
    state_dir: str | None,
    max_threads: str | None,
    max_tasks: str | None,
    max_rss_mb: str | None,
    log_level: str | None,
    log_format: str | None,
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


@runner.command()
@store_option
@config_option
@json_option
def sources(*, store: str | None, config: Path | None, json: bool) -> None:
    """Show the state, last event, reconnects and queue of each source."""
    with _open(store, config) as opened:
        found = opened.events.sources()
    text = (
        output.table(runner_views.SOURCE_HEAD, map(runner_views.source_row, found))
        if found
        else [f"no sources in {opened.shown}"]
    )
    output.print_result(text, [runner_views.source_json(each) for each in found], as_json=json)


runner.add_command(events_app)
runner.add_command(runs_app)


# --- events ---


@events_app.command()
@source_option
@click.option(
    "--outcome",
    metavar="OUTCOME",
    type=choice(runner_views.OUTCOMES),
    help=f"Only with this outcome: {', '.join(runner_views.OUTCOMES)}.",
)
@click.option(
    "--lines",
    "-n",
    metavar="N",
    type=whole_number(0, 100_000),
    default=20,
    help="Number of last events.",
)
@click.option("--follow", "-f", is_flag=True, help="Show new events until Ctrl-C.")
@store_option
@config_option
@json_option
def tail(  # noqa: PLR0913 - one argument an option
    *,
    source: str | None,
    outcome: str | None,
    lines: int,
    follow: bool,
    store: str | None,
    config: Path | None,
    json: bool,
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
@source_option
@click.option(
    "--limit",
    metavar="N",
    type=whole_number(1, 100_000),
    default=100,
    help="Show at most N, the newest.",
)
@store_option
@config_option
@json_option
def dead(
    *, source: str | None, limit: int, store: str | None, config: Path | None, json: bool
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
@source_option
@click.option(
    "--status",
    metavar="STATUS",
    type=choice(runner_views.STATUSES),
    help=f"Only with this status: {', '.join(runner_views.STATUSES)}.",
)
@click.option("--event", metavar="ID", type=valid_text, help="Only this event.")
@click.option(
    "--limit",
    metavar="N",
    type=whole_number(1, 100_000),
    default=50,
    help="Show at most N, the newest.",
)
@store_option
@config_option
@json_option
def list_runs(  # noqa: PLR0913 - one argument an option
    *,
    source: str | None,
    status: str | None,
    event: str | None,
    limit: int,
    store: str | None,
    config: Path | None,
    json: bool,
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
@run_id_argument
@store_option
@config_option
@json_option
def show(*, run: str, store: str | None, config: Path | None, json: bool) -> None:
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
@run_id_argument
@click.option("--stderr", is_flag=True, help="Print only stderr.")
@click.option("--stdout", is_flag=True, help="Print only stdout.")
@store_option
@config_option
def logs(*, run: str, stderr: bool, stdout: bool, store: str | None, config: Path | None) -> None:
    """Print the output of a run."""
    from longwatch.app.runner_store import STREAMS, read_log  # noqa: PLC0415 - help must not wait for it

    with _open(store, config) as opened:
        record = opened.run(run)
    chosen = [name for name, asked in zip(STREAMS, (stdout, stderr), strict=True) if asked]
    written = [read_log(record, stream) for stream in chosen or STREAMS]
    if all(text is None for text in written):
        click.echo(f"longwatch: the workspace {record.workspace} is not here; its end:", err=True)
        written = [(record.output or "").encode()]
    for text in written:
        click.echo(terminal_text(text or b"") if os.isatty(1) else text or b"", nl=False)


@runs_app.command()
@run_id_argument
@store_option
@config_option
@json_option
def retry(*, run: str, store: str | None, config: Path | None, json: bool) -> None:
    """Queue the event of a run again, with all its attempts."""
    with _open(store, config) as opened:
        record = opened.retry(run)
    output.print_result(
        f"event {record.id} of {record.source} is queued again",
        {"event": record.id, "source": record.source},
        as_json=json,
    )


@runs_app.command()
@run_id_argument
@store_option
@config_option
@json_option
def cancel(*, run: str, store: str | None, config: Path | None, json: bool) -> None:
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
