"""Parses the command line, runs the command, and turns every error into one line and an exit code.

Exit codes: 0 done, 1 something went wrong, 2 wrong use, 75 try again, 100 needs a person.
`longwatch run` passes on the exit code of its program.
"""

from __future__ import annotations

import errno
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from longwatch import __version__
from longwatch.cli import (
    db,
    evals,
    flow,
    flow_archive,
    flow_history,
    flow_search,
    flow_stats,
    flow_ticks,
    mailbox,
    programs,
    runner,
    simulate,
)
from longwatch.cli.check import check
from longwatch.cli.command_groups import RootGroup
from longwatch.cli.completion import completion
from longwatch.cli.doctor import doctor
from longwatch.cli.entry import BLOCKED_SIGNALS
from longwatch.cli.init import init
from longwatch.cli.page import page
from longwatch.cli.run import run
from longwatch.cli.top import top
from longwatch.cli.up import up
from longwatch.cli.usage_errors import describe_usage_error, fault_lines
from longwatch.cli.worker import worker
from longwatch.core.error_text import describe_error
from longwatch.core.sanitize import printable
from longwatch.errors import ConfigError, LongwatchError, UsageError

COMMANDS: tuple[click.Command, ...] = (
    run,
    up,
    worker,
    *programs.COMMANDS,
    top,
    page,
    init,
    check,
    doctor,
    completion,
    flow.app,
    mailbox.app,
    db.app,
    evals.app,
    runner.runner,
    simulate.app,
)
for commands in (flow_archive, flow_history, flow_search, flow_stats, flow_ticks):
    commands.add_commands(flow.app)


@click.group(
    "longwatch",
    cls=RootGroup,
    commands=COMMANDS,
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, message="longwatch %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def root(context: click.Context, *, debug: bool) -> None:
    """Keep long-running workers and AI agents alive.

    A DURATION is a number of seconds, or text such as 90s, 5m or 1h30m.
    """
    del debug  # report_error looks for it
    if context.invoked_subcommand not in {
        "run",
        "up",
        "worker",
        "flow",
        "runner",
        "page",
    }:  # which unblock them when their handlers are installed
        unblock_signals()
    if context.invoked_subcommand is None:
        _show_help(context)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(_run(_debug_first(words)))


def _debug_first(words: list[str]) -> list[str]:
    """Move `--debug` before the command. Users may write it after the command, except after `run`,
    whose further words may belong to the program.
    """
    own = words[: words.index("--")] if "--" in words else words
    command = next((word for word in own if not word.startswith("-")), None)
    if "--debug" not in own or command == "run":
        return words
    return ["--debug", *(word for word in own if word != "--debug"), *words[len(own) :]]


def unblock_signals() -> None:
    """Unblock the stop signals that `entry.main` blocked. Ctrl-C then raises KeyboardInterrupt."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED_SIGNALS)


def report_error(error: BaseException, words: Sequence[str]) -> int:
    """Print an error in one line; returns the exit code."""
    if isinstance(error, BrokenPipeError):
        return 1
    if "--debug" in words[:1]:
        traceback.print_exception(error)
    if type(error).__name__ == "NoArgsIsHelpError":
        click.echo(error, err=True)
        return 2
    code, message = _exit_code_and_message(error, words)
    for line in message.split("\n"):
        click.echo(f"longwatch: {printable(line)}", err=True)
    return code


def _run(words: list[str]) -> int:
    try:
        return int(root(words, prog_name="longwatch", standalone_mode=False) or 0)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last resort: one line, with --debug the traceback
        return report_error(error, words)


def _show_help(context: click.Context) -> None:
    """Print the help for `longwatch` without a command, which is wrong use."""
    click.echo(context.get_help(), err=True)
    raise click.exceptions.Exit(2)


def _exit_code_and_message(error: BaseException, words: Sequence[str]) -> tuple[int, str]:
    """The exit code and the message of an error; an error of no known class is a bug of ours."""
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted"
    if isinstance(error, ConfigError) and "--debug" not in words[:1]:
        return error.exit_code, "\n".join(fault_lines(error.faults))
    if isinstance(error, LongwatchError):
        return error.exit_code, str(error)
    if hasattr(error, "format_message") and hasattr(error, "exit_code"):
        return error.exit_code, describe_usage_error(error, _command_path(words))
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return UsageError.exit_code, _name_too_long(str(error.filename or ""))
    return 1, f"{describe_error(error)} (run `longwatch --debug …` for the traceback)"


def _name_too_long(name: str) -> str:
    limits = "each part may have 255 bytes, a whole path 4095"
    return f"the name {printable(name, max_chars=60)!r} is too long for a file; {limits}"


def _command_path(words: Sequence[str]) -> str:
    """The command that the words begin with: `longwatch mailbox send`."""
    command: Any = root
    path = ["longwatch"]
    for word in words:
        child = getattr(command, "commands", {}).get(word)
        if child is not None:
            path.append(word)
            command = child
    return " ".join(path)
