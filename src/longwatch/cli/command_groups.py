"""The commands of `longwatch` in the groups in which `longwatch --help` lists them, and the class
of every group of commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from longwatch.core.sanitize import printable
from longwatch.core.suggest import did_you_mean
from longwatch.errors import LongwatchError, UsageError

HELP_GROUPS: Mapping[str, tuple[str, ...]] = {
    "Run things": (
        "run",
        "up",
        "worker",
        "runner",
        "simulate",
    ),
    "Queues": (
        "mailbox",
    ),
    "Graphs": (
        "flow",
    ),
    "Evaluations": (
        "eval",
    ),
    "Operate": (
        "init",
        "check",
        "doctor",
        "status",
        "top",
        "start",
        "stop",
        "down",
        "restart",
        "reset",
        "reload",
        "logs",
        "events",
        "page",
        "db",
        "completion",
    ),
}  # fmt: skip
"""The commands of each group; every command is in exactly one group."""


class InterruptedByUserError(LongwatchError):
    """The user pressed Ctrl-C."""

    exit_code = 130


class CommandGroup(click.Group):
    """Commands under one name, listed in the order of their definition. An unknown name is refused
    with the nearest one.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            see_help = f"see `{ctx.command_path} --help`"
            meant = did_you_mean(name, self.list_commands(ctx), default=see_help)
            raise UsageError(f"`{ctx.command_path}` has no command '{printable(name)}'; {meant}")
        return super().resolve_command(ctx, args)


class RootGroup(CommandGroup):
    """Every command. Its help has one section for each of HELP_GROUPS. Ctrl-C becomes an
    InterruptedByUserError here: click would make an Abort of it, and print an empty line.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise InterruptedByUserError("interrupted") from None

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click's signature
        width = max(map(len, self.commands))
        limit = formatter.width - 6 - width
        for title, names in HELP_GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    (name.ljust(width), self.commands[name].get_short_help_str(limit))
                    for name in names
                )
