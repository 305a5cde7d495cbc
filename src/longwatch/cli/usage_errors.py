"""Describes errors of the command line parser and faults of settings in one line each.

The parser library moves its error classes from version to version, so this module matches them by
class name and attributes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from longwatch.core.sanitize import printable
from longwatch.core.suggest import did_you_mean
from longwatch.errors import Fault

MAX_EQUAL_FAULTS = 3
_EXTRA_ARGUMENTS = re.compile(r"extra arguments?(?:\(s\))? \((.*)\)\.?$", re.DOTALL)


def describe_usage_error(error: Any, command_path: str) -> str:
    """Describe an error of the parser in one line: what was expected, what was found, what to do.
    `command_path` names the command where the error does not.
    """
    return printable(_describe(error, command_path))


def fault_lines(faults: Sequence[Fault]) -> Iterator[str]:
    """One line for each fault. Of faults with the same problem at different places the first three
    are listed, and the others counted.
    """
    totals = Counter((fault.problem, fault.cure) for fault in faults)
    listed: Counter[tuple[str, str]] = Counter()
    for fault in faults:
        said = (fault.problem, fault.cure)
        listed[said] += 1
        if listed[said] <= MAX_EQUAL_FAULTS:
            yield str(fault)
        elif listed[said] == MAX_EQUAL_FAULTS + 1:
            more = totals[said] - MAX_EQUAL_FAULTS
            yield f"… and {more:,} more like this: {fault.problem} (--debug lists them all)"


def _describe(error: Any, command_path: str) -> str:
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", None) or command_path
    see_help = f"see `{path} --help`"
    match type(error).__name__:
        case "MissingParameter" if error.param is not None:
            return f"{_name(error.param)} is missing; write: {_usage(path, context)}"
        case "BadParameter" if error.param is not None:
            return f"{_name(error.param)} {error.message}"
        case "NoSuchOption":
            meant = did_you_mean(error.option_name, _options(context), default=see_help)
            return f"`{path}` has no option {error.option_name}; {meant}"
        case "BadOptionUsage" if "does not take" in error.message:
            return f"{error.option_name} takes no value; write {error.option_name} alone"
        case "BadOptionUsage":
            return f"{error.option_name} needs a value, and there is none; {see_help}"
        case _:
            return _describe_extra(error, path, context) or f"{_bare(error)}; {see_help}"


def _describe_extra(error: Any, path: str, context: Any) -> str:
    extra = _EXTRA_ARGUMENTS.search(error.format_message())
    if extra is None or context is None:
        return ""
    return f"'{extra[1]}' is too much; write: {_usage(path, context)}"


def _bare(error: Any) -> str:
    """The library's message with a small first letter and without a full stop."""
    text: str = error.format_message().rstrip(".")
    return text[:1].lower() + text[1:]


def _name(param: Any) -> str:
    """An option by its longest name, an argument by its metavar."""
    if param.param_type_name == "option":
        return str(max(param.opts, key=len))
    return str(param.human_readable_name)


def _options(context: Any) -> list[str]:
    params = context.command.get_params(context) if context is not None else ()
    return [name for param in params for name in (*param.opts, *param.secondary_opts)]


def _usage(path: str, context: Any) -> str:
    """The command with its arguments and its required options."""
    words = [path]
    for param in context.command.params:
        if param.param_type_name == "argument":
            name = param.human_readable_name
            words.append(name if param.required or name.startswith("[") else f"[{name}]")
        elif param.required:
            words.append(f"{_name(param)} {param.metavar}")
    return " ".join(words)
