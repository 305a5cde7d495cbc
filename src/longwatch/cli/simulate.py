"""`longwatch simulate …`: event sources for demos and tests, and a check of their events in the
store.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from longwatch.cli import output
from longwatch.cli.command_groups import CommandGroup
from longwatch.cli.option_values import duration, number, whole_number
from longwatch.cli.options import Function, json_option, valid_text
from longwatch.cli.runner import config_option, store_option
from longwatch.errors import UsageError

if TYPE_CHECKING:
    from longwatch.runner.simulation_check import SourceReconciliation
    from longwatch.runner.simulator import Simulator

app = CommandGroup("simulate", help="Simulate event sources, and check that no event was lost.")

POLL_SECONDS = 0.2
MAX_EXAMPLES = 3
"""The number of sources whose events are listed; the table counts those of all."""


def _count_option(
    name: str, text: str, *, default: int | None = None
) -> Callable[[Function], Function]:
    return click.option(name, metavar="N", type=whole_number(0), default=default, help=text)


def _duration_option(name: str, text: str, *, default: float) -> Callable[[Function], Function]:
    return click.option(name, metavar="DURATION", type=duration(0.01), default=default, help=text)


sources_option = click.option(
    "--sources",
    metavar="N",
    type=whole_number(1, 1000),
    default=1,
    help="Number of sources: sim-1, sim-2, …",
)
rate_option = click.option(
    "--rate",
    metavar="N",
    type=number(0, 100_000),
    default=1.0,
    help="Events a second for each source; 0: only those of control requests.",
)
port_option = click.option(
    "--port",
    metavar="PORT",
    type=whole_number(0, 65_535),
    default=8090,
    help="Port to listen on; 0: any free port.",
)
host_option = click.option(
    "--host", metavar="ADDRESS", type=valid_text, default="127.0.0.1", help="Address to listen on."
)
journal_option = click.option(
    "--journal",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Append each event to this file.",
)
status_option = click.option(
    "--status",
    metavar="CODE",
    type=whole_number(200, 599),
    help="Respond with this status instead of a stream.",
)


@app.command()
@sources_option
@rate_option
@_count_option("--count", "Events of each source; afterwards the streams stay open.")
@port_option
@host_option
@click.option(
    "--seed", metavar="N", type=whole_number(), default=1, help="Seed of the random events."
)
@journal_option
@click.option(
    "--history",
    metavar="N",
    type=whole_number(1),
    default=10_000,
    help="Events of each source to keep in memory.",
)
@_duration_option(
    "--comment-interval", "Time between comments while there are no events.", default=15.0
)
@_count_option("--drop-every", "Drop the connection at each N-th event; 0: never.", default=0)
@_count_option("--stall-every", "Stall at each N-th event; 0: never.", default=0)
@_duration_option("--stall-seconds", "Length of a stall.", default=60.0)
@_count_option("--bad-bytes", "Send invalid UTF-8 in each N-th event; 0: never.", default=0)
@click.option(
    "--retry",
    metavar="MS",
    type=whole_number(0),
    help="Reconnect delay sent to clients, in milliseconds.",
)
@status_option
def events(  # noqa: PLR0913 - one argument an option
    *,
    sources: int,
    rate: float,
    count: int | None,
    port: int,
    host: str,
    seed: int,
    journal: Path | None,
    history: int,
    comment_interval: float,
    drop_every: int,
    stall_every: int,
    stall_seconds: float,
    bad_bytes: int,
    retry: int | None,
    status: int | None,
) -> None:
    """Serve simulated event streams until SIGTERM or Ctrl-C.

    Prints the sources as tables for longwatch.toml. `POST /control` changes the
    stream faults while the simulator runs.
    """
    with _required_extra():
        from longwatch.runner.simulated_source import SimulatorSettings, StreamFaults  # noqa: PLC0415 - help must not wait for it
        from longwatch.runner.simulator import serve_until_signal  # noqa: PLC0415

    faults = StreamFaults(
        drop_every=drop_every,
        stall_every=stall_every,
        stall_seconds=stall_seconds,
        bad_bytes_every=bad_bytes,
        retry_ms=retry,
        status=status,
    )
    settings = SimulatorSettings(
        sources=tuple(f"sim-{number}" for number in range(1, sources + 1)),
        rate=rate,
        count=count,
        seed=seed,
        host=host,
        port=port,
        history=history,
        journal=journal,
        comment_interval=comment_interval,
        faults=faults,
    )
    serve_until_signal(settings, on_ready=_print_sources)


@app.command()
@click.option(
    "--journal",
    metavar="FILE",
    type=click.Path(path_type=Path),
    required=True,
    help="The journal of `longwatch simulate events`.",
)
@store_option
@config_option
@click.option(
    "--wait",
    metavar="DURATION",
    type=duration(),
    default=0,
    help="The longest wait for events that are missing, queued or running.",
)
@json_option
def check(*, journal: Path, store: str | None, config: Path | None, wait: float, json: bool) -> int:
    """Compare the events of a journal with the events in the store.

    Exits with 0 if each event has exactly one row with one outcome and no agent is
    running, else with 1.
    """
    deadline = time.monotonic() + wait
    found = _reconcile(journal, store, config)
    while not all(each.is_settled for each in found) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        found = _reconcile(journal, store, config)
    is_right = bool(found) and all(each.is_right for each in found)
    needs_runner = any(each.missing for each in found) and not _has_runner(store, config)
    output.print_result(
        _reconciliation_lines(found, is_right=is_right, needs_runner=needs_runner),
        {"right": is_right, "sources": [asdict(each) for each in found]},
        as_json=json,
    )
    return 0 if is_right else 1


@contextmanager
def _required_extra() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        from longwatch.core.extras import install_command  # noqa: PLC0415 - only a missing package needs it

        raise UsageError(
            f"the simulator needs {error.name}, which is not installed; run: "
            f"{install_command('runner')}"
        ) from None


def _print_sources(simulator: Simulator) -> None:
    """Print the sources as lines for longwatch.toml, and the address of control requests as a
    comment.
    """
    for name in simulator.sources:
        click.echo(f'[runner.source.{name}]\nurl = "{simulator.url(name)}"\n')
    click.echo(f"# control: {simulator.control_url}; Ctrl-C ends it")
    sys.stdout.flush()


def _reconcile(journal: Path, url: str | None, config: Path | None) -> list[SourceReconciliation]:
    from longwatch.app.mailboxes import masked_url, opened_store, require_schema  # noqa: PLC0415 - help must not wait for it
    from longwatch.app.runner_store import configured_store_url  # noqa: PLC0415
    from longwatch.runner.simulated_events import read_journal  # noqa: PLC0415
    from longwatch.runner.simulation_check import reconcile  # noqa: PLC0415

    sent = list(read_journal(journal))
    with opened_store(url or configured_store_url(config, os.environ)) as store:
        if require_schema(store).pending:
            raise UsageError(
                f"{masked_url(store)} has no tables of a runner; give --store the URL that the "
                f"runner has, or start it first"
            )
        return reconcile(sent, store)


def _has_runner(store: str | None, config: Path | None) -> bool:
    """Whether a runner holds one of the sources in the store."""
    from longwatch.app.runner_store import opened_runner_store  # noqa: PLC0415

    with opened_runner_store(store, config, os.environ) as opened:
        return any(source.is_held for source in opened.events.sources())


def _reconciliation_lines(
    found: Sequence[SourceReconciliation], *, is_right: bool, needs_runner: bool
) -> Iterator[str]:
    if not found:
        yield "the journal is empty: nothing was sent"
        return
    faults = ("missing", "twice", "open", "unsent", "running")
    head = ("source", "sent", *found[0].outcomes, *faults)
    yield from output.table(
        head,
        (
            (each.source, each.sent, *each.outcomes.values(), *(getattr(each, f) for f in faults))
            for each in found
        ),
    )
    yield ""
    examples = [each for each in found if each.examples]
    for each in examples[:MAX_EXAMPLES]:
        yield f"{each.source}: look at the events {', '.join(each.examples)}"
    if len(examples) > MAX_EXAMPLES:
        yield f"… and {len(examples) - MAX_EXAMPLES} more sources like this; --json lists them"
    yield _conclusion(found, is_right=is_right, needs_runner=needs_runner)


def _conclusion(
    found: Sequence[SourceReconciliation], *, is_right: bool, needs_runner: bool
) -> str:
    if is_right:
        return "each event has one outcome"
    if needs_runner:
        return "events are missing, and no runner is connected; start it with `longwatch runner`"
    if any(each.missing or each.twice or each.unsent for each in found):
        return "the events do not add up"
    return "some events are queued or running; --wait DURATION waits for them"
