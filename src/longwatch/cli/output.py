"""Output of commands: JSON for machines, aligned text for people, and confirmation prompts.

Control characters are escaped in all text output.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence

import typer

from longwatch.core.sanitize import printable, shorten
from longwatch.errors import UsageError

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))
MAX_BODY_CHARS = 120


def print_result(text: str | Iterable[str], data: object, *, as_json: bool) -> None:
    """Print the data as one line of JSON, or the text."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if as_json:
        typer.echo(json.dumps(data))
        return
    for line in [text] if isinstance(text, str) else text:
        typer.echo(printable(line))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a table with headers; whole numbers are aligned to the right."""
    kept = [list(row) for row in rows]
    lines = [list(head), *([_cell(value) for value in row] for row in kept)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    right = [_are_numbers([row[column] for row in kept]) for column in range(len(head))]
    return [
        "  ".join(
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    ]


def key_value_lines(fields: Mapping[str, object]) -> list[str]:
    """The lines of a mapping, one field a line."""
    width = max(len(name) for name in fields)
    return [f"{name:<{width}}  {_cell(value)}".rstrip() for name, value in fields.items()]


def age(seconds: float | None) -> str:
    """An age in its largest unit: `5 min`; empty for None."""
    if seconds is None:
        return ""
    for length, unit in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def short_body(data: bytes) -> str:
    """The first characters of a body, as text."""
    return shorten(full_body(data), MAX_BODY_CHARS)


def full_body(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


def pluralize(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def confirm(question: str, *, yes: bool) -> None:
    """Return if `--yes` was given or the user answers yes, else exit with 1. Raises UsageError if
    there is no terminal.
    """
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal to ask at; add --yes to confirm")
    if _read_reply(f"{question} [y/N] ").strip().lower() not in {"y", "yes"}:
        typer.echo("longwatch: nothing was done", err=True)
        raise typer.Exit(1)


def _read_reply(question: str) -> str:
    """Read a line from the terminal. Ctrl-C and an end of input leave a new line."""
    reply = ""
    try:
        typer.echo(question, nl=False, err=True)
        reply = sys.stdin.readline()
        return reply
    finally:
        if not reply.endswith("\n"):
            typer.echo(err=True)


def _are_numbers(column: Sequence[object]) -> bool:
    """Whether a column has only whole numbers and empty cells."""
    return any(value is not None for value in column) and all(
        isinstance(value, int | None) for value in column
    )


def _cell(value: object) -> str:
    return "" if value is None else printable(str(value))
