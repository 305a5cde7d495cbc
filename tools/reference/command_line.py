"""docs/reference/cli.md: for each command its usage and a table of its arguments and options.

What a command does is the docstring of its function, and what an option means its help. A default
stands at the end of the help in brackets. The rest of a section is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from longwatch.config.settings import VARIABLES
from reference.parts import Part, ReferencePage, cell, table

SETTINGS_OF = {"longwatch run": "run", "longwatch runner": "runner"}
"""Commands whose options are settings, by the table that has them."""
_DEFAULT = re.compile(r" \[([^\]]+)\]$")
_VARIABLES = {variable.path: variable.name for variable in VARIABLES}


@dataclass(frozen=True)
class Command:
    """A command of the tree, with the words that call it."""

    path: str
    command: Any
    context: Any
    children: tuple[Command, ...] = ()

    @property
    def summary(self) -> str:
        """The first sentence of its help."""
        return cell((self.command.help or "").partition("\n\n")[0])

    def walk(self) -> Iterator[Command]:
        yield self
        for child in self.children:
            yield from child.walk()


def tree() -> Command:
    """The commands that people see."""
    return _read(import_module("longwatch.cli.main").root, "longwatch", None)


def _read(command: Any, path: str, parent: Any) -> Command:
    context = command.make_context(path, [], parent=parent, resilient_parsing=True)
    children = []
    if hasattr(command, "list_commands"):
        below = [
            (name, command.get_command(context, name)) for name in command.list_commands(context)
        ]
        children = [
            _read(each, f"{path} {name}", context) for name, each in below if not each.hidden
        ]
    return Command(path, command, context, tuple(children))


def parts() -> Mapping[str, Part]:
    return {
        each.path: Part(
            "\n\n".join(_pieces(each)), heading=f"## `{each.path}`", intro=_prose(each.command.help)
        )
        for each in tree().walk()
    }


def _pieces(each: Command) -> Iterator[str]:
    rows = [
        _row(param, each) for param in each.command.params if not getattr(param, "hidden", False)
    ]
    if each.children:
        yield _children(each)
    if not each.children or each.command.invoke_without_command:
        yield f"```text\n{_usage(each)}\n```"
    if rows:
        header = ["argument or option", "meaning", "default", "setting", "environment"]
        used = [index for index in range(len(header)) if any(row[index] for row in rows)]
        yield table(
            tuple(header[index] for index in used),
            [tuple(row[index] for index in used) for row in rows],
        )


def _children(group: Command) -> str:
    rows = [
        (f"[`{each.path}`](#{each.path.replace(' ', '-')})", each.summary)
        for each in group.children
    ]
    return table(("command", "what it does"), rows)


def _usage(each: Command) -> str:
    arguments = [
        _metavar(param, each)
        for param in each.command.params
        if param.param_type_name == "argument"
    ]
    separator = ["--"] if each.path == "longwatch run" else []
    command = ["[COMMAND]"] if each.children else []
    return " ".join([each.path, "[OPTIONS]", *separator, *filter(None, arguments), *command])


def _row(param: Any, each: Command) -> tuple[str, str, str, str, str]:
    text = cell(getattr(param, "help", None) or "")
    default = _DEFAULT.search(text)
    path = _setting(param, each)
    return (
        _names(param, each),
        _DEFAULT.sub("", text),
        _as_code(default[1]) if default else _default(param),
        f"`{path}`" if path in _settings() else "",
        f"`{_VARIABLES[path]}`" if path in _VARIABLES else "",
    )


def _as_code(default: str) -> str:
    """A default as code, unless it is described in words."""
    return default if " " in default or default == "none" else f"`{default}`"


def _names(param: Any, each: Command) -> str:
    metavar = _metavar(param, each)
    if param.param_type_name == "argument":
        names = metavar.strip("[]").split("|") if "|" in metavar else [metavar]
        return " or ".join(f"`{name}`" for name in names)
    options = [*param.opts, *param.secondary_opts]
    return ", ".join(
        f"`{name} {metavar}`" if metavar and name.startswith("--") else f"`{name}`"
        for name in options
    )


def _metavar(param: Any, each: Command) -> str:
    metavar = getattr(param, "metavar", None) or ""
    if not metavar and param.param_type_name == "argument":
        metavar = str(param.make_metavar(each.context))
    return metavar.replace("...", "…")


def _default(param: Any) -> str:
    """The default of an option; empty where it has none, or is a flag that is off."""
    if param.required:
        return "required"
    default = param.to_info_dict()["default"]
    if default is None or isinstance(default, bool):
        return ""
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def _setting(param: Any, each: Command) -> str:
    """The setting that an option of some commands overrides."""
    place = SETTINGS_OF.get(each.path)
    if place is None or param.param_type_name == "argument":
        return ""
    key = param.opts[0].removeprefix("--").replace("-", "_")
    below = key.replace("_", ".", 1)
    found = [f"{place}.{name}" for name in (key, below) if f"{place}.{name}" in _settings()]
    if param.secondary_opts:
        return f"{place}.{key}.enabled"
    return found[0] if found else ("state_dir" if key == "state_dir" else "")


def _settings() -> set[str]:
    from reference.settings import setting_paths  # noqa: PLC0415 - avoids a circle of imports

    return setting_paths()


def _prose(help_text: str | None) -> str:
    """The help of a command as paragraphs of Markdown."""
    paragraphs = (help_text or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


PAGE = ReferencePage("cli.md", parts)
