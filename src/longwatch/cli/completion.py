"""`longwatch completion`: scripts that complete the command line in bash, zsh and fish.

A script has every command and option as text, so a Tab key starts no Python. The names of programs
are those of the log files in the state directory and of the tables in `longwatch.toml`. After an
upgrade the script has to be written again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import click

from longwatch import __version__
from longwatch.cli.option_values import choice

SHELLS = ("bash", "zsh", "fish")
shell_argument = click.argument(
    "shell", metavar="SHELL", type=choice(SHELLS), help="bash, zsh or fish."
)

_CHOICES = re.compile(r": ([\w-]+(?:, [\w-]+)*(?: or |, )[\w-]+)\.(?: \[|$)")
"""How the help of an option lists its values: `Format of logs: auto, json or pretty.`"""
_FILE_METAVARS = frozenset({"FILE", "DATASET"})
_NAME_COMMANDS = frozenset({"status", "start", "stop", "restart", "reset", "logs", "events"})
"""The commands whose arguments are names of programs."""
NONE, FILES, DIRECTORIES, NAMES, COMMANDS = "none", "files", "directories", "names", "commands"
"""What can follow: nothing that is known, a path, a directory, a program of the state directory, a
command of the machine. Any other text lists the words.
"""


@dataclass(frozen=True, slots=True)
class OptionWords:
    """The names of an option, its help, and what its value is; None for a flag."""

    names: tuple[str, ...]
    help: str
    value: str | None


@dataclass(frozen=True, slots=True)
class CommandWords:
    """A command by its words, such as `longwatch mailbox send`, and what can follow them."""

    path: str
    commands: Mapping[str, str]
    options: tuple[OptionWords, ...]
    arguments: str


@click.command()
@shell_argument
def completion(*, shell: str) -> None:
    """Print a script that completes commands, options and programs.

    Write it to where the shell looks for such scripts:
    bash: ~/.local/share/bash-completion/completions/longwatch
    zsh: a file _longwatch in a directory of $fpath
    fish: ~/.config/fish/completions/longwatch.fish
    """
    from longwatch.cli.main import root  # noqa: PLC0415 - main imports this module

    click.echo(completion_script(shell, root), nl=False)


def completion_script(shell: str, root: Any) -> str:
    """The script for a shell, from the tree of commands."""
    from importlib.resources import files  # noqa: PLC0415 - help must not wait for it

    commands = list(command_words(root))
    template = files("longwatch.cli").joinpath(f"completion.{shell}").read_text(encoding="utf-8")
    form = _FORMS[shell]
    return (
        template.replace("@VERSION@", __version__)
        .replace("@COMMANDS@\n", "".join(_cases(form.command(each) for each in commands)))
        .replace("@VALUES@\n", "".join(_cases(map(form.value, _values(commands)))))
    )


def command_words(command: Any, path: str = "longwatch") -> Iterator[CommandWords]:
    """This command and all below it; hidden ones are left out."""
    children = {
        name: child for name, child in getattr(command, "commands", {}).items() if not child.hidden
    }
    yield CommandWords(
        path,
        {name: _first_sentence(child.help) for name, child in children.items()},
        tuple(_options(command)),
        _arguments(command, path),
    )
    for name, child in children.items():
        yield from command_words(child, f"{path} {name}")


def _options(command: Any) -> Iterator[OptionWords]:
    for param in command.params:
        if param.param_type_name == "option" and not param.hidden:
            names = (*param.opts, *param.secondary_opts)
            value = None if param.is_flag else _value_kind(param.metavar, param.help or "")
            yield OptionWords(names, _first_sentence(param.help), value)
    yield OptionWords(("--help", "-h"), "Show the help and exit.", None)


def _arguments(command: Any, path: str) -> str:
    """What the arguments of a command are."""
    if path.removeprefix("longwatch ") in _NAME_COMMANDS:
        return NAMES
    found = [param for param in command.params if param.param_type_name == "argument"]
    if path == "longwatch run":
        return COMMANDS
    return _value_kind(found[0].metavar, "") if found else NONE


def _value_kind(metavar: str | None, help_text: str) -> str:
    if listed := _CHOICES.search(help_text):
        return listed[1].replace(" or ", " ").replace(",", "")
    if metavar == "SHELL":
        return " ".join(SHELLS)
    if metavar == "DIR":
        return DIRECTORIES
    return FILES if metavar in _FILE_METAVARS else NONE


def _first_sentence(text: str | None) -> str:
    paragraph = " ".join((text or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.) ", paragraph)[0].removesuffix(".")


def _values(commands: Iterable[CommandWords]) -> Iterator[tuple[list[str], str]]:
    """Each kind of value with the options that take it, as `longwatch up --config`."""
    options_by_kind: dict[str, list[str]] = {}
    for command in commands:
        for option in command.options:
            if option.value is not None:
                options_by_kind.setdefault(option.value, []).extend(
                    f"{command.path} {name}" for name in option.names
                )
    for kind, options in options_by_kind.items():
        yield options, kind


def _cases(lines: Iterable[str]) -> Iterator[str]:
    return (f"{line}\n" for line in lines)


# --- the forms of the shells ---


@dataclass(frozen=True, slots=True)
class _ShellForm:
    """How a shell writes the case of a command, and that of the options with one kind of value."""

    command: Callable[[CommandWords], str]
    value: Callable[[tuple[list[str], str]], str]


def _bash_command(command: CommandWords) -> str:
    options = [name for option in command.options for name in option.names]
    return (
        f'    "{command.path}")\n'
        f"        commands='{' '.join(command.commands)}'\n"
        f"        options='{' '.join(options)}'\n"
        f"        arguments='{command.arguments}' ;;"
    )


def _zsh_command(command: CommandWords) -> str:
    children = [_zsh_entry(name, text) for name, text in command.commands.items()]
    options = [_zsh_entry(name, option.help) for option in command.options for name in option.names]
    return (
        f'    "{command.path}")\n'
        f"        children=({' '.join(children)})\n"
        f"        options=({' '.join(options)})\n"
        f"        arguments='{command.arguments}' ;;"
    )


def _fish_command(command: CommandWords) -> str:
    lines = [f"        case '{command.path}'"]
    lines += [_fish_line(1, name, text) for name, text in command.commands.items()]
    lines += [
        _fish_line(2, name, option.help) for option in command.options for name in option.names
    ]
    return "\n".join([*lines, f"            set -g __longwatch_arguments '{command.arguments}'"])


def _posix_value(case: tuple[list[str], str]) -> str:
    options, kind = case
    patterns = " | ".join(f'"{option}"' for option in options)
    return f"    {patterns})\n        value='{kind}' ;;"


def _fish_value(case: tuple[list[str], str]) -> str:
    options, kind = case
    return f"        case {' '.join(map(_quoted, options))}\n            echo '{kind}'"


def _zsh_entry(name: str, text: str) -> str:
    return _quoted(f"{name}:{text}")


def _fish_line(group: int, name: str, text: str) -> str:
    variable = {1: "commands", 2: "options"}[group]
    return f"            set -ga __longwatch_{variable} {_quoted(name)}\\t{_quoted(text)}"


def _quoted(text: str) -> str:
    """The text in single quotes, as bash, zsh and fish read them; an apostrophe becomes ’."""
    return "'" + text.replace("'", "’").replace("\\", "/") + "'"


_FORMS = {
    "bash": _ShellForm(_bash_command, _posix_value),
    "zsh": _ShellForm(_zsh_command, _posix_value),
    "fish": _ShellForm(_fish_command, _fish_value),
}
