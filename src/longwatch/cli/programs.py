"""`longwatch status` and the other commands for the programs of `longwatch up`, `run`, `worker` and
`runner`. `COMMANDS` lists them all.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from longwatch.cli import output
from longwatch.cli.option_values import duration, whole_number
from longwatch.cli.options import json_option, valid_text
from longwatch.cli.status_table import status_line, status_lines
from longwatch.core.sanitize import shorten, terminal_line
from longwatch.errors import LongwatchError, UsageError

if TYPE_CHECKING:
    from longwatch.supervisor.client import ControlResponse

START_TIMEOUT = 30.0
names_argument = click.argument(
    "names", metavar="[NAME...]", type=valid_text, nargs=-1, help="Names of programs. [all]"
)
selected_names_argument = click.argument(
    "names", metavar="[NAME...]", type=valid_text, nargs=-1, help="Names of programs."
)
all_option = click.option("--all", "everything", is_flag=True, help="All programs.")
ready_option = click.option(
    "--ready", is_flag=True, help="Wait until programs are ready, not only up."
)
timeout_option = click.option(
    "--timeout",
    metavar="DURATION",
    type=duration(0.001),
    default=START_TIMEOUT,
    help="The longest wait for programs to be up.",
)
config_option = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(readable=False, path_type=Path),
    help="The configuration file. [longwatch.toml]",
)
state_dir_option = click.option(
    "--state-dir", metavar="DIR", help="The state directory. [.longwatch]"
)
follow_option = click.option("--follow", "-f", is_flag=True, help="Show new lines until Ctrl-C.")
lines_option = click.option(
    "--lines", "-n", metavar="N", type=whole_number(0), default=10, help="Number of last lines."
)

MAX_NAMES_CHARS = 300
EXIT_NOT_AS_DESIRED = 1
EXIT_INTERRUPTED = 130


@click.command()
@names_argument
@config_option
@state_dir_option
@json_option
def status(
    *, names: tuple[str, ...], config: Path | None, state_dir: str | None, json: bool
) -> int:
    """Show the state of programs.

    Exits with 0 if each program is up, was stopped on purpose or has ended well;
    with 1 if one is broken, waiting or starting; with 2 for wrong use, with 75 if
    no supervisor runs.
    """
    from longwatch.app.control import is_as_desired  # noqa: PLC0415 - help must not wait for what only the command needs
    from longwatch.app.control import status as ask  # noqa: PLC0415

    with _refusals_as_json(as_json=json):
        response = ask(_state_dir(config, state_dir), names)
    if json:
        output.print_result("", response, as_json=True)
    else:
        _print_status(response)
    return 0 if all(map(is_as_desired, response["programs"])) else EXIT_NOT_AS_DESIRED


def _print_status(response: ControlResponse) -> None:
    """Print the table, as wide as the terminal and in colour; 80 columns without a terminal."""
    from shutil import get_terminal_size  # noqa: PLC0415

    from longwatch.observe.log_format import wants_colour  # noqa: PLC0415

    for line in status_lines(
        response,
        now=time.time(),
        width=get_terminal_size().columns,
        colour=wants_colour(1, os.environ),
    ):
        click.echo(line, color=True)


@click.command()
@selected_names_argument
@all_option
@ready_option
@timeout_option
@config_option
@state_dir_option
@json_option
def start(  # noqa: PLR0913 - one argument an option
    *,
    names: tuple[str, ...],
    everything: bool,
    ready: bool,
    timeout: float,
    config: Path | None,
    state_dir: str | None,
    json: bool,
) -> None:
    """Start programs and wait until they are up.

    Exits with 75 if one fails or is not up within --timeout.
    """
    options = {"ready": ready, "timeout": timeout}
    selected = _selected(names, config, state_dir, everything=everything)
    _run_command("start", selected, config, state_dir, as_json=json, **options)


@click.command()
@selected_names_argument
@all_option
@config_option
@state_dir_option
@json_option
def stop(
    *,
    names: tuple[str, ...],
    everything: bool,
    config: Path | None,
    state_dir: str | None,
    json: bool,
) -> None:
    """Stop programs and wait until they have ended.

    They stay stopped until `longwatch start`, also after a restart of the supervisor.
    """
    selected = _selected(names, config, state_dir, everything=everything)
    _run_command("stop", selected, config, state_dir, as_json=json)


@click.command()
@config_option
@state_dir_option
@json_option
def down(*, config: Path | None, state_dir: str | None, json: bool) -> None:
    """Stop every longwatch process of a state directory.

    Stops `longwatch up`, `run`, `worker` and `runner` as SIGTERM does, and waits
    until they have ended. Exits with 75 if none of them runs.
    """
    from longwatch.app.control import shut_down  # noqa: PLC0415 - help must not wait for it

    with _refusals_as_json(as_json=json):
        ended = shut_down(_state_dir(config, state_dir), timeout=_request_timeout())
    output.print_result(
        [f"longwatch {each.command or 'supervisor'}, pid {each.pid}, has ended" for each in ended],
        {"ok": True, "ended": [{"command": each.command, "pid": each.pid} for each in ended]},
        as_json=json,
    )


@click.command()
@selected_names_argument
@all_option
@ready_option
@timeout_option
@config_option
@state_dir_option
@json_option
def restart(  # noqa: PLR0913 - one argument an option
    *,
    names: tuple[str, ...],
    everything: bool,
    ready: bool,
    timeout: float,
    config: Path | None,
    state_dir: str | None,
    json: bool,
) -> None:
    """Stop and start programs.

    --all does not start programs that were stopped on purpose.
    """
    options = {"ready": ready, "timeout": timeout}
    selected = _selected(names, config, state_dir, everything=everything)
    _run_command("restart", selected, config, state_dir, as_json=json, **options)


@click.command()
@selected_names_argument
@all_option
@config_option
@state_dir_option
@json_option
def reset(
    *,
    names: tuple[str, ...],
    everything: bool,
    config: Path | None,
    state_dir: str | None,
    json: bool,
) -> None:
    """Clear failures, backoff and an open breaker of programs.

    Programs that are broken or waiting start now.
    """
    selected = _selected(names, config, state_dir, everything=everything)
    _run_command("reset", selected, config, state_dir, as_json=json)


@click.command()
@config_option
@state_dir_option
@json_option
def reload(*, config: Path | None, state_dir: str | None, json: bool) -> None:
    """Make `longwatch up` read its configuration file again.

    Programs whose settings have not changed are left alone.
    """
    with _refusals_as_json(as_json=json):
        response = _request("reload", [], config, state_dir, response_timeout=_request_timeout())
    parts = [
        f"{word}: {', '.join(response[word])}"
        for word in ("added", "changed", "updated", "removed")
        if response.get(word)
    ]
    output.print_result(parts or "nothing has changed", response, as_json=json)


@click.command()
@names_argument
@follow_option
@lines_option
@config_option
@state_dir_option
def logs(
    *, names: tuple[str, ...], follow: bool, lines: int, config: Path | None, state_dir: str | None
) -> None:
    """Show the last output of programs.

    Reads the log files; no supervisor has to run. With several programs each line
    begins with the name of its program. Control characters are escaped on a
    terminal; a pipe gets the lines as they were written.
    """
    from longwatch.app.log_reader import ProgramLogs, TaggedLine  # noqa: PLC0415 - help must not wait for it

    with (
        closing(ProgramLogs(_state_dir(config, state_dir), names)) as found,
        _ended_by_reader(),
    ):
        width = max(map(len, found.names), default=0)
        tagged, is_terminal = len(found.names) > 1, os.isatty(1)

        def shown(line: TaggedLine) -> bytes:
            text = terminal_line(line[1]) if is_terminal else line[1]
            return (f"{line[0]:<{width}} | ".encode() if tagged else b"") + text + b"\n"

        _write_lines(map(shown, found.read_last(lines)))
        if follow:
            _follow(lambda: map(shown, found.read_new()))


@click.command()
@names_argument
@follow_option
@lines_option
@config_option
@state_dir_option
@json_option
def events(  # noqa: PLR0913 - one argument an option
    *,
    names: tuple[str, ...],
    follow: bool,
    lines: int,
    config: Path | None,
    state_dir: str | None,
    json: bool,
) -> None:
    """Show the last events, of some programs or of all.

    Reads logs/watchdog.log; no supervisor has to run. --json prints the records as
    they are, those of level debug included.
    """
    from longwatch.app.log_reader import EventLogReader  # noqa: PLC0415 - help must not wait for it

    with (
        closing(EventLogReader(_state_dir(config, state_dir), names, include_debug=json)) as kept,
        _ended_by_reader(),
    ):
        shown = _event_formatter(as_json=json)
        _write_lines(map(shown, kept.read_last(lines)))
        if follow:
            _follow(lambda: map(shown, kept.read_new()))


COMMANDS: tuple[click.Command, ...] = (
    status,
    start,
    stop,
    down,
    restart,
    reset,
    reload,
    logs,
    events,
)


def _selected(
    names: Sequence[str], config: Path | None, state_dir: str | None, *, everything: bool
) -> Sequence[str]:
    """The names, none for --all. Raises UsageError if both or neither are given."""
    if names and everything:
        raise UsageError("name programs or add --all, not both")
    if not names and not everything:
        known = _known_names(config, state_dir)
        raise UsageError(f"name programs, or add --all{f'; there are: {known}' if known else ''}")
    return names


def _known_names(config: Path | None, state_dir: str | None) -> str:
    """The names of all programs; empty if no supervisor answers."""
    try:
        found = _request("status", [], config, state_dir)["programs"]
    except LongwatchError:
        return ""
    return shorten(", ".join(each["name"] for each in found), MAX_NAMES_CHARS)


def _run_command(
    command: str,
    names: Sequence[str],
    config: Path | None,
    state_dir: str | None,
    *,
    as_json: bool,
    **options: Any,
) -> None:
    """Send a command to the supervisors and print the state of the programs afterwards."""
    with _refusals_as_json(as_json=as_json):
        response = _request(
            command,
            names,
            config,
            state_dir,
            everything=not names,  # `_selected` requires --all then
            response_timeout=_request_timeout() + options.get("timeout", 0.0),
            **options,
        )
    output.print_result(map(status_line, response["programs"]), response, as_json=as_json)


def _request(
    command: str, names: Sequence[str], config: Path | None, state_dir: str | None, **options: Any
) -> ControlResponse:
    from longwatch.app.control import request  # noqa: PLC0415 - help must not wait for it

    return request(_state_dir(config, state_dir), command, names, **options)


@contextmanager
def _refusals_as_json(*, as_json: bool) -> Iterator[None]:
    """Print a refused response as JSON before the error is reported."""
    from longwatch.app.control import RefusedError  # noqa: PLC0415

    try:
        yield
    except RefusedError as refused:
        if as_json:
            output.print_result("", refused.response, as_json=True)
        raise


def _state_dir(config: Path | None, state_dir: str | None) -> Path:
    from longwatch.app.control import state_directory  # noqa: PLC0415

    return state_directory(state_dir, config, os.environ)


def _request_timeout() -> float:
    from longwatch.app.control import COMMAND_TIMEOUT  # noqa: PLC0415

    return COMMAND_TIMEOUT


def _event_formatter(*, as_json: bool) -> Callable[[dict[str, Any]], bytes]:
    from longwatch.observe.log_format import to_json, to_pretty, wants_colour  # noqa: PLC0415

    colour = wants_colour(1, os.environ)

    def form(record: dict[str, Any]) -> bytes:
        line = (
            to_json(record)
            if as_json
            else f"{_local_day(record)}{to_pretty(record, colour=colour)}"
        )
        return line.encode() + b"\n"

    return form


def _local_day(record: dict[str, Any]) -> str:
    from datetime import datetime  # noqa: PLC0415

    try:
        return datetime.fromisoformat(str(record.get("ts"))).astimezone().strftime("%Y-%m-%d ")
    except (ValueError, OverflowError):
        return ""


def _write_lines(lines: Iterable[bytes]) -> None:
    """Write the lines unchanged to standard output and flush it."""
    if sys.stdout is not None:
        sys.stdout.buffer.writelines(lines)
        sys.stdout.buffer.flush()


def _follow(new_lines: Callable[[], Iterable[bytes]]) -> None:
    from longwatch.app.log_reader import follow  # noqa: PLC0415
    from longwatch.core.clock import SystemClock  # noqa: PLC0415

    follow(lambda: _write_lines(new_lines()), is_over=_is_reader_gone, clock=SystemClock())


def _is_reader_gone() -> bool:
    """Whether the reader of standard output has closed it, as `| head` does."""
    import select  # noqa: PLC0415

    poller = select.poll()
    poller.register(1, 0)
    return bool(poller.poll(0))


@contextmanager
def _ended_by_reader() -> Iterator[None]:
    """End the command at Ctrl-C or when the reader of standard output has closed it. Standard
    output then becomes /dev/null, so that the last flush does not fail.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
