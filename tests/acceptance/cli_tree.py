"""Run by the wheel's own interpreter: prints the tree of commands as JSON, or parses command lines
without running them.

python cli_tree.py                    every command with its options
python cli_tree.py LINE...            for each line (a JSON list of arguments): null, or why it is
                                      wrong use
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

WRONG_USE = 2


def root() -> Any:
    """The command behind `longwatch`."""
    return import_module("longwatch.cli.main").root


def commands(command: Any, path: str, parent: Any = None) -> Iterator[dict[str, Any]]:
    """This command and those below it; a hidden one is not for people, so it is not told."""
    if command.hidden:
        return
    options = [
        name
        for param in command.params
        if param.param_type_name == "option" and not param.hidden
        for name in param.opts
    ]
    yield {
        "path": path,
        "options": sorted(name for name in options if name.startswith("--") and name != "--help"),
    }
    if hasattr(command, "list_commands"):
        context = command.make_context(command.name, [], parent=parent, resilient_parsing=True)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), f"{path} {name}", context)


def parse(command: Any, arguments: list[str], parent: Any = None) -> None:
    """Parse a command line down to its last command; the parser raises what is wrong, nothing is
    run.
    """
    context = command.make_context(command.name, arguments, parent=parent)
    if hasattr(command, "list_commands"):
        _, child, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        parse(child, rest, context)


def usage_error(command: Any, arguments: list[str]) -> str | None:
    """Why the command line is wrong use, or None."""
    try:
        with redirect_stdout(sys.stderr):  # `--version` speaks while it is parsed
            parse(command, arguments)
    except Exception as error:  # noqa: BLE001 (whichever class the parser raises, its exit code tells wrong use)
        return str(error) if getattr(error, "exit_code", None) == WRONG_USE else None
    return None


def main(lines: list[str]) -> None:
    command = root()
    answer = (
        [usage_error(command, json.loads(line)) for line in lines]
        if lines
        else list(commands(command, "longwatch"))
    )
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
