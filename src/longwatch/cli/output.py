"""Output of commands: JSON for machines, aligned text for people, and confirmation prompts.

Control characters are escaped in all text output.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from unicodedata import combining, east_asian_width

import click

from longwatch.core.sanitize import printable, shorten
from longwatch.errors import UsageError

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))
MAX_BODY_CHARS = 120
GAP = "  "
"""The space between two columns."""
NOTE_INDENT = "  "
_MIN_CELL_WIDTH = 16
"""A column is not shortened further; other columns move below the row instead."""


def print_result(text: str | Iterable[str], data: object, *, as_json: bool) -> None:
    """Print the data as one line of JSON, or the text."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if as_json:
        click.echo(json.dumps(data))
        return
    for line in [text] if isinstance(text, str) else text:
        click.echo(printable(line))


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a table with headers; whole numbers are aligned to the right.

    On a terminal the table fits its width: the widest texts lose their middle, except those of the
    first column, and columns without room move to a line below their row. Elsewhere all is shown.
    """
    kept = [list(row) for row in rows]
    right = [_are_numbers([row[column] for row in kept]) for column in range(len(head))]
    lines = [list(head), *([_cell(value) for value in row] for row in kept)]
    widths = [max(map(text_width, column)) for column in zip(*lines, strict=True)]
    limit = _terminal_width()
    if limit is None or _total_width(widths) <= limit:
        return [_table_line(line, widths, right) for line in lines]
    shown_widths = _fit_widths(head, widths, right, limit)
    shown = [_table_line(lines[0], shown_widths, right)]
    for line in lines[1:]:
        shown.append(_table_line(line, shown_widths, right))
        rest = zip(head[len(shown_widths) :], line[len(shown_widths) :], strict=True)
        shown += note_lines((f"{name} {text}" for name, text in rest if text), limit)
    return shown


def note_lines(notes: Iterable[str], width: int) -> list[str]:
    """The notes below a row, as many in a line as fit. A note wider than a line is cut."""
    room = width - len(NOTE_INDENT)
    lines: list[str] = []
    for note in notes:
        if lines and text_width(f"{lines[-1]}; {note}") <= room:
            lines[-1] += f"; {note}"
        else:
            lines.append(note if text_width(note) <= room else f"{cut(note, room - 1)}…")
    return [NOTE_INDENT + line for line in lines if line]


def text_width(text: str) -> int:
    """The columns that a text takes on a terminal: some characters take two, or none."""
    return sum(
        0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text
    )


def cut(text: str, width: int) -> str:
    """The beginning of a text, at most `width` columns wide."""
    while text and text_width(text) > width:
        text = text[: max(width, 0)] if len(text) > width else text[:-1]
    return text


def shorten_middle(text: str, width: int) -> str:
    """A text of at most `width` columns, with an ellipsis for its middle: names often differ at
    the end.
    """
    if text_width(text) <= width:
        return text
    tail = cut(text[::-1], (width - 1) // 2)[::-1]
    return f"{cut(text, width - 1 - text_width(tail))}…{tail}"


def _terminal_width() -> int | None:
    """The columns of the terminal on standard output; None if it is not a terminal."""
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    from shutil import get_terminal_size  # noqa: PLC0415 - scripts need no width

    return get_terminal_size().columns


def fitting_columns(widths: Mapping[str, int], width: int, *, drop: Iterable[str]) -> list[str]:
    """The columns of a table that is at most `width` wide. Those of `drop` are left out, the first
    one first, as long as the others do not fit.
    """
    columns = list(widths)
    for name in drop:
        if _total_width([widths[each] for each in columns]) <= width:
            break
        columns.remove(name)
    return columns


def _total_width(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _fit_widths(
    head: Sequence[str], widths: Sequence[int], right: Sequence[bool], limit: int
) -> list[int]:
    """The widths of the first columns, as many as fit into `limit`, at least one. Texts after the
    first column are shortened for that, the widest first.
    """
    least = [
        width if column == 0 or right[column] else min(width, max(_MIN_CELL_WIDTH, len(name)))
        for column, (name, width) in enumerate(zip(head, widths, strict=True))
    ]
    number = len(least)
    while number > 1 and _total_width(least[:number]) > limit:
        number -= 1
    fitted = list(widths[:number])
    while _total_width(fitted) > limit and fitted != least[:number]:
        widest = max(
            (column for column in range(number) if fitted[column] > least[column]),
            key=fitted.__getitem__,
        )
        fitted[widest] -= 1
    return fitted


def _table_line(line: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    """The first cells of a line, as many as there are widths."""
    cells = []
    for text, width, is_number in zip(line, widths, right, strict=False):
        shown = shorten_middle(text, width)
        space = " " * (width - text_width(shown))
        cells.append(space + shown if is_number else shown + space)
    return GAP.join(cells).rstrip()


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
        click.echo("longwatch: nothing was done", err=True)
        raise click.exceptions.Exit(1)


def _read_reply(question: str) -> str:
    """Read a line from the terminal. Ctrl-C and an end of input leave a new line."""
    reply = ""
    try:
        click.echo(question, nl=False, err=True)
        reply = sys.stdin.readline()
        return reply
    finally:
        if not reply.endswith("\n"):
            click.echo(err=True)


def _are_numbers(column: Sequence[object]) -> bool:
    """Whether a column has only whole numbers and empty cells."""
    return any(value is not None for value in column) and all(
        isinstance(value, int | None) for value in column
    )


def _cell(value: object) -> str:
    return "" if value is None else printable(str(value))
